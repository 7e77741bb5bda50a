"""What a person asked `gpuctl bench` for, and what of it can't be done."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuctl.errors import Usage
from gpuctl.option_table.bench_options import BenchSettings
from gpuctl.scaling.measurements import Layout
from gpuctl.workflow.runs.request.request import TrainRequest, value_of
from inventories.machine import Inventory
from inventories.text import plural

BENCH_WORDS = ("--epochs", "3", "--no-save", "--checkpoint-every", "0", "--no-tensorboard")
"""Before the words of the person, which win: what is written is not measured, and need not come back."""
WARM_UP_WORDS = ("--epochs", "1")
"""Behind the words of the person: data is downloaded, files and caches are warm."""


@dataclass(frozen=True, kw_only=True)
class BenchRequest(BenchSettings):
    """The settings of `gpuctl bench`."""

    job: TrainRequest = field(default_factory=TrainRequest)
    """What is measured: a script, a module or the built-in job."""


def check(request: BenchRequest) -> None:
    """Raises Usage for what can't be measured."""
    words = request.job.words if request.job.built_in else ()
    if request.forecast and any(word.partition("=")[0] == "--global-batch-size" for word in words):
        raise Usage(
            "A forecast counts with the same batch on each rank, which --global-batch-size changes from layout to "
            "layout. Use --batch-size instead."
        )


def check_gpus(layouts: Sequence[Layout], gpus: Sequence[int]) -> None:
    """Raises Usage where a layout has more processes than a node that has GPUs has of them."""
    for layout in layouts:
        fewest = min((count for count in gpus[: layout.nodes] if count), default=layout.nproc)
        if layout.nproc > fewest:
            raise Usage(
                f"--layouts {layout.name} is not possible: a node has {plural(fewest, 'GPU')}, and each process "
                "takes one."
            )


def bucket_mb(words: Sequence[str]) -> float | None:
    """The job's --bucket-mb, MiB, of words that it has accepted; `None`: its default."""
    given = value_of(words, "--bucket-mb")
    return None if given is None else float(given)


def nodes_of(layouts: Sequence[Layout], inventory: Inventory) -> int | None:
    """How many nodes the layouts take; `None`: all. Raises Usage where there are not as many."""
    if not layouts:
        return None
    largest = max(layouts, key=lambda layout: layout.nodes)
    there = len(inventory.machines)
    if largest.nodes > there:
        raise Usage(
            f"--layouts {largest.name} is not possible: the cluster {inventory.cluster} has {plural(there, 'node')}. "
            f"Add some: gpuctl up --count {largest.nodes}; or foretell it: gpuctl bench --forecast {largest.name}"
        )
    return largest.nodes
