"""Placement groups: only for clusters that begin with several machines, and kept as they grow."""

from pathlib import Path
from typing import Any

import boto3
import pytest

from inventories.disk.store import Store
from inventories.specs.spec import Spec
from provision.errors import NoCapacity
from provision.provider import Plan
from provision.rented.provider import CloudProvider
from provision.rented.state import CloudState
from tests.fakes.client import FakeCloud
from tests.provision.aws.building import FastClock, operations

NOTE = "the cluster began with one machine, so its machines are in no placement group"


class Up:
    """Run `up` of one cluster like the command line, with a new provider for each command."""

    def __init__(self, home: Path) -> None:
        self.folder = Store(home).cluster("demo")

    @property
    def provider(self) -> CloudProvider:
        return CloudProvider("aws", self.folder, clock=FastClock())

    def plan(self, count: int | None, **asked: Any) -> Plan:
        spec = Spec(shape="g5.12xlarge", count=count, ssh_cidr="127.0.0.1/32", **asked)
        return self.provider.plan(spec, None)

    def __call__(self, count: int | None) -> Plan:
        plan = self.plan(count)
        self.folder.make()
        self.provider.create(plan, self.folder.journal)
        return plan


@pytest.fixture
def up(tmp_path: Path, fake: FakeCloud) -> Up:
    return Up(tmp_path)


def groups() -> list[str]:
    """Return the placement group of each living machine. Empty: no group."""
    result = boto3.client("ec2").describe_instances()["Reservations"]
    machines = [machine for reservation in result for machine in reservation["Instances"]]
    alive = [machine for machine in machines if machine["State"]["Name"] in ("pending", "running")]
    return sorted(machine["Placement"].get("GroupName", "") for machine in alive)


def kinds(plan: Plan) -> set[str]:
    return {resource.kind for resource in plan.resources}


def test_single_machine_is_in_no_placement_group(up: Up, fake: FakeCloud) -> None:
    plan = up(1)
    assert "placement-group" not in kinds(plan)
    assert "CreatePlacementGroup" not in [request.operation for request in plan.requests]
    assert groups() == [""]
    assert "CreatePlacementGroup" not in operations(fake)


def test_several_machines_share_a_placement_group_and_new_ones_join(up: Up, fake: FakeCloud) -> None:
    assert "placement-group" in kinds(up(2))
    (group,) = set(groups())
    assert group.startswith("gpuctl-demo-")
    plan = up(3)
    assert not any(NOTE in note for note in plan.notes)
    assert groups() == [group] * 3
    assert operations(fake).count("CreatePlacementGroup") == 1


def test_cluster_of_one_machine_grows_without_a_placement_group(up: Up, fake: FakeCloud) -> None:
    up(1)
    plan = up(2)
    assert [note for note in plan.notes if NOTE in note]
    assert "placement-group" not in kinds(plan)
    assert groups() == ["", ""]
    assert "CreatePlacementGroup" not in operations(fake)
    record = CloudState(up.folder).load()
    assert record.first_count == 1
    assert not any(NOTE in note for note in up.plan(2).notes)  # nothing is launched


def test_cluster_without_machines_begins_anew(up: Up, fake: FakeCloud) -> None:
    fake.settings(capacity={"g5.12xlarge": {f"us-east-1{letter}": 0 for letter in "abcdef"}})
    with pytest.raises(NoCapacity):
        up(1)
    fake.settings(capacity={})
    up(2)
    assert "" not in groups()
    record = CloudState(up.folder).load()
    assert record.first_count == 2


def test_outline_has_a_placement_group_from_two_machines_on(up: Up) -> None:
    item, two = (
        up.provider.outline(Spec(shape="g5.12xlarge", count=count, region="us-east-1")) for count in (None, 2)
    )
    assert ("placement-group" in kinds(item), "placement-group" in kinds(two)) == (False, True)
