"""Clusters on the fake OCI in the making, as the layers above the back end make them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inventories.disk.journal import Journal
from provision.errors import Blocked
from provision.oci.cloud import OciCloud
from provision.records import CloudCluster, Infrastructure, Instance, NewMachine, Offer, Resource, Zone
from provision.rented.find_or_create import Ensure
from provision.rented.interface import Cloud
from tests.fakes.client import FakeCloud

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA gpuctl"
SPEED = 50.0
AD = "Uocm:EU-FRANKFURT-1-AD-"


class FastClock:
    """The system's clock, sped up so that waits between tries cost no time."""

    def now(self) -> float:
        return time.monotonic() * SPEED

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / SPEED)


class Builder:
    """A cluster in the making, as the layers above do it."""

    def __init__(
        self, cloud: OciCloud, home: Path, name: str = "demo", *, terms: bool = False, **fields: Any
    ) -> None:
        inputs: dict[str, Any] = {"shape": "VM.GPU.A10.2", "ssh_cidrs": ("203.0.113.7/32",)} | fields
        self.cloud = cloud
        self.home = home
        self.terms = terms
        self.cluster = CloudCluster(
            name=name,
            id=f"id-{name}",
            owner="ann@desk",
            created_at="2026-11-21T08:00:00+00:00",
            target=cloud.target,
            **inputs,
        )
        self.ensure = Ensure(
            Journal(home / f"{name}.jsonl"),
            Journal(home / "shared.jsonl"),
            clock=FastClock(),
            consistency_s=5,
        )

    def offer(self) -> Offer:
        return self.cloud.offer(self.cluster, terms=self.terms)

    def infrastructure(self, offer: Offer | None = None, zone: Zone | None = None) -> Infrastructure:
        offer = offer or self.offer()
        infrastructure = self.cloud.prepare(self.cluster, offer, PUBLIC_KEY, self.ensure)
        return self.cloud.prepare_zone(
            self.cluster, offer, infrastructure, zone or offer.zones[0], self.ensure
        )

    def requests(
        self, count: int = 1, *, launch: str = "a" * 32, zone: Zone | None = None
    ) -> tuple[dict[str, Any], ...]:
        offer = self.offer()
        zone = zone or offer.zones[0]
        machines = [
            NewMachine(name=f"{self.cluster.name}-{rank}", rank=rank, user_data="#cloud-config\n")
            for rank in range(count)
        ]
        return self.cloud.requests(
            self.cluster, offer, self.infrastructure(offer, zone), zone, launch, machines
        )

    def machines(self, count: int = 1, **more: Any) -> tuple[Instance, ...]:
        for request in self.requests(count, **more):
            self.cloud.send(request)
        return self.wait("running")

    def wait(self, *states: str) -> tuple[Instance, ...]:
        return until(
            lambda: self.cloud.instances(self.cluster.id),
            lambda machines: all(machine.state in states for machine in machines),
        )


def until(look: Callable[[], Any], good: Callable[[Any], bool], timeout_s: float = 10.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not good(result := look()):
        assert time.monotonic() < deadline, result
        time.sleep(0.02)
    return result


def kinds(cloud: Cloud) -> list[str]:
    return [resource.kind for resource in cloud.resources()]


def operations(fake: FakeCloud, *, mutating: bool | None = None) -> list[str]:
    return [call["operation"] for call in fake.calls(mutating=mutating)]


def delete_all(cloud: Cloud) -> None:
    for resource in sorted(cloud.resources(), key=lambda resource: resource.stage):
        until_deleted(cloud, resource)


def until_deleted(cloud: Cloud, resource: Resource) -> None:
    def gone() -> bool:
        try:
            cloud.delete(resource)
        except Blocked:
            return False
        return True

    until(gone, bool)


def group_rules(cloud: OciCloud, nsg: str) -> list[tuple[Any, ...]]:
    result = cloud.api.list_all("network.list_network_security_group_security_rules", nsg)
    return sorted(
        (
            rule["direction"],
            rule.get("source") or rule.get("destination"),
            (rule.get("tcpOptions") or {}).get("destinationPortRange", {}).get("min"),
        )
        for rule in result
    )
