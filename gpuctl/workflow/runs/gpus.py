"""The GPUs of a run: `--gpus` takes some of each node's, `--end-if-gpu-below` ends a run by their use."""

import random
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuctl.errors import Usage
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.runs.run import Run
from inventories.text import listed, plural
from remote.shared.constants import RENDEZVOUS_PORTS

if TYPE_CHECKING:
    from remote.facts import Facts

DEFAULT_FOR_S = 3600.0


def check_gpus(request: TrainRequest, facts: "Mapping[str, Facts]") -> None:
    """Raise Usage if a run is to end by the use of its GPUs, and a node has no GPU. `facts`: by node."""
    without = [name for name, fact in facts.items() if not fact.gpus]
    if request.gpu_below is not None and without:
        raise Usage(
            f"--end-if-gpu-below needs a GPU on every node, and {listed(without)} has none for the run: leave it out."
        )


def with_gpu_watch(
    launches: Mapping[str, dict[str, Any]], run: Run, request: TrainRequest
) -> dict[str, dict[str, Any]]:
    """Return the launches with the limit of the GPUs' use, and the way of the nodes to their first one."""
    if request.gpu_below is None:
        return dict(launches)
    watch = {
        "below": request.gpu_below,
        "for_s": request.gpu_below_s or DEFAULT_FOR_S,
        "nodes": [node.name for node in run.nodes],
        "address": run.master_addr,
        "port": random.choice([port for port in RENDEZVOUS_PORTS if port != run.master_port]),  # noqa: S311
        "key": secrets.token_hex(16),
    }
    return {name: {**launch, "gpu_watch": watch} for name, launch in launches.items()}


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

    Runs on parts of a node have copies of their own: no run changes the files of another, or gets its outputs. The
    name is of a GPU, as nodes may share the folder.
    """
    if not request.gpus or request.built_in:
        return destination
    return f"{destination}.{facts.gpus[0]['uuid']}"
