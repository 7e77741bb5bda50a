"""Run gpuctl's providers and a fake cloud in this process: cause faults in commands, and inspect the real state.

Commands run on a fast clock. A killed command finds its files as they were at that moment, and nothing that it does
afterwards reaches the cloud.
"""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from clouds import Kind

from inventories.disk.store import ClusterFolder
from provision.errors import ProvisionError
from provision.records import Target
from provision.rented import tags
from provision.rented.interface import Cloud, connect
from provision.rented.provider import CloudProvider
from provision.rented.state import CloudState
from tests.fakes.client import GONE, FakeCloud, start_fake

SPEED = 30.0
"""Simulated seconds in a real one."""
MACHINE_S = 3.0
"""Seconds until a machine has started, or has ended."""
LONGEST_LAG_S = 2.0
CONSISTENCY_S = 4.0
DEADLINE_S = 900.0
"""Of one command under any fault, in simulated seconds."""

ERRORS: dict[str, dict[str, dict[str, Any]]] = {
    "oci": {
        "throttled": {"status": 429, "code": "TooManyRequests"},
        "expired": {"status": 401, "code": "NotAuthenticated"},
        "broken": {"status": 500, "code": "InternalServerError"},
    },
    "aws": {
        "throttled": {"status": 503, "code": "RequestLimitExceeded"},
        "expired": {"status": 400, "code": "RequestExpired"},
        "broken": {"status": 500, "code": "InternalError"},
    },
}
LATE_FAILURES = {"oci": "Out of host capacity.", "aws": "Server.InsufficientInstanceCapacity: none left"}
OPERATIONS: dict[str, dict[str, str]] = {
    "oci": {"launches": "LaunchInstance", "ends": "TerminateInstance", "lists": "ListInstances"},
    "aws": {"launches": "RunInstances", "ends": "TerminateInstances", "lists": "DescribeInstances"},
}
ONCE = frozenset(
    {"vcn", "vpc", "internetgateway", "internet-gateway", "routetable", "route-table", "securitylist"}
    | {"subnet", "networksecuritygroup", "security-group", "key-pair", "natgateway", "vpc-endpoint"}
)
"""Kinds of resources of which each name may exist once."""


class Killed(BaseException):
    """The command was killed."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of some calls."""

    what: str
    """One of ERRORS, or of the fakes' own kinds."""
    where: str
    """One of OPERATIONS, or `calls`, `changes`, `deletions`."""
    nth: int
    times: int
    """0: from then on."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Faults during one command. Zones by their number in `Kind.zones`."""

    faults: tuple[Fault, ...] = ()
    capacity: dict[int, int] = field(default_factory=dict)
    late: frozenset[int] = frozenset()
    quota: int | None = None
    interrupt: int | None = None
    """Ctrl-C comes at this wait of the command."""
    kill_before: int | None = None
    """It is killed before this call."""
    kill_after: int | None = None
    """It is killed after this call has been answered."""


CALM = Trouble()


class Clock:
    """A fast clock that presses Ctrl-C at the `interrupt`-th wait of the main thread."""

    interrupt: int | None = None

    def now(self) -> float:
        return time.monotonic() * SPEED

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / SPEED)
        if self.interrupt is not None and threading.current_thread() is threading.main_thread():
            self.interrupt -= 1
            if self.interrupt == 0:
                self.interrupt = None
                raise KeyboardInterrupt


class Wire:
    """Between gpuctl and the cloud: where commands are killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._trouble = CALM
        self._dead = False
        self._die: Callable[[], None] = lambda: None

    def begin(self, trouble: Trouble, die: Callable[[], None]) -> None:
        """Begin a command. `die` is called at the moment at which it is killed."""
        self._calls, self._trouble, self._dead, self._die = 0, trouble, False, die

    def through(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a call so that the command is killed at the chosen call."""

        def made(*arguments: Any) -> Any:
            with self._lock:
                self._calls += 1
                number = self._calls
            self._pass(self._trouble.kill_before == number)
            try:
                return call(*arguments)
            finally:
                self._pass(self._trouble.kill_after == number)

        return made

    def _pass(self, last: bool) -> None:
        with self._lock:
            if last and not self._dead:
                self._dead = True
                self._die()
            if self._dead:
                raise Killed


@dataclass(kw_only=True, repr=False)
class Account:
    """A fake cloud, and gpuctl's way to it."""

    kind: Kind
    fake: FakeCloud
    clock: Clock
    wire: Wire
    homes: Iterator[Path]
    connect: Callable[[Target, Any], Cloud]

    def __repr__(self) -> str:
        return self.kind.provider

    @property
    def api(self) -> Any:
        """Return the cloud's own API, for the actions of other users."""
        return self.connect(Target(provider=self.kind.provider), self.clock).api  # type: ignore[attr-defined]


@contextlib.contextmanager
def an_account(kind: Kind, folder: Path) -> Iterator[Account]:
    """Yield a running fake cloud, also set in the environment of this process."""
    wire = Wire()

    @cache  # botocore is slow to read its description of EC2
    def connect_once(target: Target, clock: Clock) -> Any:
        cloud: Any = connect(target, clock)
        cloud.api._once = wire.through(cloud.api._once)
        return cloud

    with start_fake(kind.fake, folder) as fake, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("GPUCTL_", "AWS_", "OCI_"))]:
            patch.delenv(name)
        for name, value in fake.env.items():
            patch.setenv(name, value)
        patch.setenv("GPUCTL_CONSISTENCY_S", str(CONSISTENCY_S))
        homes = (folder / f"home-{number}" for number in range(1_000_000))
        yield Account(kind=kind, fake=fake, clock=Clock(), wire=wire, homes=homes, connect=connect_once)


class World:
    """An account as new, with something of others in it, and a home as new."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.kind, self.fake, self.clock = account.kind, account.fake, account.clock
        self.home = next(account.homes)
        self.home.mkdir()
        self.most: dict[str, int] = {}
        """How many machines were asked for at most, by the cluster's id."""
        self.twice = False
        """True after a repeated request without a token: a resource may exist twice."""
        self.fake.reset()
        self.quiet()
        account.wire.begin(CALM, lambda: None)
        make_foreign(account.kind, account.api, account.fake)
        self._foreign = self._everything()

    def command(
        self, trouble: Trouble, lag_s: float, run: Callable[[], Any]
    ) -> tuple[BaseException | None, Any]:
        """Run the command under that trouble, with lists that lag; return its error and its result."""
        backup = self.home.with_name(f"{self.home.name}-killed")
        error: BaseException | None = None
        answer: Any = None
        self.fake.settings(list_lag_s=lag_s)
        self._cause(trouble)
        self.account.wire.begin(trouble, lambda: copy_all(self.home, backup))
        began = self.clock.now()
        try:
            answer = run()
        except (ProvisionError, KeyboardInterrupt, Killed) as raised:
            error = raised
        took_s = self.clock.now() - began
        self.account.wire.begin(CALM, lambda: None)
        self.quiet()
        if backup.exists():
            shutil.rmtree(self.home)
            backup.rename(self.home)
        assert took_s < DEADLINE_S
        return error, answer

    def quiet(self) -> None:
        """Clear all faults, except the lag of lists."""
        self.clock.interrupt = None
        self.fake.clear_faults()
        calm = {"capacity": {}, "quota": {}, "late_failure": {}}
        self.fake.settings(speed=SPEED, launch_s=MACHINE_S, terminate_s=MACHINE_S, page_size=3, **calm)

    def folder(self, name: str) -> ClusterFolder:
        """Return this computer's record of a cluster."""
        return ClusterFolder(self.home / "clusters" / name)

    def provider(self, name: str) -> CloudProvider:
        """gpuctl's way to a cluster."""
        return CloudProvider(
            self.kind.provider, self.folder(name), clock=self.clock, connect=self.account.connect
        )

    def id_of(self, name: str) -> str | None:
        """Return the cluster's id from this computer's records, or `None`."""
        record = CloudState(self.folder(name)).load()
        return record.id if record else None

    def machines(self, name: str) -> dict[str, str]:
        """State of each machine that the cluster has, in truth."""
        cluster = self.id_of(name)
        return {
            item["id"]: item["state"].lower()
            for item in self.fake.state()["instances"]
            if cluster is not None
            and item["tags"].get(tags.CLUSTER_ID) == cluster
            and item["state"].lower() not in GONE
        }

    def ours(self, cluster: str | None = None) -> list[dict[str, Any]]:
        """Return existing items with our tags, without any lag: of one cluster, or of all."""
        owned = [item for item in self.fake.owned() if tags.is_ours(item["tags"])]
        return [item for item in owned if cluster in (None, item["tags"].get(tags.CLUSTER_ID))]

    def told(self, machines: set[str], message: str) -> bool:
        """Return whether a message names each machine, or the tag of its launch."""
        of = {item["id"]: item["tags"] for item in self.fake.state()["instances"]}
        return all(item in message or of[item].get(tags.LAUNCH, item) in message for item in machines)

    def end_one(self, name: str) -> None:
        """End a running machine, if any, as another user of the account would."""
        running = sorted(machine for machine, state in self.machines(name).items() if state == "running")
        if running and self.kind.provider == "oci":
            self.account.api.call("compute.terminate_instance", running[0])
        elif running:
            self.account.api.call("terminate_instances", InstanceIds=running[:1])

    def check(self) -> None:
        """Check the invariants that hold at any time."""
        maximum = self.fake.state()["most_by_cluster"]
        assert all(count <= self.most[cluster] for cluster, count in maximum.items()), (maximum, self.most)
        now = self._everything()
        assert {item: now.get(item) for item in self._foreign} == self._foreign, "others are left alone"
        names = [
            (item["kind"], *(item["tags"].get(tag) for tag in (tags.CLUSTER, tags.CLUSTER_ID, "Name")))
            for item in self.ours()
            if item.get("kind") in ONCE
        ]
        assert self.twice or len(names) == len(set(names)), sorted(names, key=str)

    def _cause(self, trouble: Trouble) -> None:
        for fault in trouble.faults:
            error = ERRORS[self.kind.provider].get(fault.what)
            kind = {"kind": "error", **error} if error else {"kind": fault.what}
            of = OPERATIONS[self.kind.provider] | {"calls": "*", "changes": "*", "deletions": "Delete*"}
            changes = True if fault.where == "changes" else None
            self.fake.fault(
                operation=of[fault.where], mutating=changes, nth=fault.nth, times=fault.times, **kind
            )
            self.twice |= fault.what == "duplicate"
        shape, zones = self.kind.shape, self.kind.zones
        self.fake.settings(
            capacity={shape: {zones[at]: room for at, room in trouble.capacity.items()}},
            quota={} if trouble.quota is None else {shape: trouble.quota},
            late_failure={zones[at]: LATE_FAILURES[self.kind.provider] for at in trouble.late},
        )
        self.clock.interrupt = trouble.interrupt

    def _everything(self) -> dict[str, tuple[Any, ...]]:
        state = self.fake.state()
        return {
            item["id"]: (item["state"], item["tags"]) for item in (*state["instances"], *state["resources"])
        }


def copy_all(source: Path, target: Path) -> None:
    """Copy a folder in which other threads may be writing: their temporary files come and go."""

    def copy(path: str, to: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(path, to)

    shutil.copytree(source, target, copy_function=copy)


def make_foreign(kind: Kind, api: Any, fake: FakeCloud) -> None:
    """Create a network with a machine of another owner, named and tagged nearly like ours."""
    {"oci": make_foreign_oci, "aws": make_foreign_aws}[kind.provider](kind, api)
    deadline = time.monotonic() + 10
    while any(item["state"].lower() != "running" for item in fake.state()["instances"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def make_foreign_oci(kind: Kind, api: Any) -> None:
    common = {"compartmentId": api.compartment, "freeformTags": {tags.CLUSTER: "default"}}
    vcn = {**common, "displayName": "gpuctl", "cidrBlocks": ["10.78.0.0/16"]}
    inside = {**common, "vcnId": api.call("network.create_vcn", vcn, again=True)["id"]}
    subnet = {**inside, "displayName": "gpuctl public", "cidrBlock": "10.78.0.0/17"}
    made = api.settled(lambda: api.call("network.create_subnet", subnet, again=True))
    group = {**inside, "displayName": "gpuctl default"}
    api.settled(lambda: api.call("network.create_network_security_group", group, again=True))
    machine = {
        **common,
        "displayName": "default-0",
        "availabilityDomain": kind.zones[0],
        "shape": kind.other_shape,
        "sourceDetails": {
            "sourceType": "image",
            "imageId": api.listed("compute.list_images", shape=kind.other_shape)[0]["id"],
        },
        "createVnicDetails": {"subnetId": made["id"]},
    }
    api.settled(lambda: api.call("compute.launch_instance", machine, again=True))


def make_foreign_aws(kind: Kind, api: Any) -> None:

    def tagged(kind: str, name: str) -> list[dict[str, Any]]:
        pairs = [{"Key": "Name", "Value": name}, {"Key": tags.CLUSTER, "Value": "default"}]
        return [{"ResourceType": kind, "Tags": pairs}]

    vpc = api.call("create_vpc", CidrBlock="10.77.0.0/16", TagSpecifications=tagged("vpc", "gpuctl"))
    where = {"VpcId": vpc["Vpc"]["VpcId"]}
    zone = kind.zones[0]
    subnet = api.call("create_subnet", CidrBlock="10.77.0.0/20", AvailabilityZone=zone, **where)
    api.call("create_security_group", GroupName="gpuctl-default", Description="of others", **where)
    api.call(
        "run_instances",
        ImageId=api.call("describe_images", Owners=["amazon"])["Images"][0]["ImageId"],
        InstanceType=kind.other_shape,
        SubnetId=subnet["Subnet"]["SubnetId"],
        MinCount=1,
        MaxCount=1,
        TagSpecifications=tagged("instance", "default-0"),
    )
