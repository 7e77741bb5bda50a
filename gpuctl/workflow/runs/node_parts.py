"""`--gpus`: runs that take some of a node's GPUs, and leave the others to other runs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuctl.errors import Usage
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.text import plural

if TYPE_CHECKING:
    from remote.facts import Facts


def with_parts(request: TrainRequest, facts: "Mapping[str, Facts]") -> "Mapping[str, Facts]":
    """Return the facts of the nodes as if they had only the GPUs that the run takes.

    A node with too few free GPUs stays as it is, busy with other runs. Raises Usage for a node with too few GPUs.
    """
    from remote.facts import with_free_gpus

    if not request.gpus:
        return facts
    for name, fact in facts.items():
        if len(fact.gpus) < request.gpus:
            raise Usage(
                f"--gpus {request.gpus} is not possible: {name} has {plural(len(fact.gpus), 'usable GPU')}."
            )
    return {name: with_free_gpus(fact, request.gpus) for name, fact in facts.items()}


def folder_of_part(destination: str, request: TrainRequest, facts: "Facts") -> str:
    """Return the folder on a node that receives the files of a run.

    Runs on parts of a node have copies of their own: no run changes the files of another, or gets its outputs.
    """
    if not request.gpus or request.built_in:
        return destination
    return f"{destination}.gpu{facts.gpus[0]['index']}"
