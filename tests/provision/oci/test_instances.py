"""Test launching and ending machines on OCI, and the errors of failed launches."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from inventories.threads import run_all, values
from provision.errors import Blocked, Capacity, CloudError, Denied, Gone, Quota
from provision.oci import instances
from provision.oci.cloud import OciCloud
from provision.records import Zone
from tests.fakes.client import FakeCloud
from tests.provision.oci.building import AD, Builder, delete_all, operations


def test_launch_returns_ranks_addresses_and_tags(builder: Builder, fake: FakeCloud) -> None:
    machines = builder.cloud.with_addresses(builder.machines(3))
    assert sorted(machine.rank or 0 for machine in machines) == [0, 1, 2]
    assert all(machine.public_ip and machine.private_ip for machine in machines)
    assert len({machine.private_ip for machine in machines}) == 3
    assert {machine.zone for machine in machines} == {Zone(name=f"{AD}1")}
    assert {machine.tags["gpuctl-launch"] for machine in machines} == {"a" * 32}
    assert builder.cloud.instances() == builder.cloud.instances("id-demo")
    assert builder.cloud.instances("id-other") == ()
    item = builder.cloud.with_addresses(machines[:1])
    assert item == machines[:1]


def test_send_repeated_creates_one_machine(builder: Builder, fake: FakeCloud) -> None:
    (request,) = builder.requests()
    fake.fault(operation="LaunchInstance", kind="drop_after")
    first = builder.cloud.send(request)
    fake.fault(operation="LaunchInstance", kind="duplicate")
    assert builder.cloud.send(request) == first
    assert len(fake.live_instances()) == 1


def test_send_launches_32_machines_in_parallel(builder: Builder, fake: FakeCloud) -> None:
    ids = values(run_all(builder.cloud.send, builder.requests(32)))
    assert len(set(ids)) == 32
    machines = builder.wait("running")
    assert sorted(machine.rank or 0 for machine in builder.cloud.with_addresses(machines)) == list(range(32))
    builder.cloud.terminate([machine.id for machine in machines])
    builder.wait("ended")


def test_send_without_capacity_fails_after_one_call(builder: Builder, fake: FakeCloud) -> None:
    (request,) = builder.requests()
    fake.settings(capacity={"*": {"*": 0}})
    with pytest.raises(Capacity, match=r"Out of host capacity\."):
        builder.cloud.send(request)
    assert operations(fake).count("LaunchInstance") == 1


def test_send_over_quota_names_the_limit(builder: Builder, fake: FakeCloud) -> None:
    (request,) = builder.requests()
    fake.settings(quota={"VM.GPU.A10.2": 0})
    with pytest.raises(
        Quota, match=r"gpu-a10-count.*Limits, Quotas and Usage.*Stopped machines count"
    ) as caught:
        builder.cloud.send(request)
    assert caught.value.code == "LimitExceeded"
    assert operations(fake).count("LaunchInstance") == 1


def test_limit_of_one_domain_is_capacity_when_others_have_room(
    builder: Builder, cloud: OciCloud, fake: FakeCloud
) -> None:
    """The refusal is the same, so gpuctl queries whether another domain has room for all machines."""
    fake.settings(place_quota={"VM.GPU.A10.2": {f"{AD}1": 0, f"{AD}2": 1, f"{AD}3": 2}})
    assert builder.offer().room == {f"{AD}1": 0, f"{AD}2": 2, f"{AD}3": 4}
    assert [str(zone) for zone in builder.offer().zones[:3]] == [f"{AD}3", f"{AD}2", f"{AD}1"]
    full = Zone(name=f"{AD}1")
    fake.forget_calls()
    with pytest.raises(Capacity, match=f"gpu-a10-count is reached in .*; {AD}3 has room") as caught:
        cloud.send(builder.requests(2, zone=full)[0])
    assert caught.value.code == "LimitExceeded"
    with pytest.raises(Quota, match="gpu-a10-count"):
        cloud.send(builder.requests(3, zone=full)[0])
    # Only a part of the machines fits.
    first, second = builder.requests(2, zone=Zone(name=f"{AD}2"))
    cloud.send(first)
    with pytest.raises(Capacity):
        cloud.send(second)


def test_limit_is_quota_when_room_elsewhere_is_unknown(
    builder: Builder, cloud: OciCloud, fake: FakeCloud
) -> None:
    fake.settings(place_quota={"VM.GPU.A10.2": {f"{AD}1": 0}})
    (request,) = builder.requests(zone=Zone(name=f"{AD}1"))
    # Same as for a limit of the region, which cannot be queried for a domain.
    fault = {"kind": "error", "status": 400, "code": "InvalidParameter", "message": "scope", "times": 0}
    fake.fault(operation="GetResourceAvailability", **fault)
    with pytest.raises(Quota):
        cloud.send(request)
    fake.clear_faults()
    fake.fault(operation="GetResourceAvailability", kind="drop_before", times=0)
    with pytest.raises(Quota):
        cloud.send({key: value for key, value in request.items() if key != "room"})
    with pytest.raises(Quota):
        cloud.send(request)


def test_offer_keeps_all_domains_when_the_quota_is_0(builder: Builder, fake: FakeCloud) -> None:
    fake.settings(quota={"VM.GPU.A10.2": 0})
    assert len(builder.offer().zones) == 12  # a hint only: no domain is left out


def test_failure_reports_a_late_capacity_error(builder: Builder, fake: FakeCloud) -> None:
    fake.settings(late_failure={f"{AD}1": "Out of host capacity."})
    (request,) = builder.requests()
    builder.cloud.send(request)
    (machine,) = builder.wait("ended")
    result = builder.cloud.failure(machine)
    assert isinstance(result, Capacity)
    fake.settings(late_failure={})
    (request,) = builder.requests(launch="b" * 32)
    builder.cloud.send(request)
    ran = next(item for item in builder.wait("running", "ended") if item.state == "running")
    assert builder.cloud.failure(ran) is None


def test_send_into_a_removed_network_names_the_operation(builder: Builder, cloud: OciCloud) -> None:
    (request,) = builder.requests()
    delete_all(cloud)
    with pytest.raises((Gone, CloudError)) as caught:
        cloud.send(request)
    assert "LaunchInstance" in str(caught.value)
    assert "cloud-config" not in str(caught.value)


def test_compute_cluster_is_created_once_per_domain(cloud: OciCloud, tmp_path: Path, fake: FakeCloud) -> None:
    builder = Builder(cloud, tmp_path, shape="BM.GPU4.8")
    builder.machines(2)
    first, second = (
        builder.infrastructure(zone=Zone(name=f"{AD}{n}")).ids["compute_cluster"] for n in (1, 2)
    )
    assert first != second
    assert builder.infrastructure().ids["compute_cluster"] == first
    assert operations(fake).count("CreateComputeCluster") == 2
    resource = next(resource for resource in cloud.resources() if resource.id == first)
    with pytest.raises(Blocked, match=r"compute-cluster .* is still used by instance "):
        cloud.delete(resource)


def test_marketplace_subscription_is_created_once(cloud: OciCloud, tmp_path: Path, fake: FakeCloud) -> None:
    builder = Builder(cloud, tmp_path, image="marketplace:NVIDIA GPU-Optimized VMI", terms=True)
    builder.machines()
    builder.infrastructure()
    assert operations(fake).count("CreateAppCatalogSubscription") == 1


def test_terminate_is_idempotent_and_removes_boot_volumes(
    builder: Builder, cloud: OciCloud, fake: FakeCloud
) -> None:
    ids = [machine.id for machine in builder.machines(2)]
    cloud.terminate(ids)
    cloud.terminate([*ids, "ocid1.instance.oc1..none"])
    builder.wait("ended")
    cloud.terminate(ids)
    boot = [item for item in fake.state()["resources"] if item["kind"] == "bootvolume"]
    assert not [item for item in boot if item["state"] not in ("TERMINATED", "TERMINATING")]


def test_terminate_retries_a_busy_machine(builder: Builder, cloud: OciCloud, fake: FakeCloud) -> None:
    (machine,) = builder.machines()
    fake.fault(
        operation="TerminateInstance",
        kind="error",
        status=409,
        code="IncorrectState",
        message="busy",
        times=3,
    )
    cloud.terminate([machine.id])
    builder.wait("ended")


def test_terminate_waits_for_a_late_list_before_denied(
    builder: Builder, cloud: OciCloud, fake: FakeCloud
) -> None:
    """Another user ended it: the first list is too early to show that."""
    (machine,) = builder.machines()
    polls = itertools.count()

    class Late:
        """The list's old state, for two looks."""

        clock = cloud.api.clock
        compartment = cloud.api.compartment

        def listed(self, operation: str) -> list[Any]:
            if next(polls) == 2:
                cloud.terminate([machine.id])
            return cloud.api.listed(operation)

    late: Any = Late()
    instances._must_have_ended(late, [machine.id])
    assert next(polls) == 3


def test_not_found_is_denied_while_the_list_has_the_resource(
    builder: Builder, cloud: OciCloud, fake: FakeCloud
) -> None:
    (machine,) = builder.machines()
    hidden = {"kind": "error", "status": 404, "code": "NotAuthorizedOrNotFound", "message": "no", "times": 0}
    fake.fault(operation="TerminateInstance", **hidden)
    with pytest.raises(Denied, match="manage instance-family"):
        cloud.terminate([machine.id])
    vcn = next(resource for resource in cloud.resources() if resource.kind == "vcn")
    fake.fault(operation="DeleteVcn", **hidden)
    with pytest.raises(Denied, match="manage virtual-network-family"):
        cloud.delete(vcn)
    assert len(fake.live_instances()) == 1
