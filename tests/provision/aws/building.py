"""A fake AWS for tests of `provision.aws`, a clock that runs fast, and what they ask it for."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inventories.disk.store import Journal
from provision.aws.cloud import AwsCloud
from provision.errors import Blocked
from provision.records import CloudCluster, Infrastructure, Instance, NewMachine, Offer, Target, Zone
from provision.rented.find_or_create import Ensure
from provision.waiting import Say, quiet
from tests.fakes.client import FakeCloud, start_fake

SPEED = 50.0
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFv0qXc9z2z5vqXbI1m0Zk3oW1m1m1m1m1m1m1m1m1m1"
USER_DATA = "#cloud-config\n{}\n"
NEW = tuple(NewMachine(name=f"demo-{rank}", rank=rank, user_data="") for rank in range(2))
"""Machines as a preview takes them."""


class FastClock:
    """Real time, SPEED times as fast."""

    def now(self) -> float:
        return time.monotonic() * SPEED

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / SPEED)


@contextmanager
def running_fake(home: Path) -> Iterator[FakeCloud]:
    """The fake, in the environment of this process as well."""
    with start_fake("aws_proxy", home) as fake, pytest.MonkeyPatch.context() as patch:
        for name, value in fake.env.items():
            patch.setenv(name, value)
        patch.setenv("GPUCTL_CONSISTENCY_S", "5")
        yield fake


def a_cluster(shape: str = "g5.12xlarge", **changes: Any) -> CloudCluster:
    """Return a cluster with this request."""
    plain = CloudCluster(
        name="demo",
        id="a1b2c3d4e5f60718",
        owner="somebody@somewhere",
        created_at="2026-11-21T09:00:00Z",
        target=Target(provider="aws", region="us-east-1"),
        shape=shape,
        ssh_cidrs=("198.51.100.7/32",),
    )
    return replace(plain, **changes)


class User:
    """A user of the fake account with a separate home."""

    def __init__(self, home: Path, cloud: AwsCloud | None = None, *, say: Say = quiet) -> None:
        self.clock = FastClock()
        # botocore needs half a second to read its EC2 model.
        self.cloud = cloud or AwsCloud(Target(provider="aws"), clock=self.clock)
        home.mkdir(parents=True, exist_ok=True)
        self.ensure = Ensure(
            Journal(home / "cluster.jsonl"),
            Journal(home / "network.jsonl"),
            clock=self.clock,
            consistency_s=self.cloud.consistency_s,
            say=say,
        )

    def infrastructure(self, cluster: CloudCluster, offer: Offer, zone: Zone | None = None) -> Infrastructure:
        infrastructure = self.cloud.prepare(cluster, offer, PUBLIC_KEY, self.ensure)
        return self.cloud.prepare_zone(cluster, offer, infrastructure, zone or offer.zones[0], self.ensure)

    def launch(
        self, cluster: CloudCluster, count: int = 2, *, token: str = "t" * 32, zone: Zone | None = None
    ) -> tuple[str, ...]:
        """Ground, request, send; the ids."""
        offer = self.cloud.offer(cluster)
        infrastructure = self.infrastructure(cluster, offer, zone)
        machines = [
            NewMachine(name=f"{cluster.name}-{rank}", rank=rank, user_data=USER_DATA) for rank in range(count)
        ]
        where = zone or offer.zones[0]
        (request,) = self.cloud.requests(cluster, offer, infrastructure, where, token, machines)
        return self.cloud.send(request)

    def remove_all(self) -> None:
        """Machines, then parts by their stages."""
        self.cloud.terminate([machine.id for machine in self.cloud.instances() if machine.alive])
        self.wait(lambda: all(machine.state == "ended" for machine in self.cloud.instances()))
        self.wait(self._delete_parts)

    def _delete_parts(self) -> bool:
        for resource in sorted(self.cloud.resources(), key=lambda resource: resource.stage):
            try:
                self.cloud.delete(resource)
            except Blocked:
                return False
        return not self.cloud.resources()

    def wait(self, done: Callable[[], bool], seconds: float = 10.0) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, "it did not come true in time"
            time.sleep(0.02)


def operations(fake: FakeCloud) -> list[str]:
    """The calls that changed something."""
    return [call["operation"] for call in fake.calls(mutating=True)]


def running(user: User, count: int) -> tuple[Instance, ...]:
    """The machines once `count` of them run."""
    user.wait(lambda: sum(machine.state == "running" for machine in user.cloud.instances()) == count)
    return tuple(machine for machine in user.cloud.instances() if machine.alive)
