"""The options that only `gpuctl tune` has."""

from dataclasses import dataclass
from typing import Literal

from gpuctl.option_table.search_space import MAX_TRIALS, Param, parse_params
from inventories.option import option
from inventories.runs.search import Goal


# fmt: off
@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """The options of `gpuctl tune`, as its request has them. `TrainSettings` declares the others."""

    params: tuple[Param, ...] = option(
        "--param", default=(), metavar="NAME=FROM", read=parse_params,
        help="What to search, and where: 'lr=loguniform(1e-4,1e-1)'. Repeatable.",
    )
    trials: int | None = option(
        "--trials", min=1, max=MAX_TRIALS,
        help="Number of trials (default: 8; with grid: of each combination, default 1).",
    )
    scheduler: Literal["fifo", "asha"] = option(
        "--scheduler", default="fifo", help="asha: end trials early that are behind.",
    )
    metric: str | None = option(
        "--metric", metavar="NAME", help="Metric to optimize (default: the built-in job's accuracy).",
    )
    mode: Goal = option("--goal", default="max", keyword="goal", help="Maximize or minimize the metric.")
    cpus: float = option(
        "--cpus-per-trial", default=1.0, keyword="cpus_per_trial", above=0, help="CPU cores per trial.",
    )
    gpus: float | None = option(
        "--gpus-per-trial", keyword="gpus_per_trial", min=0, metavar="N",
        help="GPUs per trial (default: 1 if there are any).",
    )
    most_at_once: int | None = option(
        "--most-at-once", min=1, metavar="N", help="Maximum number of trials at a time (default: what fits).",
    )
    seed: int = option("--seed", default=0, help="Random seed for sampling trials.")
