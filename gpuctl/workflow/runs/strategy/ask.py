"""Ask the built-in job's arithmetic, in a child process, for a job's needs on some machines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuctl.errors import Failed
from gpuctl.scaling.network_links import nominal_gb_s
from gpuctl.workflow.runs.request.ask_built_in import answer_in, ask_built_in
from inventories.machine import Machine
from provision.clouds import CLOUDS, Shape, describe
from provision.pricing.catalog import SHAPES

if TYPE_CHECKING:
    from remote.facts import Facts

VIRTUAL_MACHINE_S = 900.0
"""The time that `up` waits for a boot, so it covers packages and a driver. No vendor states a time."""
BARE_METAL_RUNNING_S = 1200.0
"""Bare-metal machines take up to 20 minutes until their cloud calls them running."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of the job's arithmetic."""

    rows: Sequence[dict[str, Any]]
    """Rows of `train.advice.rows.Row`: fitting ones by dollars, then the others."""
    notes: Sequence[str]
    """Its assumptions."""
    vocabulary: int | None
    """Number of tokens. `None`: an image network."""


def setup_s(shape: Shape) -> float:
    """Return the seconds from the order of a machine to the first step, at most as a rule.

    The time before `running`, which AWS does not bill, counts, too.
    """
    return VIRTUAL_MACHINE_S + (BARE_METAL_RUNNING_S if shape.bare_metal else 0.0)


def min_billed_s(shape: Shape) -> float:
    """Return the shortest time that a machine of that shape is billed for; 0 if that is not known."""
    return describe(shape.provider).least_billed_s(shape.name) if shape.provider in CLOUDS else 0.0


def machines_of_shape(shape: Shape, count: int, usd_per_hour: float | None) -> dict[str, Any]:
    """Return `count` machines of a shape, as the job's arithmetic takes them."""
    return {
        "shape": shape.name,
        "count": count,
        "gpus": shape.gpus,
        "gpu": shape.gpu,
        "gpu_memory_gb": shape.gpu_memory_gb,
        "between_gb_s": nominal_gb_s(shape.name, rdma=shape.compute_cluster and shape.bare_metal),
        "hourly_usd": None if usd_per_hour is None else usd_per_hour * count,
        "setup_s": setup_s(shape),
        "min_billed_s": min_billed_s(shape),
    }


def machines_of_nodes(
    machines: Sequence[Machine], facts: "Mapping[str, Facts]", *, ranks: int | None
) -> dict[str, Any] | str:
    """Return the machines of a cluster, as nvidia-smi lists their GPUs; or why there is no advice, in a clause.

    `ranks`: the ranks of each machine. `None`: a rank per GPU. The network between them is that of their shape, if
    gpuctl knows it.
    """
    kinds = {
        tuple((gpu["name"], gpu["memory_mb"]) for gpu in facts[machine.name].gpus) for machine in machines
    }
    if not any(kinds):
        return "the machines have no GPUs"
    gpus = next(iter(kinds))
    if len(kinds) > 1 or len(set(gpus)) > 1:
        return "the machines' GPUs differ"
    name, memory_mb = gpus[0]
    if memory_mb is None:
        return f"nvidia-smi does not report the memory of {name}"
    shapes = {machine.shape or "" for machine in machines}
    shape = SHAPES.get(min(shapes)) if len(shapes) == 1 else None
    return {
        "shape": shape.name if shape else f"{len(gpus)} x {name}",
        "count": len(machines),
        "gpus": len(gpus) if ranks is None else ranks,
        "gpu": name,
        "gpu_memory_gb": memory_mb * 2**20 / 1e9,
        "between_gb_s": shape and nominal_gb_s(shape.name, rdma=shape.compute_cluster and shape.bare_metal),
        "hourly_usd": None,
    }


def ask(
    words: Sequence[str],
    machines: Sequence[dict[str, Any]],
    *,
    batch_tokens: float | None = None,
    tokens: float | None = None,
    runs: Sequence[dict[str, Any]] = (),
    spelled_out: bool = False,
) -> Answer:
    """Ask for the needs of a job with these options on each of the machines. Raises Usage for refused options.

    `runs`: earlier runs, the latest last, whose steps count if their options are the same. `spelled_out`: the options
    of the answer have a precision and epochs, also if `words` name none.
    """
    question = {
        "machines": machines,
        "batch_tokens": batch_tokens,
        "tokens": tokens,
        "runs": runs,
        "spelled_out": spelled_out,
    }
    done = ask_built_in("advice", words, question)
    if done.returncode:
        raise Failed(f"The built-in job could not be asked: {done.stderr.strip()[-500:]}")
    try:
        return Answer(**answer_in(done.stdout, dict))
    except ValueError as error:
        raise Failed(f"The built-in job could not be asked: {error}.") from error
