"""The input of `gpuctl bench`, and its limits."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuctl.errors import Usage
from gpuctl.option_table.bench_options import BenchSettings
from gpuctl.scaling.measurements import Layout
from gpuctl.workflow.runs.request.request import TrainRequest, value_of
from inventories.machine import Inventory
from inventories.text import plural

BENCH_WORDS = ("--epochs", "3", "--no-save", "--checkpoint-every", "0", "--no-tensorboard")
"""Words before the user's, which take precedence: written files are not measured, and need not come back."""
WARM_UP_WORDS = ("--epochs", "1")
"""Behind the words of the person: data is downloaded, files and caches are warm."""


@dataclass(frozen=True, kw_only=True)
class BenchRequest(BenchSettings):
    """The settings of `gpuctl bench`."""

    job: TrainRequest = field(default_factory=TrainRequest)
    """The measured job: a script, a module or the built-in job."""


def check(request: BenchRequest) -> None:
    """Raise Usage for a request that can't be measured."""
    words = request.job.words if request.job.built_in else ()
    if request.forecast and any(word.partition("=")[0] == "--global-batch-size" for word in words):
        raise Usage(
            "A forecast counts with the same batch on each rank, which --global-batch-size changes from layout to "
            "layout. Use --batch-size instead."
        )


def check_gpus(layouts: Sequence[Layout], gpus: Sequence[int]) -> None:
    """Raise Usage if a layout has more processes than a node's GPUs."""
    for layout in layouts:
        fewest = min((count for count in gpus[: layout.nodes] if count), default=layout.nproc)
        if layout.nproc > fewest:
            raise Usage(
                f"--layouts {layout.name} is not possible: a node has {plural(fewest, 'GPU')}, and each process "
                "takes one."
            )


def bucket_mb(words: Sequence[str]) -> float | None:
    """Return the value of --bucket-mb, MiB, in accepted words. `None`: its default."""
    value = value_of(words, "--bucket-mb")
    return None if value is None else float(value)


def nodes_of(layouts: Sequence[Layout], inventory: Inventory) -> int | None:
    """Return the number of nodes that the layouts need. `None`: all nodes. Raises Usage for too many."""
    if not layouts:
        return None
    largest = max(layouts, key=lambda layout: layout.nodes)
    count = len(inventory.machines)
    if largest.nodes > count:
        raise Usage(
            f"--layouts {largest.name} is not possible: the cluster {inventory.cluster} has {plural(count, 'node')}. "
            f"Add some: gpuctl up --count {largest.nodes}; or foretell it: gpuctl bench --forecast {largest.name}"
        )
    return largest.nodes
