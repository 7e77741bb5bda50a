"""The whole way on a fake OCI: plan, create, find, destroy."""

import json
from collections import Counter
from typing import Any

import pytest

from inventories.errors import InvalidInput
from provision.errors import Capacity, CreateFailed, NoCapacity
from provision.oci import checks
from provision.oke.cloud import connect
from provision.oke.description import CPU_SHAPE
from provision.oke.node_pools import surplus
from provision.oke.offers import choose
from provision.oke.requests import PREEMPTIBLE
from provision.records import Target
from provision.rented.state import CloudState
from provision.rented.tagged_clusters import list_billed
from tests.fakes.client import FakeCloud
from tests.fakes.kube.api import KubeApi
from tests.provision.lost_pods import lose_first_machine
from tests.provision.oci.building import FastClock
from tests.provision.oci.permissions import OPTIONAL, missing
from tests.provision.oke.building import SHAPE, User, operations, signed_for


def nodes_with_gpus(fake: FakeCloud) -> list[str]:
    return [live_instance["id"] for live_instance in fake.live_instances() if live_instance["shape"] == SHAPE]


def nodes() -> list[dict[str, Any]]:
    """Return the nodes of all node pools, as OKE shows them."""
    api = connect(Target(provider="oke"), clock=FastClock()).api
    pools = api.listed("container.list_node_pools")
    return [node for pool in pools for node in api.call("container.get_node_pool", pool["id"])["nodes"]]


@pytest.mark.slow
def test_cluster_is_made_found_again_and_removed_without_leftovers(user: User, fake: FakeCloud) -> None:
    made = user.up(2)

    assert [machine.rank for machine in made] == [0, 1]
    assert user.provider.find() == made
    kinds = Counter(part.get("kind", "instance") for part in fake.owned())
    assert (kinds["okecluster"], kinds["nodepool"], kinds["instance"]) == (1, 2, 3)
    (billed,) = list_billed(connect(Target(provider="oke"), clock=FastClock()), {SHAPE: 4.0}.get).clusters
    assert len(billed.machines) == 3
    assert billed.most_hourly_usd == pytest.approx(2 * 4.0 + 0.074 + 0.10)
    assert user.down() == ()
    assert fake.owned() == []
    called = {call["operation"] for call in fake.calls()} - OPTIONAL
    assert {"CreateCluster", "DeleteNodePool"} <= called
    assert missing(called, checks.KUBERNETES) == {}


@pytest.mark.slow
def test_second_up_changes_nothing_and_a_larger_one_makes_the_pool_larger(
    user: User, fake: FakeCloud
) -> None:
    user.up(1)
    fake.forget_calls()
    assert not user.plan(1).changes
    user.up(1)
    assert operations(fake) == []
    assert len(user.up(2)) == 2
    assert operations(fake) == ["UpdateNodePool"]


@pytest.mark.slow
def test_another_address_is_let_in(user: User, fake: FakeCloud) -> None:
    made = user.up(1)
    fake.forget_calls()
    plan = user.plan(1, ssh_cidr="203.0.113.9/32")
    assert "will let in 203.0.113.9/32, and not 198.51.100.7/32" in plan.notes[0]
    assert user.up(1, ssh_cidr="203.0.113.9/32") == made
    assert sorted(operations(fake)) == [
        "AddNetworkSecurityGroupSecurityRules",
        "RemoveNetworkSecurityGroupSecurityRules",
    ]
    assert not user.plan(1, ssh_cidr="203.0.113.9/32").notes


@pytest.mark.slow
def test_plan_has_the_control_plane_and_tells_that_nothing_ends_by_itself(user: User) -> None:
    plan = user.plan(2, ttl_s=3600.0)
    assert plan.price.control_plane_usd == 0.1
    assert plan.ends == ()
    assert not plan.ttl_ends_bill
    assert (
        plan.ending
        == "nodes and control plane are billed until `gpuctl down`, or `gpuctl reap --expired` from cron"
    )
    requests = [request.operation for request in plan.requests]
    assert requests == ["CreateCluster", "InstallAddon", "CreateNodePool", "CreateNodePool"]
    assert plan.image.startswith("Oracle-Linux-8.10-Gen2-GPU-2026.09.30")
    assert plan.requests[0].body["kubernetesVersion"] == "v1.34.1"


def test_no_mechanism_ends_the_machines_and_nobody_is_asked(user: User, fake: FakeCloud) -> None:
    plan = user.plan(1, ttl_s=3600.0, spot=True)
    assert any("OKE tries to start another" in note for note in plan.notes)
    CloudState(user.folder).save(plan.details.cluster)
    fake.forget_calls()
    assert user.provider.ends() == ()
    assert fake.calls() == []


@pytest.mark.slow
def test_next_domain_is_taken_where_the_first_has_no_machines(user: User, fake: FakeCloud) -> None:
    """No capacity report names the domain; with a report, `up` would start with a domain that has machines."""
    fake.settings(refused_by_policy=["CreateComputeCapacityReport"])
    first = user.plan(2).details.offer.zones[0].name  # type: ignore[attr-defined]
    fake.settings(capacity={SHAPE: {first: 0}})
    user.up(2)
    assert any(f"no machines in {first}" in line for line in user.said)
    pools = [part for part in fake.owned() if part.get("kind") == "nodepool"]
    assert len(pools) == 2
    assert user.down() == ()
    assert fake.owned() == []


@pytest.mark.slow
def test_next_domain_is_taken_where_a_work_request_alone_tells_that_the_first_has_none(
    user: User, fake: FakeCloud
) -> None:
    fake.settings(refused_by_policy=["CreateComputeCapacityReport"], oke_tells_capacity=False)
    first = user.plan(2).details.offer.zones[0].name  # type: ignore[attr-defined]
    fake.settings(capacity={SHAPE: {first: 0}})
    user.up(2)
    assert any(f"no machines in {first}" in line for line in user.said)
    assert len(nodes_with_gpus(fake)) == 2


@pytest.mark.slow
def test_small_machine_that_was_refused_is_tried_anew(user: User, fake: FakeCloud) -> None:
    fake.settings(capacity={CPU_SHAPE: {"*": 0}})
    with pytest.raises(Capacity):
        user.up(1)
    assert [part for part in fake.owned() if part.get("kind") == "nodepool"] == []
    fake.settings(capacity={})
    assert len(user.up(1)) == 1


@pytest.mark.slow
def test_preemptible_machines_are_used(user: User, fake: FakeCloud, kube: KubeApi) -> None:
    """OKE taints them, for its plug-in of NVIDIA's as well."""
    for node in kube.world.store.listed("nodes"):
        if node["metadata"]["name"].startswith("gpu"):
            node["spec"]["taints"].append({"key": PREEMPTIBLE, "effect": "NoSchedule"})
    assert len(user.up(2, spot=True)) == 2
    (requests,) = [call for call in fake.calls(mutating=True) if call["operation"] == "InstallAddon"]
    assert requests["status"] == 202


def test_preemptible_nodes_are_tolerated_by_the_plug_in(user: User) -> None:
    (requests,) = [
        request for request in user.plan(1, spot=True).requests if request.operation == "InstallAddon"
    ]
    (tolerations,) = requests.body["configurations"]
    assert [request["key"] for request in json.loads(tolerations["value"])] == ["nvidia.com/gpu", PREEMPTIBLE]


def test_node_pool_of_a_compute_cluster_needs_a_policy_that_the_plan_names(user: User) -> None:
    plan = user.plan(2, shape="BM.GPU.H100.8")
    assert any("{COMPUTE_CLUSTER_LAUNCH_INSTANCE} in compartment id ocid1" in note for note in plan.notes)


def test_shape_that_no_image_fits_is_refused(user: User) -> None:
    with pytest.raises(InvalidInput, match=r"do not fit BM\.GPU\.GB200\.4"):
        user.plan(1, shape="BM.GPU.GB200.4")


@pytest.mark.parametrize(
    ("rather", "version", "image"),
    [
        (None, "v1.34.2", "8.10-Gen2-GPU-2026.09.30-0-OKE-1.34.2-1367"),
        ("v1.34.1", "v1.34.1", "9.7-Gen2"),
        ("v1.33.4", "v1.33.1", "8.10-Gen2-GPU"),
    ],
    ids=["newest that is no preview", "the control plane's", "no newer one than the control plane's"],
)
def test_image_and_version(rather: str | None, version: str, image: str) -> None:
    names = [
        "Oracle-Linux-8.10-2026.09.30-0-OKE-1.35.0-1400",
        "Oracle-Linux-8.10-Gen2-GPU-2026.09.30-0-OKE-1.35.0-1400",
        "Oracle-Linux-8.10-2026.09.30-0-OKE-1.34.2-1367",
        "Oracle-Linux-9.7-Gen2-GPU-2026.10.31-0-OKE-1.34.2-1380",
        "Oracle-Linux-8.10-Gen2-GPU-2026.09.30-0-OKE-1.34.2-1290",
        "Oracle-Linux-8.10-Gen2-GPU-2026.09.30-0-OKE-1.34.2-1367",
        "Oracle-Linux-9.7-2026.09.30-0-OKE-1.34.1-1300",
        "Oracle-Linux-9.7-Gen2-GPU-2026.09.30-0-OKE-1.34.1-1300",
        "Oracle-Linux-8.10-2026.09.30-0-OKE-1.33.1-1300",
        "Oracle-Linux-8.10-Gen2-GPU-2026.09.30-0-OKE-1.33.1-1300",
    ]
    sources = [{"sourceName": name, "imageId": name} for name in names]
    result, with_gpus, _ = choose(["v1.33.1", "v1.34.1", "v1.34.2", "v1.35.0"], sources, preferred=rather)
    assert result == version
    assert image in with_gpus["sourceName"]


@pytest.mark.slow
def test_no_domain_with_machines_is_told_with_each_reason(user: User, fake: FakeCloud) -> None:
    fake.settings(capacity={SHAPE: {"*": 0}})
    with pytest.raises(NoCapacity, match=r"OCI has not 2 VM\.GPU\.A10\.2 together"):
        user.up(2)
    assert user.down() == ()
    assert fake.owned() == []


@pytest.mark.slow
def test_shape_without_gpus_is_refused(user: User, fake: FakeCloud) -> None:
    with pytest.raises(InvalidInput, match="has no GPU"):
        user.plan(1, shape="VM.Standard.E4.Flex")
    assert operations(fake) == []


@pytest.mark.slow
def test_cluster_of_another_with_the_same_name_stays(user: User, fake: FakeCloud, tmp_path: object) -> None:
    user.up(1)
    mine = {part["id"] for part in fake.owned()}
    other = User(user.home.parent / "other")
    other.up(1)
    assert other.down() == ()
    assert {part["id"] for part in fake.owned()} == mine


@pytest.mark.slow
def test_slow_end_of_a_control_plane_is_waited_for(user: User, fake: FakeCloud) -> None:
    user.up(1)
    fake.settings(oke_gone_s=120.0)
    assert user.down() == ()
    assert fake.owned() == []


@pytest.mark.slow
def test_lost_replies_make_nothing_twice(user: User, fake: FakeCloud) -> None:
    for operation in ("CreateCluster", "CreateNodePool", "InstallAddon"):
        fake.fault(operation=operation, kind="drop_after", times=1)
    assert len(user.up(2)) == 2
    kinds = Counter(part.get("kind", "instance") for part in fake.owned())
    assert (kinds["okecluster"], kinds["nodepool"], kinds["instance"]) == (1, 2, 3)
    assert user.down() == ()


def test_token_is_a_signed_address_of_one_cluster(user: User) -> None:
    from provision.oci import credentials
    from provision.oke import tokens

    token, _ = tokens.make(credentials.find(Target(provider="oke")), "ocid1.okecluster.oc1.x.y")
    signed = signed_for(token)
    assert signed["path"] == "/cluster_request/ocid1.okecluster.oc1.x.y"
    assert signed["authorization"].startswith("Signature ")
    assert "GMT" in signed["date"]


@pytest.mark.slow
def test_nodes_of_growth_whose_pods_fail_are_ended_and_not_the_one_at_work(
    user: User, fake: FakeCloud, kube: KubeApi
) -> None:
    (saved,) = user.up(1)
    (node,) = nodes_with_gpus(fake)
    kube.world.images["*"] = "slow"
    with pytest.raises(CreateFailed, match="waits for the image"):
        user.up(2)
    assert user.provider.find() == (saved,)
    assert nodes_with_gpus(fake) == [node]
    assert operations(fake)[-1] == "DeleteNode"


@pytest.mark.slow
def test_each_node_is_told_to_end_once(user: User, fake: FakeCloud) -> None:
    """For a while OKE shows a node as running though its deletion is requested."""
    user.up(None, min_count=1, max_count=3)
    user.up(3)
    fake.settings(oke_cluster_s=600.0)
    fake.forget_calls()
    assert [machine.rank for machine in user.up(None)] == [0]
    assert len(nodes_with_gpus(fake)) == 1
    ended = [call for call in fake.calls(mutating=True) if call["operation"] == "DeleteNode"]
    assert len([call for call in ended if call["status"] == 202]) == 2


@pytest.mark.slow
def test_growth_that_fails_ends_the_node_of_no_machine_that_stays(
    user: User, fake: FakeCloud, kube: KubeApi
) -> None:
    """Applies to any rank: here the first is lost, and the second is on the newest node."""
    user.up(1)
    (oldest,) = nodes_with_gpus(fake)
    user.up(2)
    (newest,) = set(nodes_with_gpus(fake)) - {oldest}
    addresses = {node["id"]: node["privateIp"] for node in nodes()}
    lose_first_machine(kube, second_on=addresses[newest])
    with pytest.raises(CreateFailed, match="waits for the image"):
        user.up(2)
    assert nodes_with_gpus(fake) == [newest]


@pytest.mark.slow
def test_end_of_a_node_that_oke_takes_and_fails_at_is_told(user: User, fake: FakeCloud) -> None:
    user.up(None, min_count=1, max_count=2)
    user.up(2)
    fake.settings(oke_end_failure="the instance is in the middle of a live migration")
    with pytest.raises(
        CreateFailed, match=r"could not end a machine of .*billed: the instance is in the middle"
    ):
        user.up(None)
    fake.settings(oke_end_failure="")
    assert [machine.rank for machine in user.up(None)] == [0]
    assert len(nodes_with_gpus(fake)) == 1


def test_nodes_without_a_machine_that_stays_end_first_then_those_that_fail_then_the_newest() -> None:
    machines = [
        {"id": f"node-{at}", "privateIp": f"10.0.0.{at}", "lifecycleState": "ACTIVE"} for at in range(3)
    ]
    made = {"node-0": "2026-11-03", "node-1": "2026-11-01", "node-2": "2026-11-02"}
    assert surplus(machines, 1, (), made) == ["node-0", "node-2"]
    assert surplus(machines, 1, ("10.0.0.0",), made) == ["node-2", "node-1"]
    assert surplus([*machines[:2], {**machines[2], "lifecycleState": "FAILING"}], 2, (), made) == ["node-2"]
    assert surplus(machines, 3, (), made) == []
