"""The record of a run (`run.json`)."""

from dataclasses import dataclass, field
from typing import Literal

from inventories.runs.commit import Commit
from inventories.runs.end_reasons import STOP_GRACE_S
from inventories.runs.hang import OnHang


@dataclass(frozen=True, kw_only=True)
class RunNode:
    """The part of a node in a run."""

    name: str
    rank: int
    """Node rank within the run, 0 .. nnodes-1."""
    nproc: int
    """Processes on this node."""
    first_rank: int
    """Global rank of its local rank 0."""
    run_dir: str
    """Absolute path of the run's folder on the node."""
    host_key: str | None = None
    """The machine's pinned key, which differs from the key of a later machine with its name. `None`: not known."""
    machine_id: str | None = None
    """The machine's id, of one that has no key: a pod's. `None`: it has a key."""
    clock_offset_s: float = 0.0
    """The node's clock minus this computer's, seconds."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that the run takes, of which no other run has any. Empty: all of the node."""


@dataclass(frozen=True, kw_only=True)
class Misplaced:
    """Options of gpuctl that were typed after the script, so that the script got them."""

    command: tuple[str, ...]
    """The words before the script, from the command's name on, without the values of variables."""
    options: tuple[tuple[str, ...], ...]
    """The words of each option."""
    unknown: tuple[str, ...] = ()
    """The names of options that the source of the script does not define."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a person, as far as a run that resumes this run takes them over."""

    name: str | None = None
    note: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    project: str | None = None
    """The folder on this computer in whose copy the script ran. `None`: the built-in job's own."""
    root: str | None = None
    """The folder that was sent, which holds it. `None`: `project` itself."""
    include: tuple[str, ...] = ()
    """Files and folders that were sent though git ignores them."""
    bring: tuple[str, ...] = ()
    """Patterns of files in the project's folder to bring back in any size; `none`: no file."""
    nnodes: int | None = None
    """The maximum number of nodes. `None`: all."""
    min_nodes: int | None = None
    """`None`: it was not elastic."""
    nproc_per_node: int | None = None
    gpus: int | None = None
    """GPUs of each node. `None`: all."""
    device: Literal["cpu"] | None = None
    """cpu: the script must not see any GPU. `None`: all devices of the node."""
    env: tuple[str, ...] = ()
    """Names only: a value may be a secret."""
    python: str | None = None
    pip: tuple[str, ...] = ()
    requirements: str | None = None
    wheels: str | None = None
    install_project: bool = True
    """False: the project itself was not to be installed."""
    hang_after: str | None = None
    """Seconds without progress after which it counted as hung, or `off`. `None`: by its own past."""
    on_hang: OnHang | None = None
    """`None`: not said."""
    stop_grace_s: float | None = None
    """Seconds that its ranks get to save before SIGKILL. `None`: STOP_GRACE_S."""
    added_args: int = 0
    """The number of its script's last arguments that were given when it, or a run before it, was resumed."""
    misplaced: Misplaced | None = None
    """Not taken over. `None`: no option of gpuctl stood after the script."""


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """A summary of a run's checkpoints, in one place."""

    files: int
    bytes: int
    newest: str
    """Name of the newest one's file."""
    written_ns: int
    """When that was written, by its machine's clock; unix time in ns. A copy on the same machine keeps it."""
    lacks: tuple[str, ...] = ()
    """Files of the newest that are not there: the ranks of other nodes wrote them. Empty: it is whole."""
    torn: tuple[str, ...] = ()
    """Files of a script that are left out, as they are only half written: the run was killed while it saved."""

    @property
    def in_parts(self) -> bool:
        """Return whether the newest checkpoint, of the built-in job, is a folder of which each rank reads a part."""
        return not self.newest.endswith(".pt")


@dataclass(frozen=True, kw_only=True)
class BeganWith:
    """The checkpoints that a run began with."""

    run: str
    """The run that wrote them: the one that was resumed, or one that it resumed itself."""
    nodes: dict[str, Checkpoints]
    """Node → the checkpoints that its ranks got. A missing node got no checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The record of a run: written before the launch, enough to follow, stop and collect the run later."""

    run: str
    """The run's id, sortable by time: `20261121-054625-3fa9`."""
    cluster: str
    mode: str
    """The launcher."""
    script: str
    """The script, `-m MODULE`, or `built-in`."""
    args: tuple[str, ...]
    nodes: tuple[RunNode, ...]
    master_addr: str
    master_port: int
    started_at: str
    """ISO 8601, UTC."""
    seconds: dict[str, float] = field(default_factory=dict)
    """The phases that were over when the record was written: connect, prepare, preflight, ray, launch."""
    hourly_usd: float | None = None
    shape: str | None = None
    """Shape of all its machines. `None`: the machines have several shapes, or no shape."""
    resumed_from: str | None = None
    """The run that this one resumes, if that left checkpoints or not."""
    first_run: str | None = None
    """The first run of its job, which it continues by restarts, resumes or elastic changes. `None`: itself."""
    began_with: BeganWith | None = None
    """`None`: with no checkpoints."""
    options: RunOptions | None = None
    """`None`: not known."""
    names_ranks: bool = True
    """False: the script's sources name no ranks or other processes, so that each rank does the same."""
    uneven_files: str = ""
    """The sentence on files of earlier runs that only some of its nodes had. Empty: no such files."""
    commit: Commit | None = None
    """Of the project that was sent. `None`: it is in no git repository."""

    @property
    def name(self) -> str | None:
        """Return the name that a person gave it."""
        return self.options.name if self.options else None

    @property
    def nnodes(self) -> int:
        """Return the number of its nodes."""
        return len(self.nodes)

    @property
    def built_in(self) -> bool:
        """Return whether the run ran the built-in job."""
        return self.script == "built-in" and (self.options is None or self.options.project is None)

    @property
    def job(self) -> str:
        """Return the id of its job: that of the job's first run."""
        return self.first_run or self.run

    @property
    def searched(self) -> bool:
        """Return whether the run was a search, whose trials leave no checkpoints to resume from."""
        return self.script.startswith("tune ")

    @property
    def script_words(self) -> tuple[str, ...]:
        """The script as words of a command line: `-m` and a module, or the script's path."""
        return tuple(self.script.split()) if self.script.startswith("-m ") else (self.script,)

    @property
    def world_size(self) -> int:
        """Processes on all nodes."""
        return sum(node.nproc for node in self.nodes)

    @property
    def stop_grace_s(self) -> float:
        """Seconds that its ranks get to save before SIGKILL."""
        grace_s = None if self.options is None else self.options.stop_grace_s
        return STOP_GRACE_S if grace_s is None else grace_s
