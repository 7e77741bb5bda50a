"""Test Marketplace terms and images from plan to machines: acceptance, launches, and machines added later."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inventories.disk.store import Store
from inventories.machine import Machine
from inventories.specs.gpu_driver import DriverPlan
from inventories.specs.spec import Spec
from provision.errors import RefusedPlan
from provision.provider import Plan
from provision.records import BootImage
from provision.rented.provider import CloudProvider
from provision.rented.state import CloudState
from tests.fakes.client import FakeCloud
from tests.provision.oci.building import FastClock, operations

VMI = "NVIDIA GPU-Optimized VMI 26.04.1"
ORACLE = "Oracle-Linux-9.6-Gen2-GPU-2026.06.30-0"
SUBSCRIBE = "CreateAppCatalogSubscription"


class Up:
    """Run `up` of one cluster like the command line, with a new provider for each command."""

    def __init__(self, home: Path, name: str = "default") -> None:
        self.folder = Store(home).cluster(name)

    @property
    def provider(self) -> CloudProvider:
        return CloudProvider("oci", self.folder, clock=FastClock())

    def plan(self, count: int = 1, **asked: Any) -> Plan:
        spec = Spec(shape="VM.GPU.A10.2", count=count, ssh_cidr="127.0.0.1/32", **asked)
        return self.provider.plan(spec, None)

    def create(self, plan: Plan) -> tuple[Machine, ...]:
        self.folder.make()
        return self.provider.create(plan, self.folder.journal)

    def __call__(self, count: int = 1, **asked: Any) -> tuple[Machine, ...]:
        return self.create(self.plan(count, **asked))

    @property
    def booted(self) -> set[str | None]:
        """Return the images of the living machines."""
        cloud = self.provider._account_for(None, Spec())
        return {machine.image_id for machine in cloud.instances() if machine.alive}


@pytest.fixture
def up(tmp_path: Path, fake: FakeCloud) -> Up:
    return Up(tmp_path)


def test_accepted_terms_hold_for_every_cluster(up: Up, tmp_path: Path, fake: FakeCloud) -> None:
    plan = up.plan(2, accept_terms=True)
    assert (plan.image, plan.driver) == (VMI, DriverPlan(source="image"))
    assert plan.terms is not None
    assert operations(fake, mutating=True) == []
    assert {machine.user for machine in up.create(plan)} == {"ubuntu"}
    second = Up(tmp_path, "second").plan()
    assert (second.image, second.terms) == (VMI, None)
    Up(tmp_path, "second").create(second)
    assert operations(fake).count(SUBSCRIBE) == 1


@pytest.mark.parametrize("kind", ["drop_after", "duplicate"])
def test_lost_subscription_reply_subscribes_once(up: Up, fake: FakeCloud, kind: str) -> None:
    fake.fault(operation=SUBSCRIBE, kind=kind)
    (machine,) = up(accept_terms=True)
    assert machine.user == "ubuntu"
    kinds = [item["kind"] for item in fake.state()["resources"]]
    assert kinds.count("appcatalogsubscription") == 1


def test_up_adds_machines_though_the_image_cannot_be_read(up: Up, fake: FakeCloud) -> None:
    up(accept_terms=True)
    fake.settings(refused_by_policy=["GetImage", "*AppCatalog*"])
    plan = up.plan(2)
    assert (plan.image, plan.terms, plan.driver) == (VMI, None, DriverPlan(source="image"))
    assert [machine.user for machine in up.create(plan)] == ["ubuntu", "ubuntu"]


def test_create_refuses_a_plan_with_unaccepted_terms(up: Up, fake: FakeCloud) -> None:
    plan = up.plan(ask_terms=True)
    assert plan.terms is not None
    with pytest.raises(RefusedPlan, match=r"https://.*--accept-terms"):
        up.create(plan)
    assert operations(fake, mutating=True) == []
    (machine,) = up()
    assert machine.user == "opc"
    assert SUBSCRIBE not in operations(fake)


@pytest.mark.parametrize("recorded", [True, False])
def test_up_adds_machines_with_the_image_of_the_first(up: Up, fake: FakeCloud, recorded: bool) -> None:
    up()
    files = CloudState(up.folder)
    record = files.load()
    assert (record.image, record.boots_from.name) == (None, ORACLE)
    if not recorded:
        # Same as an earlier release left it.
        files.save(replace(record, boots_from=None))
    plan = up.plan(2, accept_terms=True)
    assert (plan.image, plan.terms, len(plan.create)) == (ORACLE, None, 1)
    assert {machine.user for machine in up.create(plan)} == {"opc"}
    assert up.booted == {record.boots_from.id}
    assert SUBSCRIBE not in operations(fake)


def test_plan_refuses_to_add_machines_when_their_image_is_gone(up: Up, fake: FakeCloud) -> None:
    up()
    fake.settings(absent_images=["Oracle-Linux-9*"])
    saved = up.plan(1)
    assert (saved.create, saved.image) == ((), ORACLE)
    with pytest.raises(RefusedPlan, match=f"made from the image '{ORACLE}', which is not there any more"):
        up.plan(2)
    for machine in up.provider.find():
        up.provider._account_for(None, Spec()).terminate([machine.id])
    fresh = up.plan(2, accept_terms=True)
    assert fresh.image == VMI


def test_plan_does_not_keep_the_image_of_a_failed_launch(up: Up, fake: FakeCloud) -> None:
    up.folder.make()
    CloudState(up.folder).save(
        replace(
            up.plan().details.cluster,
            boots_from=BootImage(id="ocid1.image.oc1..none", name="an image of earlier"),
        )
    )
    assert up.plan().image == ORACLE
