"""Test the choice of nodes on which pods can run."""

from typing import Any

import pytest

from inventories.errors import InvalidInput
from provision.kubernetes.capacity import cpus_each, gpus_each, rooms, whole_cpus, with_room
from provision.kubernetes.ray_cluster import GPU, INSTANCE_TYPE


def node(
    name: str, gpus: int, *, shape: str = "g5.12xlarge", ready: str = "True", **spec: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {INSTANCE_TYPE: shape}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "8", GPU: str(gpus)} if gpus else {"cpu": "8"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def pod(on: str, gpus: int, phase: str = "Running") -> dict[str, Any]:
    container = {"name": "one", "resources": {"requests": {GPU: str(gpus)}}}
    return {"spec": {"nodeName": on, "containers": [container, {"name": "two"}]}, "status": {"phase": phase}}


def test_nodes_that_take_no_pods_of_ours_do_not_count() -> None:
    taint = {"key": "dedicated", "effect": "NoSchedule"}
    nodes = [
        node("a", 4, taints=[{"key": GPU, "effect": "NoSchedule"}]),
        node("b", 4, taints=[taint]),
        node("c", 4, unschedulable=True),
        node("d", 4, ready="Unknown"),
        node("e", 4, taints=[{**taint, "effect": "PreferNoSchedule"}]),
    ]
    assert [room.name for room in rooms(nodes, [])] == ["a", "e"]


def test_gpus_of_pods_that_have_not_ended_are_taken() -> None:
    result = rooms([node("a", 4), node("b", 4), node("c", 4)], [pod("a", 1), pod("b", 4, "Succeeded")])
    assert [item.free_gpus for item in result] == [3, 4, 4]
    assert with_room(result, None, 4) == (3, 2)
    assert with_room(result, "p5.48xlarge", 4) == (0, 0)
    assert with_room(rooms([node("a", 4)], None), None, 4) == (1, None), "nobody may list the pods"


def test_a_machine_has_all_gpus_of_its_node() -> None:
    mixed = rooms([node("a", 4), node("b", 8, shape="p5.48xlarge"), node("c", 0, shape="m5.large")], [])
    assert gpus_each(mixed, "g5.12xlarge", of_shape=None) == 4
    assert gpus_each(mixed, "g5.xlarge", of_shape=1) == 1, "none is there yet"
    assert gpus_each(mixed[:1] + mixed[2:], None, of_shape=None) == 4
    assert gpus_each(mixed[2:], None, of_shape=None) == 0
    with pytest.raises(InvalidInput, match=r"g5.12xlarge \(4\), p5.48xlarge \(8\). Say which with --shape"):
        gpus_each(mixed, None, of_shape=None)
    with pytest.raises(
        InvalidInput, match=r"No node of the cluster is of the instance type x: it has g5.12xlarge, m5"
    ):
        gpus_each(mixed, "x", of_shape=None)


def test_ray_gives_away_the_cpus_of_the_smallest_node_that_fits() -> None:
    mixed = rooms([node("a", 4), node("b", 0, shape="m5.large")], [])
    assert (cpus_each(mixed, None, 4), cpus_each(mixed, "c5.large", 0)) == (8, 0)
    assert [whole_cpus(item) for item in ("3920m", "8", "0.5", "999m")] == [3, 8, 0, 0]
