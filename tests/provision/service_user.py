"""A user of a Kubernetes service of a cloud, as the tests of `provision.eks` and `provision.oke` have one."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from support import an_inventory

from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Machine
from inventories.specs.spec import Spec
from provision.provider import Leftover, Plan
from provision.rented.managed_kubernetes.provider import ManagedKubernetes


class ServiceUser(ABC):
    """A user with a separate home and one cluster."""

    service: ClassVar[str]
    shape: ClassVar[str]

    def __init__(self, home: Path, *, name: str = "demo") -> None:
        self.home = home
        self.name = name
        self.said: list[str] = []

    @property
    def folder(self) -> ClusterFolder:
        return Store(self.home).cluster(self.name)

    @property
    @abstractmethod
    def provider(self) -> ManagedKubernetes:
        """Create a new provider, as each command does."""

    def plan(self, count: int | None = 2, **spec: Any) -> Plan:
        request = {"shape": self.shape, "ssh_cidr": "198.51.100.7/32", "provider": self.service}
        current = self.folder.load() if self.folder.exists() else None
        return self.provider.plan(Spec(cluster=self.name, count=count, **(request | spec)), current)

    def up(self, count: int | None = 2, **spec: Any) -> tuple[Machine, ...]:
        plan = self.plan(count, **spec)
        machines = self.provider.create(plan, self.folder.journal, self.said.append)
        known = {"region": plan.region, "shape": plan.spec.shape, "hourly_usd": plan.hourly_usd}
        self.folder.save(an_inventory(*machines, cluster=self.name, provider=self.service, **known))
        return machines

    def down(self) -> tuple[Leftover, ...]:
        return self.provider.destroy(self.said.append)
