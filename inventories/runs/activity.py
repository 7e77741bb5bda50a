"""Activities of ranks, as their nodes report them when a run may hang."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ChildActivity:
    """A process that a rank has started."""

    pid: int
    state: str | None = None
    stacks: str = ""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """An operation among ranks, as torch's flight recorder has it."""

    group: str
    """Name of its process group, the same on all its ranks."""
    title: str = ""
    """The purpose of the group: `default_pg`, …"""
    point_to_point: bool = False
    sequence: int
    name: str
    """`all_reduce`, …"""
    sizes: str = ""
    """Of what goes in."""
    over: bool
    entered_at: float
    """The node's clock, unix seconds."""


@dataclass(frozen=True, kw_only=True)
class RankActivity:
    """A node's report of one of its ranks. Times are the node's, unix seconds."""

    rank: int
    now: float
    began_at: float | None = None
    """`None`: it has not begun."""
    ended: bool = False
    state: str | None = None
    """The kernel's letter for its process. `None`: it is gone."""
    cpu: float | None = None
    """The share of a CPU that it and the processes that it started used."""
    busy: float | None = None
    """The same, with the time for which they waited for a CPU."""
    io_bytes_per_s: float | None = None
    """What they read and wrote, also over the network."""
    wrote_s: float | None = None
    """How long ago it wrote into its log or its metrics. `None`: never."""
    wait_channel: str = ""
    """Where in the kernel it sleeps."""
    children: tuple[ChildActivity, ...] = ()
    stacks: str = ""
    stacks_by: str | None = None
    """`server`, `signal` or `kernel`: the source of the stacks."""
    server: bool | None = None
    """Whether torch's worker server sent its stacks. `None`: it has no server."""
    collectives: tuple[Collective, ...] = ()
    """The last ones of each process group, oldest first."""
    code: str = ""
    """The node's folder of sent files."""
    place: str = ""
    """Which part of the model it has, as the job says: `stage 2 of 4`."""
    log_tail: str = ""
    """The last lines of its log; empty: these have no traceback."""


@dataclass(frozen=True, kw_only=True)
class HangReport:
    """The report of a node's watch when its ranks had made no progress for too long."""

    silent_s: float
    allowed_s: float
    """How long their past allows them to be silent."""
    stepped: bool
    """Whether one of them has made a step."""
    ranks: tuple[RankActivity, ...]
