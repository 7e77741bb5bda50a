"""The end of a cluster's machines by OCI itself: a pool, its schedule, and no machine more than was asked for."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support import an_inventory

from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Machine
from inventories.specs.spec import Spec
from provision.errors import ProvisionError, RefusedPlan
from provision.oci import requests
from provision.oci.api import Api
from provision.oci.cloud import connect
from provision.oci.description import acts_at
from provision.provider import Plan
from provision.records import CloudCluster, EndGuard, Target
from provision.rented.provider import CloudProvider
from provision.rented.state import CloudState
from tests.fakes.client import FakeCloud
from tests.provision.oci.building import FastClock, until

TTL_S = 4 * 3600.0
POOL_KINDS = {"instancepool", "instanceconfiguration", "autoscalingconfiguration"}


@dataclass(kw_only=True)
class Scene:
    """Run `up`, `status` and `down` of one cluster, each with a new provider."""

    home: Path
    fake: FakeCloud
    shape: str = "VM.GPU.A10.2"
    spot: bool = False

    @property
    def folder(self) -> ClusterFolder:
        return Store(self.home).cluster("default")

    @property
    def provider(self) -> CloudProvider:
        return CloudProvider("oci", self.folder, clock=FastClock())

    def plan(self, count: int, **fields: Any) -> Plan:
        spec = Spec(
            provider="oci",
            count=count,
            **{"shape": self.shape, "ssh_cidr": "203.0.113.7/32", "ttl_s": TTL_S, "spot": self.spot} | fields,
        )
        current = self.folder.load() if self.folder.exists() else None
        return self.provider.plan(spec, current)

    def up(self, count: int, **fields: Any) -> tuple[Machine, ...]:
        plan = self.plan(count, **fields)
        self.folder.make()
        output: list[str] = []
        machines = self.provider.create(plan, self.folder.journal, output.append)
        self.said = output
        self.folder.save(an_inventory(provider="oci", region=plan.region, machines=machines))
        return machines

    def guards(self) -> dict[str, EndGuard]:
        return {guard.guard: guard for guard in self.provider.ends()}

    def alive(self) -> set[str]:
        return {entry["id"] for entry in self.fake.live_instances()}


@pytest.fixture
def scene(fake: FakeCloud, tmp_path: Path) -> Iterator[Scene]:
    yield Scene(home=tmp_path, fake=fake)


@pytest.mark.slow
@pytest.mark.whole
def test_cloud_terminates_the_machines_with_every_computer_shut(scene: Scene) -> None:
    machines = scene.up(2)
    schedule = scene.guards()["cloud schedule"]
    assert schedule.armed is True
    assert schedule.ends_bill
    assert scene.alive() == {machine.id for machine in machines}
    scene.fake.advance(TTL_S - 120)
    time.sleep(0.5)
    assert len(scene.alive()) == 2, "too early"
    scene.fake.advance(240)
    until(scene.alive, lambda alive: not alive)
    assert scene.provider.destroy() == ()
    assert scene.fake.owned() == []


@pytest.mark.slow
def test_every_part_has_the_tags_of_the_cluster_and_no_secret(scene: Scene) -> None:
    scene.up(1)
    parts = [entry for entry in scene.fake.owned() if entry.get("kind") in POOL_KINDS]
    assert {entry["kind"] for entry in parts} == POOL_KINDS
    assert all(entry["tags"]["gpuctl-cluster-id"] for entry in parts)
    assert all("gpuctl-expires" in entry["tags"] and "gpuctl-ranks" not in entry["tags"] for entry in parts)
    created = scene.fake.calls("CreateInstanceConfiguration")
    assert created
    assert "metadata" not in json.dumps(created)


@pytest.mark.slow
def test_second_up_sends_no_change(scene: Scene) -> None:
    scene.up(2)
    scene.fake.forget_calls()
    scene.up(2)
    assert [call["operation"] for call in scene.fake.calls(mutating=True)] == []


@pytest.mark.slow
def test_growth_joins_the_pool(scene: Scene) -> None:
    scene.up(1)
    scene.up(3)
    assert scene.guards()["cloud schedule"].armed is True
    scene.fake.advance(TTL_S + 120)
    until(scene.alive, lambda alive: not alive)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one of two", "all"])
def test_lost_machines_are_replaced_and_never_more_than_asked_for(scene: Scene, kind: str) -> None:
    machines = scene.up(2)
    lost = machines[:1] if kind == "one of two" else machines
    for machine in lost:
        terminate_by_hand(scene, machine.id)
    again = scene.up(2)
    assert scene.alive() == {machine.id for machine in again}
    assert not {machine.id for machine in lost} & scene.alive()
    assert scene.guards()["cloud schedule"].armed is True
    assert scene.provider.destroy() == ()
    assert scene.fake.owned() == []
    assert most_at_once(scene) <= 2


@pytest.mark.slow
def test_machine_that_the_pool_made_is_ended_before_its_rank_is_launched(scene: Scene) -> None:
    machines = scene.up(2)
    terminate_by_hand(scene, machines[0].id)
    made = until(lambda: scene.alive() - {machine.id for machine in machines}, bool)
    again = scene.up(2)
    assert not made & scene.alive()
    assert scene.alive() == {machine.id for machine in again}
    assert most_at_once(scene) <= 2


@pytest.mark.slow
def test_down_ends_a_machine_that_the_pool_made(scene: Scene) -> None:
    machines = scene.up(2)
    terminate_by_hand(scene, machines[0].id)
    until(lambda: scene.alive() - {machine.id for machine in machines}, bool)
    assert scene.provider.destroy() == ()
    assert scene.fake.owned() == []
    assert most_at_once(scene) <= 2


@pytest.mark.slow
def test_down_while_the_pool_is_scaling_leaves_nothing(scene: Scene) -> None:
    machines = scene.up(2)
    scene.fake.settings(scaling_s=1.0)
    terminate_by_hand(scene, machines[0].id)
    assert scene.provider.destroy() == ()
    assert scene.fake.owned() == []
    assert most_at_once(scene) <= 2


REFUSALS = {
    "a shape": ({}, "VM.GPU.A10.2"),
    "compute cluster": ({"shape": "BM.GPU.H100.8"}, "compute-cluster"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", REFUSALS)
def test_refusal_to_join_a_pool_is_no_failure_and_is_shown(scene: Scene, kind: str) -> None:
    fields, trait = REFUSALS[kind]
    scene = replace(scene, **fields)
    scene.fake.settings(attach_refused={trait: "No such machines here."})
    machines = scene.up(2)
    assert scene.alive() == {machine.id for machine in machines}
    assert any("No such machines here." in line for line in scene.said)
    assert not any(guard.ends_bill and guard.armed is not False for guard in scene.guards().values())
    assert scene.provider.destroy() == ()
    assert scene.fake.owned() == []


@pytest.mark.slow
def test_preemptible_machines_are_in_no_pool_and_in_no_plan_of_one(scene: Scene) -> None:
    scene = replace(scene, spot=True)
    plan = scene.plan(2)
    assert not any("Pool" in request.operation for request in plan.requests)
    assert not any(end.ends_bill for end in plan.ends)
    scene.up(2)
    assert any("preemptible machines can't join an instance pool" in line for line in scene.said)
    assert not [call for call in scene.fake.calls(mutating=True) if "Pool" in call["operation"]]
    assert list(scene.guards()) == ["machine power-off"]


@pytest.mark.slow
def test_machines_with_rdma_join_a_pool_where_oci_takes_them(scene: Scene) -> None:
    scene = replace(scene, shape="BM.GPU.H100.8")
    scene.fake.settings(attach_refused={})
    assert not any(end.ends_bill for end in scene.plan(2).ends)
    scene.up(2)
    guard = scene.guards()["cloud schedule"]
    assert (guard.armed, guard.ends_bill) == (True, True)
    scene.fake.advance(TTL_S + 120)
    until(scene.alive, lambda alive: not alive)


@pytest.mark.slow
def test_single_machine_with_rdma_has_no_compute_cluster_and_its_end_is_scheduled(scene: Scene) -> None:
    scene = replace(scene, shape="BM.GPU.H100.8")
    assert any(end.ends_bill for end in scene.plan(1).ends)
    scene.up(1)
    assert "computecluster" not in {entry.get("kind") for entry in scene.fake.owned()}
    assert scene.guards()["cloud schedule"].armed is True
    (note,) = scene.plan(2).notes
    assert "NCCL uses TCP" in note
    scene.up(2)
    assert scene.guards()["cloud schedule"].armed is True


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation",
    [
        "ListInstancePools",
        "CreateInstanceConfiguration",
        "CreateInstancePool",
        "AttachInstancePoolInstance",
        "CreateAutoScalingConfiguration",
        "ListAutoScalingConfigurations",
    ],
)
def test_missing_right_is_shown_and_armed_by_the_next_up_that_has_it(scene: Scene, operation: str) -> None:
    scene.fake.settings(refused_by_policy=[operation])
    scene.up(1)
    guard = scene.guards()["cloud schedule"]
    assert guard.armed is not True
    assert guard.problem
    assert scene.said
    scene.fake.settings(refused_by_policy=[])
    scene.up(1)
    assert scene.guards()["cloud schedule"].armed is True
    assert scene.provider.destroy() == ()
    assert scene.fake.owned() == []


@pytest.mark.slow
def test_account_without_any_right_to_pools_still_rents_and_removes(scene: Scene) -> None:
    scene.fake.settings(
        refused_by_policy=["ListInstancePools", "ListInstanceConfigurations", "ListAutoScalingConfigurations"]
    )
    scene.up(1, ttl_s=None)
    assert scene.guards() == {}
    assert scene.provider.destroy() == ()
    assert scene.fake.owned() == []


@pytest.mark.slow
@pytest.mark.parametrize("change", ["disabled", "removed", "later"])
def test_schedule_that_somebody_changed_is_noticed_and_armed_again(scene: Scene, change: str) -> None:
    scene.up(1)
    api = connect_api(scene)
    (configuration,) = api.listed("autoscaling.list_auto_scaling_configurations")
    if change == "removed":
        api.call("autoscaling.delete_auto_scaling_configuration", configuration["id"])
    elif change == "disabled":
        body = {"isEnabled": False}
        api.call("autoscaling.update_auto_scaling_configuration", configuration["id"], body)
    else:
        view = api.call("autoscaling.get_auto_scaling_configuration", configuration["id"])
        later = requests.scheduled_policy(
            datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(days=2)
        )
        api.call(
            "autoscaling.update_auto_scaling_policy", configuration["id"], view["policies"][0]["id"], later
        )
    assert scene.guards()["cloud schedule"].armed is False
    scene.up(1)
    assert scene.guards()["cloud schedule"].armed is True


LISTS = ["ListInstancePools", "ListInstanceConfigurations", "ListAutoScalingConfigurations"]


@pytest.mark.slow
def test_rights_that_were_revoked_hide_no_pool_from_down(scene: Scene) -> None:
    scene.up(2)
    scene.fake.settings(refused_by_policy=LISTS)
    left = scene.provider.destroy()
    assert {item.kind for item in left} >= {"instance", "instance-pool"}
    assert all("instance-pools" in item.reason or "compute-management" in item.reason for item in left[:2])
    assert len(scene.alive()) == 2
    scene.fake.settings(refused_by_policy=[])
    assert scene.provider.destroy() == ()
    assert scene.fake.owned() == []


@pytest.mark.slow
def test_rights_that_were_revoked_keep_up_from_a_machine_too_many(scene: Scene) -> None:
    machines = scene.up(2)
    scene.fake.settings(refused_by_policy=LISTS)
    terminate_by_hand(scene, machines[0].id)
    with pytest.raises(ProvisionError):
        scene.up(2)
    assert most_at_once(scene) <= 2
    scene.fake.settings(refused_by_policy=[])
    scene.up(2)
    assert most_at_once(scene) <= 2


@pytest.mark.slow
def test_schedule_that_may_not_be_read_is_not_known(scene: Scene) -> None:
    scene.up(1)
    for operation in ("GetAutoScalingConfiguration", "ListInstancePools", "ListAutoScalingConfigurations"):
        scene.fake.settings(refused_by_policy=[operation])
        guard = scene.guards()["cloud schedule"]
        assert guard.armed is None, operation
        assert guard.problem


@pytest.mark.slow
def test_pool_that_makes_a_machine_is_not_known_to_act(scene: Scene) -> None:
    machines = scene.up(2)
    scene.fake.settings(capacity={f"Uocm:EU-FRANKFURT-1-AD-{number}": 0 for number in (1, 2, 3)})
    terminate_by_hand(scene, machines[0].id)
    guard = until(lambda: scene.guards()["cloud schedule"], lambda guard: guard.armed is not True)
    assert guard.armed is None
    assert "may not act in time" in guard.problem
    assert scene.provider.destroy() == ()
    assert scene.fake.owned() == []


@pytest.mark.slow
def test_pool_that_may_not_be_terminated_keeps_its_schedule(scene: Scene) -> None:
    scene.up(1)
    scene.fake.settings(refused_by_policy=["TerminateInstancePool"])
    assert scene.provider.destroy()
    kinds = {entry.get("kind") for entry in scene.fake.owned()}
    assert {"instancepool", "autoscalingconfiguration"} <= kinds
    scene.fake.settings(refused_by_policy=[])
    assert scene.provider.destroy() == ()
    assert scene.fake.owned() == []


@pytest.mark.slow
def test_one_refused_machine_keeps_no_other_from_the_pool(scene: Scene) -> None:
    scene.fake.fault(
        operation="AttachInstancePoolInstance", nth=1, kind="error", status=400, code="InvalidParameter"
    )
    scene.up(3)
    guard = scene.guards()["cloud schedule"]
    assert guard.armed is False
    assert guard.problem.count("ocid1.instance") == 1
    scene.fake.clear_faults()
    scene.up(3)
    assert scene.guards()["cloud schedule"].armed is True


@pytest.mark.slow
def test_machine_that_the_pool_made_is_a_stray(scene: Scene) -> None:
    machines = scene.up(2)
    assert scene.provider.strays() == ()
    terminate_by_hand(scene, machines[0].id)
    made = until(lambda: scene.alive() - {machine.id for machine in machines}, bool)
    assert set(scene.provider.strays()) == made


@pytest.mark.slow
def test_after_the_end_up_advises_down_alone(scene: Scene) -> None:
    scene.up(1)
    record = CloudState(scene.folder).load()
    assert record is not None
    over = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="seconds")
    CloudState(scene.folder).save(replace(record, expires_at=over))
    (machine,) = scene.alive()
    connect_api(scene).call("compute.instance_action", machine, "STOP")
    with pytest.raises(RefusedPlan, match=r"was over at .*gpuctl down") as error:
        scene.plan(1)
    assert "Start" not in str(error.value)


@pytest.mark.parametrize(
    ("end", "minute"),
    [
        ("2026-12-04T17:30:00+00:00", "0 30 17 4 12 ? 2026"),
        ("2026-12-04T17:30:01+00:00", "0 31 17 4 12 ? 2026"),
        ("2026-12-31T23:59:59+00:00", "0 0 0 1 1 ? 2027"),
        ("2028-02-29T01:00:00+02:00", "0 0 23 28 2 ? 2028"),
    ],
)
def test_schedule_acts_in_the_first_whole_minute_after_the_end(end: str, minute: str) -> None:
    cluster = CloudCluster(
        name="demo",
        id="1",
        owner="ann@desk",
        created_at=end,
        target=Target(provider="oci"),
        shape="VM.GPU.A10.2",
        expires_at=end,
    )
    assert requests.cron(acts_at(cluster)) == minute
    assert requests.read_cron(minute) == acts_at(cluster)


@pytest.mark.parametrize("text", ["0 30 17 4 12 ? *", "0 30 17 * * ?", "", "0 30 17 30 2 ? 2026"])
def test_schedule_of_somebody_else_is_not_read_as_an_end(text: str) -> None:
    assert requests.read_cron(text) is None


def terminate_by_hand(scene: Scene, machine_id: str) -> None:
    """Terminate a machine as a user of the console does, and wait until it has ended."""
    connect_api(scene).call("compute.terminate_instance", machine_id)
    until(scene.alive, lambda alive: machine_id not in alive)


def connect_api(scene: Scene) -> Api:
    return connect(Target(provider="oci"), clock=FastClock()).api


def most_at_once(scene: Scene) -> int:
    return max(scene.fake.state()["most_by_cluster"].values())
