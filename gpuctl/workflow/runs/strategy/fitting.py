"""Choose the job's machines whose ranks the built-in job's strategy can divide."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuctl.errors import StrategyDoesNotFit, Usage
from gpuctl.workflow.runs.request.ask_built_in import answer_in, ask_built_in
from gpuctl.workflow.runs.request.request import AUTO, ENGINE, STRATEGY, TrainRequest, value_of
from inventories.machine import Machine
from inventories.text import plural

if TYPE_CHECKING:
    from remote.facts import Facts

OPTIONS = (STRATEGY, "--tp", "--pp", ENGINE, "--global-batch-size")
"""Options of the built-in job that exclude some numbers of ranks."""
ANY_NUMBER = ("--strategy", "fsdp", "--tp", "1", "--pp", "1")
"""Options with which the built-in job divides any number of ranks."""
TIMEOUT_S = 60.0
"""For the answer of the job's modules."""


def machines_that_fit(
    request: TrainRequest,
    machines: Sequence[Machine],
    facts: "Mapping[str, Facts]",
    say: Callable[[str], None],
    *,
    fewer: bool,
) -> tuple[Sequence[Machine], Sequence[Machine]]:
    """Return the machines that the job can use, by rank, and the ones left over.

    `fewer`: allow leaving out machines. Raises StrategyDoesNotFit if too few can be used.
    """
    ranks = [ranks_on(request, facts[machine.name]) for machine in machines]
    count, why = max_that_fit(request, ranks)
    if count < ((request.min_nodes or 1) if fewer else len(machines)):
        raise StrategyDoesNotFit(why, hint=_other_options(request, ranks))
    used, over = machines[:count], machines[count:]
    if over:
        names = ", ".join(machine.name for machine in over)
        say(f"{names} can't be used now, and the job runs on {plural(count, 'machine')}: {why}")
    return used, over


def max_that_fit(request: TrainRequest, ranks: Sequence[int]) -> tuple[int, str]:
    """Return how many of the first machines the job can use, and why not all. 0: it can use no machines.

    `ranks`: the number of each machine's ranks.
    """
    counts = range(len(ranks), 0, -1)
    refused = _refusals(request, [ranks[:count] for count in counts])
    usable = next((count for count, why in zip(counts, refused, strict=True) if why is None), 0)
    return usable, refused[0] or ""


def ranks_on(request: TrainRequest, fact: "Facts") -> int:
    """Return the number of a machine's ranks: the requested one, else one per GPU, at least one."""
    requested = request.nproc_per_node
    return requested if isinstance(requested, int) else len(fact.gpus) or 1


def _other_options(request: TrainRequest, ranks: Sequence[int]) -> str:
    """Return options with which the job can resume on all of these machines; empty where that is not known."""
    engine = value_of(request.job_words, ENGINE)
    words = (*ANY_NUMBER, *((ENGINE, "torch") if engine not in (None, "torch") else ()))
    try:
        [refused] = _refusals(replace(request, words=(*request.words, *words)), [ranks])
    except Usage:
        return ""
    return "" if refused else " ".join(words)


def _refusals(request: TrainRequest, layouts: Sequence[Sequence[int]]) -> Sequence[str | None]:
    """Return why the job can't run with each layout, which is the ranks of its machines; `None`: it can.

    Raises Usage where the job refuses its options, or does not answer.
    """
    words = request.job_words if request.built_in and not request.drives else ()
    restricted = any(word.partition("=")[0] in OPTIONS for word in words)
    if not restricted or value_of(words, STRATEGY) == AUTO:  # auto chooses a strategy that fits
        return [None] * len(layouts)
    try:
        done = ask_built_in("refusals", words, layouts, TIMEOUT_S)
        answer: list[str | None] = answer_in(done.stdout, list)
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise Usage(f"The built-in job can't be asked what its options fit: {error!r}.") from error
    return answer
