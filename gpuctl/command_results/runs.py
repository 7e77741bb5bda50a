"""Results of commands on runs: `runs`, `logs`, `export`, `advise`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from inventories.runs.result import RunStatus


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A run in the list of all, an element of `runs --json`."""

    run: str
    cluster: str | None
    mode: str | None
    script: str | None
    args: tuple[str, ...]
    status: "RunStatus | Literal['unreadable']"
    world_size: int | None
    started_at: str | None
    """ISO 8601, UTC."""
    seconds: float | None
    """From its start to its end."""
    accuracy: float | None
    cost_usd: float | None
    name: str | None = None
    note: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    loss: float | None = None
    """Its last training loss."""
    changed: str | None = None
    """Settings that the last run of its script did not have: `lr 0.1, 1a2b3c4d5e`. Empty: no such settings.
    `None`: the first run of its script, or not known."""


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line that a rank wrote."""

    rank: int
    text: str


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """The weights of a run as a file: the document of `export --json`."""

    run: str
    checkpoint: str
    """The name of the checkpoint that they are of."""
    file: str
    bytes: int
    sha256: str
    tensors: int
    parameters: int
    """Numbers in all tensors, buffers among them."""
    left_out: tuple[str, ...]
    """Why newer checkpoints were left out: `step-000010/__1_0.distcp is torn, …`."""


@dataclass(frozen=True, kw_only=True)
class AdviceRow:
    """A strategy on some machines, an element of `advise --json`. `None`: not known."""

    shape: str
    count: int
    strategy: str
    precision: str
    fits: bool
    memory_gb: float | None
    """Of the fullest rank."""
    gpu_memory_gb: float
    memory: dict[str, float] | None
    """By part, GB."""
    step_s: tuple[float, float] | None
    """At best and at worst."""
    samples_per_s: float | None
    tokens_per_s: float | None
    """`None`, too: samples are images."""
    mfu: float | None
    hourly_usd: float | None
    usd_per_epoch: float | None
    """Of its steps alone."""
    total_s: tuple[float, float] | None
    """Boot, set-up and training, at best and at worst; on a cluster's machines the training alone."""
    usd_total: float | None
    """Of that time, in the middle, and at least of the shortest time that the cloud bills."""
    batch_samples: int | None
    batch_tokens: int | None
    micro_batch: int | None
    """Samples of a rank that are computed at once."""
    gradient_accumulation_steps: int | None
    reason: str | None
    """The reason against it, a missing fact, or `measured in` the run whose steps count."""
    command: str | None
    """Commands that rent the machines, train on them and remove them; on a cluster's machines, the one that trains.
    `None`: the job does not fit, or no command does it: see `reason`."""
