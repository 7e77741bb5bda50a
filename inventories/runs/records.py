"""Records of nodes: how the ranks of a run and a node's part in it began and ended."""

from dataclasses import dataclass

from inventories.runs.end_reasons import STOP_GRACE_S, STOPS, Ended, EndFacts, Reason


@dataclass(frozen=True, kw_only=True)
class LeftProcess:
    """A process that a rank started and that outlived it."""

    pid: int
    command: str
    """Its program, and the script or module that Python or a shell runs; no arguments, which may hold secrets."""
    killed: bool
    """False: the process ended without a kill."""


@dataclass(frozen=True, kw_only=True)
class NodeEnding:
    """The end of a node's ranks, and the processes that they left behind."""

    signal: str | None = None
    """`SIGINT` after Ctrl-C, `SIGTERM` after any other stop. `None`: gpuctl sent no signal."""
    grace_s: float = STOP_GRACE_S
    seconds: float | None = None
    """From the signal, or the first rank's failure, until the last rank had ended. `None`: some still run."""
    active: tuple[int, ...] = ()
    """Ranks that still run."""
    killed: tuple[int, ...] = ()
    """Ranks that had not ended within the grace."""
    left: tuple[LeftProcess, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """A node's record of one of its ranks (`ranks/rank-N.json`). Times are the node's, unix seconds."""

    rank: int
    local_rank: int
    pid: int
    started_at: float
    launched_at: float | None = None
    """When its node began to start its ranks. `None`: not known."""
    ended_at: float | None = None
    exit_code: int | None = None
    """Negative: ended by that signal. `None`: still running, or killed together with its watcher."""
    ended: Ended | None = None
    """Its watcher's further knowledge of its end. `None`: nothing more."""
    facts: EndFacts | None = None
    """What its watcher saw around its end. `None`: it ended well."""
    transports: tuple[str, ...] = ()
    """What NCCL sent over; empty where it was not used or did not tell."""
    metrics_began_at: float | None = None
    """A write of its metrics file, the first that was seen to end with samples. `None`: not known, or not over."""
    metrics_began_samples: float | None = None
    """The samples that the file ended with then."""
    metrics_ended_at: float | None = None
    """The last write of that file. `None`: not known, or not over."""
    joined: bool | None = None
    """Whether it made a store of torch.distributed for several ranks. `None`: not known, or not over."""


@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """A node's record of its launcher's end (`nodes/NAME.json`)."""

    node: str
    launcher: str
    """`torchrun`, …"""
    exit_code: int | None = None
    """The launcher's exit status. `None`: not known."""
    ended_at: float | None = None
    """The node's clock, unix seconds."""
    stopped: bool = False
    """True: it ended because gpuctl (or a person through it) stopped it."""
    stopped_at: float | None = None
    """The time of the order to stop, by the node's clock. `None`: no order came, or it is not known."""
    ended: Ended | None = None
    """What ended the node's part, where that is not the launcher's exit status alone."""
    lost: bool = False
    """True: the node could not be reached, so this is not its own report, and its ranks may still run."""
    ending: NodeEnding | None = None
    """`None`: its ranks ended without signals and left no processes, or it is not known."""

    @property
    def reason(self) -> Reason | None:
        """Return the reason for the end of the node's part. `None`: its launcher exited, or it is not known."""
        return None if self.ended is None else self.ended.reason

    @property
    def failure(self) -> Ended | None:
        """Return the failure of the node itself, not of its launcher or a rank."""
        return self.ended if self.ended is not None and self.ended.reason not in STOPS else None

    @property
    def stop_ordered(self) -> bool:
        """Return whether a command of gpuctl ordered the stop; a failure of another node orders nothing."""
        return self.stopped and (self.reason is None or self.reason in STOPS - {Reason.PEER_FAILED})
