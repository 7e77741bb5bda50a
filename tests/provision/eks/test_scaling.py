"""Machines that runs start and end, on a fake AWS: `--min` and `--max`."""

from dataclasses import replace
from typing import Any

import boto3
import pytest

from inventories.machine import Machine
from provision.eks.auto_scaling_groups import surplus
from provision.errors import CreateFailed, Denied, LeftBehind, NoCapacity, RefusedPlan
from provision.rented.managed_kubernetes.plan import ServicePlan
from provision.rented.state import CloudState
from tests.fakes.client import FakeCloud
from tests.fakes.kube.api import KubeApi
from tests.provision.eks.building import User, operations
from tests.provision.lost_pods import lose_first_machine

LIMITS = {"min_count": 0, "max_count": 2}


def nodes_with_gpus(fake: FakeCloud) -> list[str]:
    return [
        live_instance["id"]
        for live_instance in fake.live_instances()
        if live_instance["shape"] == "g5.12xlarge"
    ]


def with_gpus(fake: FakeCloud) -> int:
    return len(nodes_with_gpus(fake))


def instances() -> list[dict[str, Any]]:
    result = boto3.client("ec2").describe_instances(
        Filters=[{"Name": "instance-type", "Values": ["g5.12xlarge"]}]
    )
    return [dict(item) for group in result["Reservations"] for item in group["Instances"]]


def ranks(machines: tuple[Machine, ...]) -> list[int]:
    return [machine.rank for machine in machines]


@pytest.mark.slow
def test_machines_come_for_a_run_and_go_after_it(user: User, fake: FakeCloud) -> None:
    plan = user.plan(None, **LIMITS)
    assert (plan.create, plan.end, plan.changes) == ((), (), True)
    assert "2 at most, and ends them after it; none stay between runs" in plan.notes[0]
    assert user.up(None, **LIMITS) == ()
    assert with_gpus(fake) == 0

    assert ranks(user.up(2)) == [0, 1]
    assert with_gpus(fake) == 2
    plan = user.plan(None)
    assert len(plan.end) == 2
    assert user.up(None) == ()
    assert with_gpus(fake) == 0

    assert ranks(user.up(1)) == [0]
    assert user.down() == ()
    assert fake.owned() == []


@pytest.mark.slow
def test_some_can_stay_and_the_limits_can_change(user: User, fake: FakeCloud) -> None:
    assert ranks(user.up(None, min_count=1, max_count=2)) == [0]
    assert ranks(user.up(2)) == [0, 1]
    assert ranks(user.up(None)) == [0]
    with pytest.raises(
        RefusedPlan, match=r"has 2 machines at most, not 3\. For more: `gpuctl up --min 1 --max 3`"
    ):
        user.plan(3)
    assert ranks(user.up(None, min_count=0, max_count=3)) == []
    assert ranks(user.up(3)) == [0, 1, 2]
    assert with_gpus(fake) == 3


@pytest.mark.slow
def test_machines_come_in_another_zone_where_the_empty_group_has_none(user: User, fake: FakeCloud) -> None:
    user.up(None, **LIMITS)
    fake.settings(capacity={"g5.12xlarge": {"us-east-1a": 0}})
    assert ranks(user.up(2)) == [0, 1]
    (zone,) = {
        live_instance["place"]
        for live_instance in fake.live_instances()
        if live_instance["shape"] == "g5.12xlarge"
    }
    assert zone != "us-east-1a"
    assert user.up(None) == ()


@pytest.mark.slow
def test_price_at_most_counts_all_machines_of_a_run(user: User) -> None:
    with pytest.raises(RefusedPlan, match="--max-cost"):
        user.plan(None, min_count=0, max_count=4, ttl_s=36_000.0, max_cost_usd=50.0)
    plan = user.plan(None, min_count=0, max_count=1, ttl_s=36_000.0, max_cost_usd=80.0)
    assert plan.hourly_usd is not None
    assert plan.hourly_usd < 1


@pytest.mark.slow
def test_machines_that_stay_outlive_growth_that_fails(user: User, fake: FakeCloud) -> None:
    user.up(None, min_count=1, max_count=2)
    (saved,) = [
        live_instance["id"]
        for live_instance in fake.live_instances()
        if live_instance["shape"] == "g5.12xlarge"
    ]
    fake.settings(capacity={"g5.12xlarge": {f"us-east-1{letter}": 1 for letter in "abcdef"}})
    with pytest.raises(NoCapacity):
        user.up(2)
    assert saved in {live_instance["id"] for live_instance in fake.live_instances()}
    assert "DeleteNodegroup" not in {call["operation"] for call in fake.calls(mutating=True)}


@pytest.mark.slow
def test_growth_that_was_cut_off_and_fails_again_ends_no_machine_at_work(user: User, fake: FakeCloud) -> None:
    user.up(None, min_count=1, max_count=2)
    (saved,) = [
        live_instance["id"]
        for live_instance in fake.live_instances()
        if live_instance["shape"] == "g5.12xlarge"
    ]
    fake.settings(capacity={"g5.12xlarge": {f"us-east-1{letter}": 1 for letter in "abcdef"}})

    def interrupt(line: str) -> None:
        if "waiting for the node group" in line or "no machines in" in line:
            raise KeyboardInterrupt

    plan = user.plan(2)
    with pytest.raises(KeyboardInterrupt):
        user.provider.create(plan, user.folder.journal, interrupt)
    with pytest.raises(NoCapacity):
        user.up(2)
    assert saved in {live_instance["id"] for live_instance in fake.live_instances()}
    assert "DeleteNodegroup" not in {call["operation"] for call in fake.calls(mutating=True)}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["refuses", "is gone"])
def test_machines_end_while_the_api_server_does_not_answer(
    user: User, fake: FakeCloud, kube: KubeApi, way: str
) -> None:
    user.up(None, **LIMITS)
    user.up(2)
    if way == "refuses":
        kube.knows = lambda _: False
    else:
        for path in (user.folder.kubeconfig_path,):
            path.write_text(path.read_text().replace(f":{kube.port}", ":9"))
        fake.settings(eks_endpoint="http://127.0.0.1:9")
    assert [item.state for item in user.provider.find()] == ["unknown", "unknown"]
    assert user.up(None) == ()
    assert with_gpus(fake) == 0
    assert any("pods go with their nodes" in line for line in user.said)
    assert user.down() == ()
    assert fake.owned() == []


@pytest.mark.slow
def test_machines_end_while_the_own_address_is_not_known(
    user: User, fake: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.up(None, **LIMITS, ssh_cidr=None)
    user.up(2, ssh_cidr=None)
    monkeypatch.setenv("GPUCTL_ADDRESS_URL", "http://127.0.0.1:9")
    plan = user.plan(None, ssh_cidr=None)
    assert "who is let in stays as it is" in plan.notes[0]
    assert user.up(None, ssh_cidr=None) == ()
    assert with_gpus(fake) == 0


@pytest.mark.slow
def test_machines_end_while_the_cloud_does_not_tell_of_their_shape(user: User, fake: FakeCloud) -> None:
    user.up(None, **LIMITS)
    user.up(2)
    fake.settings(denied=["DescribeInstanceTypes"])
    assert user.up(None) == ()
    assert with_gpus(fake) == 0
    with pytest.raises(Denied):
        user.up(1)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fails", "is interrupted"])
def test_nodes_of_growth_whose_pods_fail_are_ended(
    user: User, fake: FakeCloud, kube: KubeApi, way: str
) -> None:
    (saved,) = user.up(1)
    (node,) = nodes_with_gpus(fake)
    kube.world.images["*"] = "slow"
    plan = user.plan(2)
    fake.forget_calls()

    def say(line: str) -> None:
        user.said.append(line)
        if way == "is interrupted" and "waits for the image" in line:
            raise KeyboardInterrupt

    with pytest.raises(CreateFailed if way == "fails" else KeyboardInterrupt):
        user.provider.create(plan, user.folder.journal, say)
    if way == "is interrupted":
        assert any("`gpuctl up --count 1` or `gpuctl down` ends them" in line for line in user.said)
        assert user.up(1) == (saved,)
    assert user.provider.find() == (saved,)
    assert nodes_with_gpus(fake) == [node], "the one at work, not the newer one"
    assert operations(fake).count("TerminateInstanceInAutoScalingGroup") == 1


@pytest.mark.slow
def test_growth_that_fails_ends_no_node_where_it_is_not_known_which_are_at_work(
    user: User, fake: FakeCloud, kube: KubeApi
) -> None:
    user.up(1)
    (node,) = nodes_with_gpus(fake)
    kube.world.images["*"] = "slow"

    def say(line: str) -> None:
        if "waits for the image" in line:
            kube.denied.add(("list", "pods"))  # the API server does not tell us any more

    plan = user.plan(2)
    fake.forget_calls()
    with pytest.raises(
        LeftBehind,
        match=r"Which nodes are in use now is not known.*`gpuctl up --count 1` or `gpuctl down` ends",
    ):
        user.provider.create(plan, user.folder.journal, say)
    assert node in nodes_with_gpus(fake)
    assert "TerminateInstanceInAutoScalingGroup" not in operations(fake)
    kube.denied.clear()
    del kube.world.images["*"]
    assert len(user.up(2)) == with_gpus(fake) == 2


@pytest.mark.slow
def test_growth_that_fails_ends_the_node_of_no_machine_that_stays(
    user: User, fake: FakeCloud, kube: KubeApi
) -> None:
    """Applies to any rank: here the first is lost, and the second is on the newest node."""
    user.up(2)
    machines = instances()
    (newest,) = surplus([machine["InstanceId"] for machine in machines], machines, 1, ())
    addresses = {machine["InstanceId"]: machine["PrivateIpAddress"] for machine in machines}
    lose_first_machine(kube, second_on=addresses[newest])
    with pytest.raises(CreateFailed, match="waits for the image"):
        user.up(2)
    assert nodes_with_gpus(fake) == [newest]


@pytest.mark.slow
def test_group_that_has_no_machine_for_one_growth_has_them_for_the_next(user: User, fake: FakeCloud) -> None:
    """EKS reports it as degraded, with the old issue, and refuses changes until machines come."""
    user.up(None, min_count=1, max_count=2)
    fake.settings(capacity={"g5.12xlarge": {f"us-east-1{letter}": 1 for letter in "abcdef"}})
    with pytest.raises(NoCapacity):
        user.up(2)
    assert with_gpus(fake) == 1, "Auto Scaling starts no other one later"
    fake.settings(capacity={})
    assert ranks(user.up(2)) == [0, 1]
    assert ranks(user.up(None)) == [0]
    assert with_gpus(fake) == 1


@pytest.mark.slow
def test_end_reaches_machines_that_eks_does_not_know_to_be_wanted(user: User, fake: FakeCloud) -> None:
    """A degraded group grew through its scaling group: EKS's desired size is still 0."""
    user.up(None, **LIMITS)
    user.up(1)
    user.up(None)
    fake.settings(capacity={"g5.12xlarge": {f"us-east-1{letter}": 0 for letter in "abcdef"}})
    with pytest.raises(NoCapacity):
        user.up(1)
    fake.settings(capacity={})
    assert ranks(user.up(1)) == [0]
    assert user.up(None) == ()
    assert with_gpus(fake) == 0


@pytest.mark.slow
def test_group_that_is_going_is_waited_for_and_made_anew(user: User, fake: FakeCloud) -> None:
    """Same as after a command that was killed while it removed the group."""
    user.up(None, **LIMITS)
    eks = boto3.client("eks")
    (cluster,) = eks.list_clusters()["clusters"]
    (group,) = [
        list_nodegroup
        for list_nodegroup in eks.list_nodegroups(clusterName=cluster)["nodegroups"]
        if "gpu" in list_nodegroup
    ]
    fake.settings(eks_gone_s=30.0)
    eks.delete_nodegroup(clusterName=cluster, nodegroupName=group)
    assert ranks(user.up(1)) == [0]


@pytest.mark.slow
def test_quota_of_spot_machines_is_no_want_of_them(user: User, fake: FakeCloud) -> None:
    fake.settings(quota={"g5.12xlarge": 0})
    with pytest.raises(NoCapacity, match="MaxSpotInstanceCountExceeded") as error:
        user.up(1, spot=True)
    assert str(error.value).count("MaxSpotInstanceCountExceeded") == 1, "other zones have the same quota"


@pytest.mark.slow
def test_group_that_eks_could_not_make_is_ended_and_made_anew(user: User, fake: FakeCloud) -> None:
    fake.settings(eks_group_failure="NodeCreationFailure: Instances failed to join the kubernetes cluster")
    with pytest.raises(CreateFailed, match="failed to join"):
        user.up(2)
    assert with_gpus(fake) == 0
    fake.settings(eks_group_failure="")
    assert ranks(user.up(2)) == [0, 1]


@pytest.mark.slow
def test_no_group_is_made_once_the_clusters_time_is_over(user: User, fake: FakeCloud) -> None:
    """The control plane took longer than --ttl, so no scheduled action would end the machines."""
    plan = user.plan(1, ttl_s=3600.0)
    assert isinstance(plan.details, ServicePlan)
    cluster = replace(plan.details.cluster, expires_at="2026-01-01T00:00:00Z")
    late = replace(plan, details=replace(plan.details, cluster=cluster))
    with pytest.raises(CreateFailed, match=r"time \(--ttl\) was over before it was made"):
        user.provider.create(late, user.folder.journal, user.said.append)
    assert "CreateNodegroup" not in operations(fake)


@pytest.mark.slow
def test_end_starts_none_where_they_have_ended_by_themselves(user: User, fake: FakeCloud) -> None:
    """The scaling groups' action ended them at the cluster's time; EKS still shows the earlier number."""
    user.up(None, min_count=1, max_count=2, ttl_s=3600.0)
    user.up(2)
    files = CloudState(user.folder)
    record = files.load()
    assert record is not None
    files.save(replace(record, expires_at="2026-01-01T00:00:00Z"))
    plan = user.plan(None)
    scaling = boto3.client("autoscaling")
    for machine in nodes_with_gpus(fake):
        scaling.terminate_instance_in_auto_scaling_group(
            InstanceId=machine, ShouldDecrementDesiredCapacity=True
        )
    user.provider.create(plan, user.folder.journal, user.said.append)
    assert with_gpus(fake) == 0


@pytest.mark.slow
def test_machines_end_after_their_time_and_whatever_they_cost(user: User, fake: FakeCloud) -> None:
    user.up(None, **LIMITS, ttl_s=3600.0, max_cost_usd=80.0)
    user.up(2)
    files = CloudState(user.folder)
    record = files.load()
    assert record is not None
    files.save(replace(record, expires_at="2026-01-01T00:00:00Z", max_cost_usd=1.0))
    assert user.up(None) == ()
    assert with_gpus(fake) == 0


def test_nodes_without_a_machine_that_stays_end_first_then_the_newest() -> None:
    times = {"old": 1, "mid": 2, "new": 3}
    machines: list[dict[str, Any]] = [
        {
            "InstanceId": name,
            "LaunchTime": at,
            "PrivateIpAddress": f"10.0.0.{at}",
            "State": {"Name": "running"},
        }
        for name, at in times.items()
    ]
    assert surplus(times, machines, 1, ()) == ["new", "mid"]
    assert surplus(times, machines, 1, ("10.0.0.3",)) == ["mid", "old"]
    assert surplus(times, machines, 3, ()) == []
    assert surplus(times, machines[:2], 1, ()) == ["new", "mid"], "EC2 has ended it"
    machines[0]["State"] = {"Name": "shutting-down"}
    assert surplus(times, machines, 2, ()) == ["old"]
