"""`--strategy auto`: the advice for the machines of a cluster, as plain options of the built-in job."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuctl.app import App
from gpuctl.errors import Usage
from gpuctl.workflow.runs.request.request import PLAIN, TrainRequest, is_auto, with_plain_strategy
from inventories.machine import Machine
from inventories.text import plural

if TYPE_CHECKING:
    from remote.facts import Facts


def with_strategy(
    app: App, request: TrainRequest, machines: Sequence[Machine], facts: "Mapping[str, Facts]"
) -> TrainRequest:
    """Return the request with the advised strategy in place of `auto`, and print the choice.

    Raises Usage if the model fits in no way.
    """
    if not is_auto(request):
        return request
    words, choice = _advised(request, machines, facts)
    app.output.say(f"--strategy auto: {choice}")
    return replace(request, words=words)


def _advised(
    request: TrainRequest, machines: Sequence[Machine], facts: "Mapping[str, Facts]"
) -> tuple[tuple[str, ...], str]:
    """Return the job's options, and the choice in words."""
    from gpuctl.workflow.runs.strategy.ask import ask, machines_of_nodes

    ranks = request.nproc_per_node if isinstance(request.nproc_per_node, int) else None
    group = "no GPUs are used" if request.on_cpu else machines_of_nodes(machines, facts, ranks=ranks)
    if isinstance(group, str):
        return with_plain_strategy(request).words, f"{PLAIN}, as {group}"
    try:
        answer = ask(request.words, [group])
    except Usage as error:
        return with_plain_strategy(request).words, f"{PLAIN}, as there is no advice: {error}"
    best = answer.rows[0]
    where = f"{plural(len(machines), 'machine')} of {group['shape']}"
    if not best["fits"]:
        raise Usage(
            f"--strategy auto: the model fits on {where} in no way. The nearest is {best['strategy']}. "
            f"{best['reason']} gpuctl advise says on which machines it fits."
        )
    at_once = plural(best["micro_batch"], "image" if answer.vocabulary is None else "sequence")
    memory = f"{best['memory_gb']:.1f} of {group['gpu_memory_gb']:.0f} GB"
    choice = f"{best['strategy']}, with {at_once} at a time: {memory} by arithmetic, on {where}"
    return tuple(best["words"]), choice
