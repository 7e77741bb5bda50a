"""What a run is: which ranks on which node, and what is started there. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from gpuctl.workflow.training.request import TrainRequest
from inventories.machine import Inventory, Machine
from inventories.run import Run, RunNode
from remote.shared.constants import NODE_FOLDER, RUNS

if TYPE_CHECKING:
    from remote.checks.facts import Facts
    from remote.launchers.rank_command import Script


def plan_run(
    run_id: str,
    inventory: Inventory,
    request: TrainRequest,
    script: "Script",
    machines: Sequence[Machine],
    facts: "Mapping[str, Facts]",
    started_at: datetime,
    seconds: Mapping[str, float],
) -> Run:
    """The run's record: which ranks on which node, and where they meet.

    A script that drives Ray is one process on the first node; what it starts on the others is its own affair.
    """
    parts: list[RunNode] = []
    first_rank = 0
    hourly_usd = _price(inventory, len(machines))
    if request.drives:
        machines, request = machines[:1], replace(request, nproc_per_node=1)
    for rank, machine in enumerate(machines):
        fact = facts[machine.name]
        asked = request.nproc_per_node
        nproc = asked if isinstance(asked, int) else len(fact.gpus) or 1
        parts.append(
            RunNode(
                name=machine.name,
                rank=rank,
                nproc=nproc,
                first_rank=first_rank,
                # A home may be shared by all nodes.
                run_dir=f"{fact.home}/{NODE_FOLDER}/{RUNS}/{run_id}/{machine.name}",
                host_key=machine.host_key,
                clock_offset_s=round(fact.clock_offset_s, 3),
            )
        )
        first_rank += nproc
    port = facts[machines[0].name].free_port or 0  # the preflight refuses a node that has none
    return Run(
        run=run_id,
        cluster=inventory.cluster,
        mode=request.mode,
        script=script.title,
        args=script.args,
        nodes=tuple(parts),
        master_addr=machines[0].private_ip,
        master_port=port,
        started_at=started_at.isoformat(timespec="milliseconds"),
        seconds={name: round(value, 3) for name, value in seconds.items()},
        hourly_usd=hourly_usd,
        options=request.options(),
    )


def _price(inventory: Inventory, machines: int) -> float | None:
    """USD an hour of the machines that take part: their share of the cluster's price."""
    if inventory.hourly_usd is None:
        return None
    return inventory.hourly_usd * machines / len(inventory.machines)
