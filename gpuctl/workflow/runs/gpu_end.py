"""`--end-if-gpu-below`: which runs can have it, and what their nodes need for it."""

import random
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuctl.errors import Usage
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.runs.run import Run
from inventories.text import listed
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
