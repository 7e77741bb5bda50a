"""Measured steps: the speed of a run of the same job on the same machines goes before any arithmetic. Pure."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from train.advice.candidates import Layout
from train.advice.machines import Machines
from train.command_line import parse
from train.distributed.environment import DistributedEnvironment
from train.errors import BadOptions
from train.options import Options
from train.strategies.degrees import batch_of_rank, degrees, micro_batches

SIZES = frozenset({"tp", "pp", "batch_size", "global_batch_size", "gradient_accumulation_steps"})
"""Options that say how batches and ranks are divided. What they come to is compared: it has several spellings."""
BESIDE_STEPS = frozenset({
    "epochs", "validation", "seed", "lr", "lr_scaling", "schedule", "warmup_epochs", "weight_decay", "download",
    "checkpoint_every", "keep_checkpoints", "log_every", "tensorboard", "save", "timeout_s",
})  # fmt: skip
"""Options that can't make a step longer. All others count, even options added later."""
DECIDE = tuple(field.name for field in fields(Options) if field.name not in SIZES | BESIDE_STEPS)
FILES = ("data_dir", "tokenizer")
"""Options for files, whose paths differ on the nodes. Their names are compared."""
SPREAD = 0.10
"""Possible deviation of the next run's speed from an earlier run's."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """The speed of an earlier run."""

    run: str
    shape: str
    count: int
    """Machines."""
    ranks: int
    """Of each machine."""
    words: tuple[str, ...]
    """The job's options."""
    samples_per_s: float
    """Of all ranks together, in steady steps."""


def measured(runs: Sequence[MeasuredRun], layout: Layout, machines: Machines) -> MeasuredRun | None:
    """Return the latest run of the same job on the same machines."""
    requested = (machines.shape, machines.count, machines.gpus)
    env = DistributedEnvironment(world_size=machines.world_size, local_world_size=machines.gpus)
    for run in reversed(runs):
        if (run.shape, run.count, run.ranks) == requested and _is_same(run, layout, env):
            return run
    return None


def range_of(run: MeasuredRun, layout: Layout) -> tuple[float, float]:
    """Return the shortest and longest step to expect, seconds."""
    step_s = layout.global_batch / run.samples_per_s
    return step_s * (1 - SPREAD), step_s * (1 + SPREAD)


def _is_same(run: MeasuredRun, layout: Layout, env: DistributedEnvironment) -> bool:
    options = _options(run.words)
    if options is None or any(_value(options, name) != _value(layout.options, name) for name in DECIDE):
        return False
    try:
        sizes = degrees(options, env)
        batch = batch_of_rank(options, sizes.replicas) or options.default_batch_size
        number = micro_batches(options, sizes, batch)
    except BadOptions:
        return False
    return (sizes, batch * sizes.replicas, number) == (layout.sizes, layout.global_batch, layout.batch.number)


def _value(options: Options, name: str) -> object:
    """Return an option's value as it is compared."""
    value: object = getattr(options, name)
    return Path(str(value)).name if name in FILES and value is not None else value


def _options(words: Sequence[str]) -> Options | None:
    """Return the options of an earlier run. `None`: this release has different options."""
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        return parse(words)
    return None
