"""Test the plan of a service that cannot be contacted: the resources it would create, and their costs."""

from pathlib import Path

import pytest

from inventories.disk.store import Store
from inventories.specs.spec import Spec
from provision.registry import load
from provision.rented.managed_kubernetes.provider import ManagedKubernetes


@pytest.mark.parametrize(("name", "shape"), [("eks", "g5.12xlarge"), ("oke", "VM.GPU.A10.2")])
def test_plan_without_an_account_has_everything_and_its_price(name: str, shape: str, tmp_path: Path) -> None:
    provider = load(name, Store(tmp_path).cluster("demo"))
    assert isinstance(provider, ManagedKubernetes)
    plan = provider.outline(Spec(cluster="demo", provider=name, shape=shape, count=2))
    assert len(plan.create) == 2
    assert plan.hourly_usd is not None
    assert plan.hourly_usd > 8
    made = [request.operation for request in plan.requests]
    assert made.count("CreateCluster") == 1
    assert sum(operation in ("CreateNodePool", "CreateNodegroup") for operation in made) == 2
    assert plan.ssh_cidrs == ("<your address>/32",)
    assert not any("takes back" in note for note in plan.notes)


@pytest.mark.parametrize(("name", "shape"), [("eks", "g5.12xlarge"), ("oke", "VM.GPU.A10.2")])
def test_plan_of_spot_machines_notes_that_others_are_started_for_them(
    name: str, shape: str, tmp_path: Path
) -> None:
    provider = load(name, Store(tmp_path).cluster("demo"))
    assert isinstance(provider, ManagedKubernetes)
    plan = provider.outline(Spec(cluster="demo", provider=name, shape=shape, count=2, spot=True))
    (note,) = (note for note in plan.notes if "takes back" in note)
    assert note.startswith(f"{name.upper()} tries to start another")
