"""Test deleting OCI network resources: blockers are named, deleted resources count as deleted."""

import pytest

from provision.errors import Blocked
from provision.oci.cloud import OciCloud
from provision.records import Resource
from tests.fakes.client import FakeCloud
from tests.provision.oci.building import Builder, delete_all, kinds


def test_delete_names_what_uses_the_part(builder: Builder, cloud: OciCloud) -> None:
    (machine,) = builder.machines()
    for resource in cloud.resources():
        if resource.kind in ("nsg", "subnet"):
            with pytest.raises(Blocked, match=machine.id):
                cloud.delete(resource)
    by_kind = {resource.kind: resource for resource in cloud.resources()}
    for kind, by in (
        ("route-table", "subnet"),
        ("security-list", "subnet"),
        ("internet-gateway", "route-table"),
        ("vcn", "subnet"),
    ):
        with pytest.raises(Blocked, match=by_kind[by].id):
            cloud.delete(by_kind[kind])


def test_delete_of_a_removed_part_succeeds(builder: Builder, cloud: OciCloud, fake: FakeCloud) -> None:
    builder.infrastructure()
    nsg = next(resource for resource in cloud.resources() if resource.kind == "nsg")
    fake.fault(operation="DeleteNetworkSecurityGroup", kind="drop_after")
    cloud.delete(nsg)
    cloud.delete(nsg)
    assert "nsg" not in kinds(cloud)


def test_delete_refuses_untagged_parts(cloud: OciCloud) -> None:
    with pytest.raises(AssertionError):
        cloud.delete(Resource(kind="vcn", id="ocid1.vcn", name="prod", tags={}, stage=4))


def test_teardown_survives_lost_replies(builder: Builder, cloud: OciCloud, fake: FakeCloud) -> None:
    machines = builder.machines(2)
    for nth in range(1, 9):
        fake.fault(mutating=True, nth=nth, kind="drop_after" if nth % 2 else "duplicate")
    cloud.terminate([machine.id for machine in machines])
    builder.wait("ended")
    delete_all(cloud)
    assert fake.owned() == []
