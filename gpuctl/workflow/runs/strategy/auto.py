"""`--strategy auto`: the advice for the machines that are there, as plain options of the built-in job."""

from collections.abc import Sequence
from dataclasses import replace

from gpuctl.app import App
from gpuctl.errors import Usage
from gpuctl.text import plural
from gpuctl.workflow.runs.request.request import AUTO, STRATEGY, TrainRequest, value_of
from gpuctl.workflow.runs.strategy.ask import ask, machines_of_shape
from inventories.machine import Machine
from provision.pricing.catalog import SHAPES

PLAIN = "ddp"
"""Where there is no advice."""


def with_strategy(app: App, request: TrainRequest, machines: Sequence[Machine]) -> TrainRequest:
    """Return the request with a strategy in place of `auto`, and say which. Raises Usage where none fits."""
    if not request.built_in or value_of(request.words, STRATEGY) != AUTO:
        return request
    words, said = _advised(request, machines)
    app.output.say(f"--strategy auto: {said}")
    return replace(request, words=words)


def _advised(request: TrainRequest, machines: Sequence[Machine]) -> tuple[tuple[str, ...], str]:
    """Return the job's options, and what to say of them."""
    plain = _plain(request.words)
    shapes = {machine.shape or "" for machine in machines}
    shape = SHAPES.get(min(shapes)) if len(shapes) == 1 else None
    if request.on_cpu or shape is None:
        why = "no GPUs are used" if request.on_cpu else "the machines' GPUs are not known by their shape"
        return plain, f"{PLAIN}, as {why}"
    ranks = request.nproc_per_node if isinstance(request.nproc_per_node, int) else None
    try:
        answer = ask(request.words, [machines_of_shape(shape, len(machines), None, ranks=ranks)])
    except Usage as error:
        return plain, f"{PLAIN}, as there is no advice: {error}"
    best = answer.rows[0]
    where = f"{plural(len(machines), 'machine')} of {shape.name}"
    if not best["fits"]:
        raise Usage(
            f"--strategy auto: the model fits on {where} in no way. The nearest is {best['strategy']}. "
            f"{best['reason']} gpuctl advise says on which machines it fits."
        )
    at_once = plural(best["micro_batch"], "image" if answer.vocabulary is None else "sequence")
    return (
        tuple(best["words"]),
        f"{best['strategy']}, with {at_once} at a time: {best['memory_gb']:.1f} of {shape.gpu_memory_gb} GB by "
        f"arithmetic, on {where}",
    )


def _plain(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words with the plain strategy in place of each `auto`."""
    found = [f"{STRATEGY}={PLAIN}" if word == f"{STRATEGY}={AUTO}" else word for word in words]
    return tuple(
        PLAIN if word == AUTO and before == STRATEGY else word
        for before, word in zip(["", *found[:-1]], found, strict=True)
    )
