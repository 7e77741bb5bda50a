"""The options that only `gpuctl bench` has."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gpuctl.option_table.values import read_layouts
from inventories.option import option

if TYPE_CHECKING:
    from gpuctl.scaling.measurements import Layout

MIN_REPEATS, MAX_REPEATS = 3, 100
"""Timed runs of a layout."""


# fmt: off
@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """The options of `gpuctl bench`, as its request has them. `TrainSettings` declares the others."""

    layouts: "tuple[Layout, ...]" = option(
        "--layouts", default=(), metavar="NxP,…", kind=str, read=partial(read_layouts, flag="--layouts"),
        annotation="Sequence[str]",
        distinctive=True,
        help="Nodes x processes on each node (default: one process, one whole node, all nodes).",
    )
    repeats: int = option(
        "--repeats", default=MIN_REPEATS, min=MIN_REPEATS, max=MAX_REPEATS, distinctive=True,
        help="Timed runs of each layout, after one warm-up run.",
    )
    forecast: "tuple[Layout, ...]" = option(
        "--forecast", default=(), metavar="NxP,…", kind=str, read=partial(read_layouts, flag="--forecast"),
        annotation="Sequence[str]",
        distinctive=True,
        help="Predict speed and cost of these layouts from runs that are measured here first.",
    )
    bandwidth_gb_s: float | None = option(
        "--bandwidth-gb-s", metavar="GB/s", above=0,
        help="Bandwidth between nodes for the forecast (default: measured, or the shape's figure).",
    )
