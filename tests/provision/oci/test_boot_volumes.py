"""Boot volumes get their tags after the launch, so that one which outlives its machine is found."""

import pytest

from provision.oci.cloud import OciCloud
from provision.rented import tags
from provision.rented.teardown import remove
from provision.waiting import SystemClock
from tests.fakes.client import FakeCloud
from tests.provision.oci.building import Builder, operations, until


def volumes(fake: FakeCloud) -> list[dict[str, str]]:
    return [item["tags"] for item in fake.state()["resources"] if item["kind"] == "bootvolume"]


def end_from_outside(cloud: OciCloud, machine_id: str) -> None:
    """End a machine as the console does, with the volume preserved."""
    cloud.api.call("compute.terminate_instance", machine_id, preserve_boot_volume=True)


def test_boot_volumes_are_tagged_once(builder: Builder, cloud: OciCloud, fake: FakeCloud) -> None:
    machines = builder.machines(5)
    assert volumes(fake) == [{}] * 5
    fake.forget_calls()
    cloud.with_addresses(machines)
    assert operations(fake, mutating=True) == ["UpdateBootVolume"] * 5
    local = {"gpuctl": "demo", "gpuctl-cluster-id": "id-demo", "gpuctl-owner": "ann@desk"}
    assert volumes(fake) == [local] * 5
    fake.forget_calls()
    cloud.with_addresses(machines)
    assert operations(fake, mutating=True) == []


def test_boot_volume_tagging_keeps_other_tags(builder: Builder, cloud: OciCloud, fake: FakeCloud) -> None:
    machines = builder.machines()
    (volume,) = cloud.api.listed("storage.list_boot_volumes")
    body = {"freeformTags": {"team": "vision"}}
    cloud.api.call("storage.update_boot_volume", volume["id"], body, again=True)
    cloud.with_addresses(machines)
    (of,) = volumes(fake)
    assert of["team"] == "vision"
    assert tags.is_ours(of)


def test_boot_volumes_of_other_machines_are_not_tagged(
    builder: Builder, cloud: OciCloud, fake: FakeCloud
) -> None:
    builder.machines(2)
    machines = cloud.instances()
    cloud.with_addresses(machines[:1])
    assert sorted(map(bool, volumes(fake))) == [False, True]


def test_teardown_removes_a_preserved_boot_volume(builder: Builder, cloud: OciCloud, fake: FakeCloud) -> None:
    machines = cloud.with_addresses(builder.machines(2))
    end_from_outside(cloud, machines[0].id)
    until(cloud.instances, lambda result: [item.state for item in result].count("ended") == 1)
    assert [resource.kind for resource in cloud.resources()].count("boot-volume") == 2
    removed = remove(cloud, {builder.cluster.id}, clock=SystemClock(), say=lambda _: None)
    assert removed.leftovers == ()
    left = cloud.api.listed("storage.list_boot_volumes")
    assert [item for item in left if item["lifecycleState"] != "TERMINATED"] == []
    assert fake.owned() == []


@pytest.mark.parametrize("operation", ["ListBootVolumes", "ListBootVolumeAttachments", "UpdateBootVolume"])
def test_launch_works_without_permission_to_tag_volumes(
    builder: Builder, cloud: OciCloud, fake: FakeCloud, operation: str
) -> None:
    machines = builder.machines(4)
    fault = {"kind": "error", "status": 404, "code": "NotAuthorizedOrNotFound", "message": "no", "times": 0}
    fake.fault(operation=operation, **fault)
    fake.forget_calls()
    assert all(machine.private_ip for machine in cloud.with_addresses(machines))
    assert len(operations(fake, mutating=True)) <= 1, "the first refusal is enough"


def test_boot_volume_tagging_retries_after_lost_replies(
    builder: Builder, cloud: OciCloud, fake: FakeCloud
) -> None:
    machines = builder.machines(2)
    fake.fault(operation="UpdateBootVolume", kind="drop_after", times=2)
    cloud.with_addresses(machines)
    assert all(map(tags.is_ours, volumes(fake)))
