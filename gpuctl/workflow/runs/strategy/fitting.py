"""Which of a job's machines it can use: the built-in job's strategy has to divide their ranks."""

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
"""Those of the built-in job that not every number of ranks can have."""
ANY_NUMBER = ("--strategy", "fsdp", "--tp", "1", "--pp", "1")
"""Options with which the built-in job divides any number of ranks."""
MOST_S = 60.0
"""That the job's modules may take to answer."""


def machines_that_fit(
    request: TrainRequest,
    machines: Sequence[Machine],
    facts: "Mapping[str, Facts]",
    say: Callable[[str], None],
    *,
    fewer: bool,
) -> tuple[Sequence[Machine], Sequence[Machine]]:
    """Return the machines that the job can use, by rank, and those that are left over.

    `fewer`: whether it may leave out machines. Raises StrategyDoesNotFit where too few are left.
    """
    ranks = [ranks_on(request, facts[machine.name]) for machine in machines]
    most, why = most_that_fit(request, ranks)
    if most < ((request.min_nodes or 1) if fewer else len(machines)):
        raise StrategyDoesNotFit(why, hint=_other_options(request, ranks))
    used, over = machines[:most], machines[most:]
    if over:
        names = ", ".join(machine.name for machine in over)
        say(f"{names} can't be used now, and the job runs on {plural(most, 'machine')}: {why}")
    return used, over


def most_that_fit(request: TrainRequest, ranks: Sequence[int]) -> tuple[int, str]:
    """Return how many of the first machines the job can use, and why not all; 0 where it can use none.

    `ranks`: how many each machine has.
    """
    counts = range(len(ranks), 0, -1)
    refused = _refusals(request, [ranks[:count] for count in counts])
    most = next((count for count, why in zip(counts, refused, strict=True) if why is None), 0)
    return most, refused[0] or ""


def ranks_on(request: TrainRequest, fact: "Facts") -> int:
    """Return how many ranks a machine has: those asked for, else one a GPU, or one where there is none."""
    asked = request.nproc_per_node
    return asked if isinstance(asked, int) else len(fact.gpus) or 1


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
    given = any(word.partition("=")[0] in OPTIONS for word in words)
    if not given or value_of(words, STRATEGY) == AUTO:  # which then is one that fits
        return [None] * len(layouts)
    try:
        done = ask_built_in("refusals", words, layouts, MOST_S)
        answer: list[str | None] = answer_in(done.stdout, list)
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise Usage(f"The built-in job can't be asked what its options fit: {error!r}.") from error
    return answer
