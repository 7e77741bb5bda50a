"""The result of a run (`result.json`)."""

from dataclasses import dataclass, field
from typing import Literal

from inventories.codec import OMITTED
from inventories.runs.commit import Commit
from inventories.runs.end_reasons import WAITED_FOR, Cause, Reason
from inventories.runs.hang import Hang
from inventories.runs.outputs import OutputFile, OutputTotal, OutsidePath, RunFile
from inventories.runs.records import NodeEnding
from inventories.runs.run import Checkpoints
from inventories.runs.search import Search
from inventories.runs.usage import RunUse

RunStatus = Literal["running", "succeeded", "failed", "stopped"]

LossSource = Literal["TensorBoard", "Lightning", "Trainer", "log"]
"""The source of the losses of a script that writes no metrics."""


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Wall-clock seconds of a run's phases."""

    total: float | None = None
    connect: float | None = None
    prepare: float | None = None
    preflight: float | None = None
    ray: float | None = field(default=None, metadata=OMITTED)
    """Until Ray's daemons ran on all nodes. `None`: the run was not on Ray."""
    launch: float | None = None
    train: float | None = None
    collect: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepMs:
    """Milliseconds a training step."""

    p50: float | None = None
    p95: float | None = None


@dataclass(frozen=True, kw_only=True)
class Share:
    """Fractions of a step's time, 0 .. 1."""

    compute: float | None = None
    communication: float | None = None
    data: float | None = None

    @property
    def known(self) -> bool:
        """Return whether all three values are known."""
        return None not in (self.compute, self.communication, self.data)


@dataclass(frozen=True, kw_only=True)
class FirstStepParts:
    """The parts of the time to the first step, of the rank that took it last; seconds."""

    imports: float
    """From the launch until the job began: Python, torch and the packages of the job."""
    device: float
    """Until the device was open and the ranks had met."""
    data: float
    model: float
    step: float
    """The step itself; before it, a resumed run reads its checkpoint."""


@dataclass(frozen=True, kw_only=True)
class TrainParts:
    """The parts of the phase `train`, as rank 0 reports them; seconds."""

    start: float
    """From the launch until the model was made."""
    first_steps: float
    """The first step of each batch size, which compile and tune."""
    steps: float
    evaluation: float
    """With the reports of the epochs."""
    checkpoints: float
    """Reading one, and the time for which writing them held up the training."""
    end: float
    """From the last evaluation until the node's ranks were gone: the last checkpoint, the model's file."""


@dataclass(frozen=True, kw_only=True)
class TrainSummary:
    """Values that the job itself reported; `None` for values that it did not report."""

    model: str | None = None
    dataset: str | None = None
    strategy: str | None = None
    device: str | None = None
    precision: str | None = None
    """`fp32`, `bf16`, …"""
    memory_savers: tuple[str, ...] = ()
    """Savers of device memory: `activation_checkpointing`, `cpu_offload`."""
    graphs: bool | None = None
    """Whether its steady steps were CUDA graphs. None: the job has not reported it, or has not ended."""
    epochs: int | None = None
    """The total number of epochs, with the epochs of earlier runs."""
    epochs_before: int | None = None
    """The epochs of earlier runs, whose checkpoint the run resumed from."""
    first_step_s: float | None = None
    """From the launch to the first step of the rank that took it last: imports, data, meeting each other."""
    first_step: FirstStepParts | None = None
    """The parts of `first_step_s`. `None`: the job reported no parts."""
    parts: TrainParts | None = None
    """`None`: the job reported no parts, or did not come to its end."""
    epoch_s: tuple[float, ...] = ()
    samples_per_s: float | None = None
    """Of all ranks together, in steady steps: not of first steps, evaluations and checkpoints."""
    samples_per_s_by: Literal["writes"] | None = field(default=None, metadata=OMITTED)
    """`writes`: lines have no time, so the speed is that of the run from the first write of metrics to the last."""
    loss: tuple[float, ...] = ()
    """Training loss an epoch, or by what `loss_by` says."""
    loss_at: tuple[int | float, ...] = ()
    """The epoch or step of each, as the job counts them. Empty: it does not tell; then they follow each other."""
    loss_from: LossSource | None = None
    """The source of the losses of a script without metrics. `None`: its metrics, or no losses exist."""
    loss_by: Literal["epoch", "step", "line"] | None = None
    """The unit of each loss. Of many steps some are listed, evenly. `line`: the script's lines name neither an epoch
    nor a step, and are counted. `None`: not known."""
    loss_name: str | None = field(default=None, metadata=OMITTED)
    """The name of the loss in the script's lines. `None`: `loss`, or the script wrote no name."""
    accuracy: float | None = None
    """On the held-out split, 0 .. 1."""
    metrics: dict[str, float] = field(default_factory=dict)
    """All that the model was judged by, but its loss: of the test images, else of the last epoch's validation. Of a
    script the last of each other value in its lines."""
    judged_on: Literal["test", "validation"] | None = None
    """The data that `metrics` were computed on. `None`: not known."""
    perplexity: float | None = None
    """Perplexity of text, on the data of `judged_on`."""
    tokens_per_s: float | None = None
    """Of all ranks together, where samples are text."""
    memory_gb: float | None = None
    """The most of any rank. On a GPU all that was allocated, on a CPU weights, gradients and optimizer state."""
    mfu: float | None = None
    """The fraction of the GPUs' peak rate that the model's own operations are (model FLOPs utilisation)."""
    step_ms: StepMs = field(default_factory=StepMs)
    share: Share = field(default_factory=Share)


@dataclass(frozen=True, kw_only=True)
class UnusedMetrics:
    """Lines of GPUCTL_METRICS that no result is made of."""

    lines: int
    """Their number, of all ranks."""
    rank: int
    """The lowest rank that wrote such a line."""
    example: str
    """The first of its lines, shortened."""
    why: str
    """A clause: `it is not JSON`."""


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """A rank of a run."""

    rank: int
    local_rank: int
    node: str
    device: str | None = None
    exit_code: int | None = None
    """Negative: ended by that signal. `None`: not known (the node was lost)."""
    step_ms_p50: float | None = None
    steps: int | None = None
    """The count from the first reported step to the last, both included. `None`: no step was reported."""
    transports: tuple[str, ...] = ()
    """NCCL's transports, by its log: `NET/Socket`, `NET/IB/GDRDMA`, `P2P`, … Empty: not known."""


@dataclass(frozen=True, kw_only=True)
class FirstError:
    """The error that came first, in the cluster's time."""

    rank: int | None
    """`None`: the node itself, not one of its ranks, is what failed, unless ranks were `waited_for`."""
    node: str | None
    """`None`: it is not known which."""
    message: str
    """The sentence for people."""
    reason: Reason
    ranks: tuple[int, ...] = ()
    """The ranks that others waited for until they timed out, as far as they are known."""
    detail: str = ""
    """Words of others in the message: the script's, a library's, the system's, SSH's."""
    cause: Cause | None = None
    """The cause behind the reason. `None`: it is not known, or the reason is complete."""
    place: str | None = None
    """Which part of the model the rank has: `stage 2 of 4`. `None`: all, or it is not known."""

    @property
    def waited_for(self) -> bool:
        """Return whether ranks timed out waiting for other ranks; then the rank to blame may not be known."""
        return self.reason in WAITED_FOR


@dataclass(frozen=True, kw_only=True)
class Result:
    """A run's result, the document of `train --json` and of each element of `results --json`."""

    run: str
    cluster: str
    mode: str
    script: str
    status: RunStatus
    exit_code: int | None
    nnodes: int
    nproc_per_node: int
    world_size: int
    started_at: str
    ended_at: str | None
    seconds: Seconds
    train: TrainSummary
    ranks: tuple[RankResult, ...]
    first_error: FirstError | None
    cost_usd: float | None
    dir: str
    """The run's folder on this computer."""
    usage: RunUse | None = None
    """`None`: not known."""
    resumed_from: str | None = None
    """The run that this one resumes. `None`: it started from the beginning."""
    reason: Reason | None = None
    """The reason for its end. `None`: the run succeeded, is running, or the reason is not known."""
    checkpoints: dict[str, Checkpoints] = field(default_factory=dict)
    """Node → the checkpoints that it left, where they were brought here. What any other node left is not known."""
    outputs: tuple[OutputFile, ...] = ()
    """Files that it wrote into the project's folder on the nodes; of very many a part."""
    output_totals: tuple[OutputTotal, ...] = ()
    """By node, the total number of files. A node is missing if it wrote no files, or has not reported yet."""
    files: tuple[RunFile, ...] = ()
    """The run's files on this computer; of very many files a part."""
    search: Search | None = None
    """The trials of a search. `None`: no search, no trial has ended, or they can't be read."""
    hang: Hang | None = None
    """Why it made no progress, without the stacks. `None`: it is not known to have hung."""
    commit: Commit | None = None
    """As in the run's record."""
    name: str | None = None
    """The name that a person gave it, as are its note and tags."""
    note: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    endings: dict[str, NodeEnding] = field(default_factory=dict)
    """Node → how its ranks were ended, and what they left behind. A node whose ranks just ended is missing."""
    logged_error: FirstError | None = None
    """The exception with which the log of a rank ends although its exit status is 0. `None`: no log ends so."""
    joined: bool | None = None
    """Whether ranks joined each other by torch.distributed. True: a rank made a store for several ranks, as
    `init_process_group` does. False: no rank made such a store. `None`: the run has one rank, or a rank is silent.
    """
    outside: tuple[OutsidePath, ...] = ()
    """Files that the run wrote outside the project's folder, as far as gpuctl found them. No file is copied here."""
    unused_metrics: UnusedMetrics | None = field(default=None, metadata=OMITTED)
    """Lines of metrics that are not used. `None`: all are."""
