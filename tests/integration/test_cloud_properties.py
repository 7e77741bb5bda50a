"""Random sequences of commands and of what goes wrong with them, on both clouds: what holds whatever happens.

Never more machines than were asked for; what is not ours stays as it is; what was begun can be removed whole; a
command ends in time; and it only says that something is done when it is.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
from clouds import KINDS, Kind
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from inventories.spec import Spec
from inventories.store import ClusterFolder
from provision.cloud import Cloud, Target
from provision.cloud_folder import CloudFolder
from provision.cloud_provider import CloudProvider
from provision.clouds import connect
from provision.errors import CreateFailed, LeftBehind, NoCapacity, ProvisionError, RefusedPlan
from provision.reap import reap
from tests.fakes.client import GONE, FakeCloud, start_fake

pytestmark = pytest.mark.slow

SPEED = 30.0
"""Simulated seconds in a real one."""
LONGEST_LAG_S = 2.0
CONSISTENCY_S = 4.0
DEADLINE_S = 900.0
"""For one command, in simulated seconds, whatever goes wrong."""
CLUSTERS = ("default", "second")
OTHER_SHAPES = {"oci": "VM.GPU.A10.1", "aws": "g5.xlarge"}
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
WHERE: dict[str, dict[str, dict[str, Any]]] = {
    "oci": {
        "any": {"operation": "*"},
        "changes": {"operation": "*", "mutating": True},
        "launches": {"operation": "LaunchInstance"},
        "ends": {"operation": "TerminateInstance"},
        "deletions": {"operation": "Delete*"},
        "lists": {"operation": "ListInstances"},
    },
    "aws": {
        "any": {"operation": "*"},
        "changes": {"operation": "*", "mutating": True},
        "launches": {"operation": "RunInstances"},
        "ends": {"operation": "TerminateInstances"},
        "deletions": {"operation": "Delete*"},
        "lists": {"operation": "DescribeInstances"},
    },
}
LATE_FAILURES = {"oci": "Out of host capacity.", "aws": "Server.InsufficientInstanceCapacity: none left"}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong with some calls."""

    what: str
    """One of ERRORS, or of the fake's own kinds."""
    where: str
    """One of WHERE."""
    nth: int
    times: int


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What goes wrong during one command. Places by their number in `Kind.places`."""

    faults: tuple[Fault, ...] = ()
    capacity: dict[int, int] = field(default_factory=dict)
    late: frozenset[int] = frozenset()
    quota: int | None = None
    interrupt: int | None = None
    """Ctrl-C comes at this wait of the command."""


CALM = Trouble()


@dataclass(frozen=True, kw_only=True)
class Step:
    """What somebody does, to which cluster, and what goes wrong meanwhile."""

    what: Literal["up", "up_with_another_shape", "down", "lose_home_and_reap", "end_a_machine"]
    name: str = CLUSTERS[0]
    number: int = 1
    """How many machines, or which one."""
    trouble: Trouble = CALM
    lag_s: float = 0.0
    """How long lists lag from now on."""


def sequence(seed: int) -> tuple[Step, ...]:
    """Hypothesis by itself favours what is small and alike: here an `up` of one machine without any trouble."""
    draw = Random(seed)
    whats = ("up", "up", "up", "up_with_another_shape", "down", "down", "lose_home_and_reap", "end_a_machine")
    return tuple(
        Step(
            what="up" if number == 0 else draw.choice(whats),
            name=draw.choice((CLUSTERS[0], *CLUSTERS)),
            number=draw.randint(1, 3),
            trouble=trouble(draw),
            lag_s=draw.choice((0.0, 0.5, LONGEST_LAG_S)),
        )
        for number in range(draw.randint(4, 6))
    )


def trouble(draw: Random) -> Trouble:
    faults = tuple(fault(draw) for _ in range(draw.choice((0, 1, 2, 3))))
    scarce = draw.random() < 0.3
    return Trouble(
        faults=faults,
        capacity={place: draw.randint(0, 2) for place in draw.sample(range(3), draw.randint(0, 3) * scarce)},
        late=frozenset(draw.sample(range(3), draw.randint(0, 2) * scarce)),
        quota=draw.randint(0, 2) if draw.random() < 0.1 else None,
        interrupt=draw.randint(1, 8) if draw.random() < 0.15 else None,
    )


def fault(draw: Random) -> Fault:
    where = draw.choice(tuple(WHERE["oci"]))
    what = draw.choice(("throttled", "expired", "broken", "drop_before", "drop_after", "duplicate"))
    most = {"any": 40, "changes": 12, "lists": 8}.get(where, 3)
    return Fault(what=what, where=where, nth=draw.randint(1, most), times=draw.randint(1, 4))


class Clock:
    """Fast, and somebody presses Ctrl-C at the `interrupt`-th wait of the main thread."""

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


@dataclass(kw_only=True, repr=False)
class Account:
    """A fake cloud, and gpuctl's way to it."""

    kind: Kind
    fake: FakeCloud
    clock: Clock
    homes: Iterator[Path]
    connect: Callable[[Target, Any], Cloud]

    @property
    def sdk(self) -> Any:
        """The way to the cloud's own calls, for what others do there."""
        return self.connect(Target(provider=self.kind.provider), self.clock)._api  # type: ignore[attr-defined]


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def account(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    kind: Kind = request.param
    with start_fake(kind.fake, tmp_path_factory.mktemp("cloud")) as fake, environment(fake):
        # botocore takes long to read what it knows of EC2.
        yield Account(
            kind=kind,
            fake=fake,
            clock=Clock(),
            homes=iter(lambda: tmp_path_factory.mktemp("home"), None),
            connect=cache(connect),
        )


@contextmanager
def environment(fake: FakeCloud) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("GPUCTL_", "AWS_", "OCI_")):
                patch.delenv(name)
        for name, value in fake.env.items():
            patch.setenv(name, value)
        patch.setenv("GPUCTL_CONSISTENCY_S", str(CONSISTENCY_S))
        yield


class World:
    """What people do with two clusters, and what must be so after each command."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.kind, self.fake, self.clock = account.kind, account.fake, account.clock
        self.home = next(account.homes)
        self.most: dict[str, int] = {}
        """How many machines were asked for at most, by the cluster's id."""
        self.forgotten = False
        """Whether there may be clusters of which only their tags tell."""
        self.fake.reset()
        self.quiet()
        make_foreign(self.account)
        self.foreign = self.everything()

    # What people do.

    def do(self, step: Step) -> None:
        self.fake.settings(list_lag_s=step.lag_s)
        if step.what == "up":
            self.up(step.name, step.number, step.trouble)
        elif step.what == "up_with_another_shape":
            self.up_with_another_shape(step.name, step.trouble)
        elif step.what == "down":
            self.down(step.name, step.trouble, forget=step.number > 1)
        elif step.what == "lose_home_and_reap":
            self.lose_home_and_reap(step.trouble)
        else:
            self.end_a_machine(step.name, step.number - 1)
        self.never_too_many()
        self.others_are_left_alone()

    def up(self, name: str, count: int, trouble: Trouble) -> None:
        before = self.machines(name)
        asked = self.asked(name)
        error, machines = self.command(trouble, lambda: self.make(name, self.kind.shape, count))
        live = self.machines(name)
        if error is None:
            assert machines is not None
            assert {machine.id for machine in machines} == set(live)
            assert [machine.rank for machine in machines] == list(range(count))
            assert set(live.values()) == {"running"}
        elif isinstance(error, RefusedPlan):
            assert count < asked, error
            assert live == before
        elif isinstance(error, NoCapacity | CreateFailed) and "are kept" not in str(error):
            assert set(live) <= set(before), "what failed is undone"
        elif isinstance(error, ProvisionError):
            assert self.told(set(live) - set(before), str(error)), error
        assert error is None or trouble != CALM or isinstance(error, RefusedPlan), error

    def up_with_another_shape(self, name: str, trouble: Trouble) -> None:
        before = self.machines(name)
        if not before or set(before.values()) != {"running"}:
            return
        self.fake.forget_calls()
        error, _ = self.command(trouble, lambda: self.make(name, OTHER_SHAPES[self.kind.provider], 1))
        assert error is not None
        assert self.fake.calls(mutating=True) == []
        assert self.machines(name) == before

    def down(self, name: str, trouble: Trouble, *, forget: bool) -> None:
        cluster = self.id_of(name)
        error, left = self.command(trouble, lambda: self.provider(name).destroy(note))
        live = self.machines(name)
        if isinstance(error, LeftBehind):
            assert self.told(set(live), str(error)), error
        if error is not None:
            assert trouble != CALM, error
            return
        assert left is not None
        assert not left or trouble != CALM, left
        assert {leftover.id for leftover in left} >= set(live)
        if not left:
            assert cluster is None or self.of(cluster) == []
            if forget:
                shutil.rmtree(self.folder(name).path, ignore_errors=True)

    def lose_home_and_reap(self, trouble: Trouble) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        self.forgotten = True
        # What nobody remembers is found once it is listed.
        self.clock.sleep(LONGEST_LAG_S)
        target = Target(provider=self.kind.provider)
        error, left = self.command(
            trouble,
            lambda: reap(self.account.connect(target, self.clock), None, say=note, clock=self.clock),
        )
        assert trouble != CALM or (error is None and not left), error or left
        if error is None and not left:
            assert self.ours() == []
            self.forgotten = False

    def end_a_machine(self, name: str, which: int) -> None:
        live = sorted(one for one, state in self.machines(name).items() if state == "running")
        if which < len(live):
            terminate(self.account, live[which])

    # What is so at any time.

    def never_too_many(self) -> None:
        most = self.fake.state()["most_by_cluster"]
        assert all(count <= self.most[cluster] for cluster, count in most.items()), (most, self.most)

    def others_are_left_alone(self) -> None:
        now = self.everything()
        assert {one: now.get(one) for one in self.foreign} == self.foreign

    def end(self) -> None:
        for name in CLUSTERS:
            self.down(name, CALM, forget=True)
        if self.forgotten:
            self.lose_home_and_reap(CALM)
        assert self.ours() == []
        self.never_too_many()
        self.others_are_left_alone()

    # How it is done.

    def command(self, trouble: Trouble, run: Callable[[], Any]) -> tuple[BaseException | None, Any]:
        """What the command raised or returned."""
        self.cause(trouble)
        began = self.clock.now()
        error: BaseException | None = None
        answer: Any = None
        try:
            answer = run()
        except (ProvisionError, KeyboardInterrupt) as raised:
            note(f"{type(raised).__name__}: {raised}")
            error = raised
        took_s = self.clock.now() - began
        self.quiet()
        assert took_s < DEADLINE_S
        return error, answer

    def make(self, name: str, shape: str, count: int) -> Any:
        provider = self.provider(name)
        plan = provider.plan(Spec(cluster=name, shape=shape, count=count, ssh_cidr="127.0.0.1/32"), None)
        cluster = plan.details.cluster.id
        self.most[cluster] = max(self.most.get(cluster, 0), count)
        return provider.create(plan, self.folder(name).journal, note)

    def cause(self, trouble: Trouble) -> None:
        for fault in trouble.faults:
            error = ERRORS[self.kind.provider].get(fault.what)
            kind = {"kind": "error", **error} if error else {"kind": fault.what}
            where = WHERE[self.kind.provider][fault.where]
            self.fake.fault(nth=fault.nth, times=fault.times, **where, **kind)
        places = self.kind.places
        self.fake.settings(
            capacity={self.kind.shape: {places[at]: room for at, room in trouble.capacity.items()}},
            quota={} if trouble.quota is None else {self.kind.shape: trouble.quota},
            late_failure={places[at]: LATE_FAILURES[self.kind.provider] for at in trouble.late},
        )
        self.clock.interrupt = trouble.interrupt

    def quiet(self) -> None:
        """Nothing goes wrong any more."""
        self.clock.interrupt = None
        self.fake.clear_faults()
        self.fake.settings(
            speed=SPEED, launch_s=3.0, terminate_s=3.0, page_size=3, capacity={}, quota={}, late_failure={}
        )

    def folder(self, name: str) -> ClusterFolder:
        return ClusterFolder(self.home / "clusters" / name)

    def provider(self, name: str) -> CloudProvider:
        return CloudProvider(
            self.kind.provider, self.folder(name), clock=self.clock, connect=self.account.connect
        )

    def id_of(self, name: str) -> str | None:
        record = CloudFolder(self.folder(name)).load()
        return record.id if record else None

    def asked(self, name: str) -> int:
        return self.most.get(self.id_of(name) or "", 0)

    def everything(self) -> dict[str, tuple[Any, ...]]:
        """All that is there, by id."""
        state = self.fake.state()
        return {one["id"]: (one["state"], one["tags"]) for one in (*state["instances"], *state["resources"])}

    def machines(self, name: str) -> dict[str, str]:
        """State of each machine that a cluster has, in truth."""
        cluster = self.id_of(name)
        return {
            one["id"]: one["state"].lower()
            for one in self.fake.state()["instances"]
            if cluster is not None
            and one["tags"].get("gpuctl-cluster-id") == cluster
            and one["state"].lower() not in GONE
        }

    def told(self, machines: set[str], message: str) -> bool:
        """Whether a message names the machines, or the tag by which they are found."""
        tags = {one["id"]: one["tags"] for one in self.fake.state()["instances"]}
        return all(one in message or tags[one].get("gpuctl-launch", one) in message for one in machines)

    def ours(self) -> list[dict[str, Any]]:
        """What carries our tags and is not gone."""
        return [one for one in self.fake.owned() if "gpuctl" in one["tags"]]

    def of(self, cluster: str | None) -> list[dict[str, Any]]:
        """What is there of one cluster."""
        return [one for one in self.ours() if cluster == one["tags"].get("gpuctl-cluster-id")]


def make_foreign(account: Account) -> None:
    """A network with a machine in it, of somebody else, named like ours."""
    if account.kind.provider == "oci":
        make_foreign_oci(account)
    else:
        make_foreign_aws(account)
    deadline = time.monotonic() + 10
    while any(one["state"].lower() != "running" for one in account.fake.state()["instances"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def make_foreign_oci(account: Account) -> None:
    api = account.sdk
    common = {"compartmentId": api.compartment}
    vcn = api.call(
        "network.create_vcn", {**common, "displayName": "gpuctl", "cidrBlocks": ["10.78.0.0/16"]}, again=True
    )["id"]
    body = {**common, "displayName": "gpuctl public", "vcnId": vcn, "cidrBlock": "10.78.0.0/17"}
    subnet = api.settled(lambda: api.call("network.create_subnet", body, again=True))["id"]
    group = {**common, "displayName": "gpuctl default", "vcnId": vcn}
    api.settled(lambda: api.call("network.create_network_security_group", group, again=True))
    image = api.listed("compute.list_images", shape=OTHER_SHAPES["oci"])[0]["id"]
    machine = {
        **common,
        "displayName": "default-0",
        "availabilityDomain": account.kind.places[0],
        "shape": OTHER_SHAPES["oci"],
        "sourceDetails": {"sourceType": "image", "imageId": image},
        "createVnicDetails": {"subnetId": subnet},
    }
    api.settled(lambda: api.call("compute.launch_instance", machine, again=True))


def make_foreign_aws(account: Account) -> None:
    api = account.sdk

    def named(kind: str, name: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": [{"Key": "Name", "Value": name}]}]

    vpc = api.call("create_vpc", CidrBlock="10.77.0.0/16", TagSpecifications=named("vpc", "gpuctl"))
    where = {"VpcId": vpc["Vpc"]["VpcId"]}
    zone = {"AvailabilityZone": account.kind.places[0]}
    subnet = api.call("create_subnet", CidrBlock="10.77.0.0/20", **zone, **where)["Subnet"]["SubnetId"]
    api.call("create_security_group", GroupName="gpuctl-default", Description="not ours", **where)
    image = api.call("describe_images", Owners=["amazon"])["Images"][0]["ImageId"]
    api.call(
        "run_instances",
        ImageId=image,
        InstanceType=OTHER_SHAPES["aws"],
        SubnetId=subnet,
        MinCount=1,
        MaxCount=1,
        TagSpecifications=named("instance", "default-0"),
    )


def terminate(account: Account, machine: str) -> None:
    if account.kind.provider == "oci":
        account.sdk.call("compute.terminate_instance", machine)
    else:
        account.sdk.call("terminate_instances", InstanceIds=[machine])


@settings(
    derandomize="EX" not in os.environ,
    deadline=None,
    max_examples=int(os.environ.get("EX", "25")),
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
    phases=(Phase.generate,),
)
@given(steps=st.integers(0, 2**32 - 1).map(sequence))
def test_whatever_happens(account: Account, steps: tuple[Step, ...]) -> None:
    world = World(account)
    for step in steps:
        world.do(step)
    world.end()
