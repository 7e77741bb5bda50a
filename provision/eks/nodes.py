"""Nodes with GPUs as machines, in an order of their own."""

from collections.abc import Sequence
from dataclasses import replace

from inventories.machine import Machine
from provision.cloud.machines import STATES
from provision.cloud.records import CloudCluster, Instance
from provision.eks import names
from provision.pricing.catalog import SHAPES


def with_gpus(nodes: Sequence[Instance], cluster: CloudCluster) -> tuple[Instance, ...]:
    """Those of the cluster's shape, the oldest first."""
    found = [node for node in nodes if node.shape == cluster.shape]
    return tuple(sorted(found, key=lambda node: (node.launched_at, node.id)))


def machine_of(node: Instance, cluster: CloudCluster, rank: int) -> Machine:
    """The node as a machine."""
    shape = SHAPES.get(cluster.shape)
    return Machine(
        name=f"{cluster.name}-{rank}",
        rank=rank,
        state=STATES[node.state],
        host=node.id,
        user="ray",
        transport="pod",
        context=names.cluster_name(cluster),
        private_ip=node.private_ip or "",
        gpus=shape.gpus if shape else None,
        id=node.id,
        shape=node.shape,
        launched_at=node.launched_at,
    )


def refreshed(machine: Machine, found: Sequence[Machine]) -> Machine:
    """The machine with the state that it has among those that were found; unknown where it is not among them."""
    states = {one.id: one.state for one in found}
    return replace(machine, state=states.get(machine.id, "unknown"))
