"""The end of a cluster's machines by OCI itself: a pool, its schedule, and no machine more than was asked for."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Inventory, Machine
from inventories.spec import Spec
from provision.cloud.provider import CloudProvider
from provision.cloud.records import EndGuard
from provision.cloud.state import CloudState
from provision.errors import RefusedPlan
from provision.oci import requests
from provision.oci.scheduled_end import minute_of
from provision.provider import Plan
from tests.fakes.client import FakeCloud
from tests.provision.oci.building import FastClock, until

TTL_S = 4 * 3600.0
POOL_KINDS = {"instancepool", "instanceconfiguration", "autoscalingconfiguration"}


@dataclass(kw_only=True)
class Scene:
    """`up`, `status` and `down` of one cluster; each command has a provider of its own."""

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
        said: list[str] = []
        machines = self.provider.create(plan, self.folder.journal, said.append)
        self.said = said
        self.folder.save(
            Inventory(
                cluster="default",
                provider="oci",
                region=plan.region,
                created_at="2026-11-21T06:00:00+00:00",
                machines=machines,
            )
        )
        return machines

    def guards(self) -> dict[str, EndGuard]:
        return {guard.guard: guard for guard in self.provider.ends()}

    def alive(self) -> set[str]:
        return {entry["id"] for entry in self.fake.live_instances()}

    def most_at_once(self) -> int:
        return int(self.fake.state()["most_instances"])

    def resources(self) -> set[str]:
        return {entry["kind"] for entry in self.fake.owned() if "kind" in entry}


@pytest.fixture
def scene(fake: FakeCloud, tmp_path: Path) -> Iterator[Scene]:
    yield Scene(home=tmp_path, fake=fake)


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
