"""Implement `provision.rented.interface.Cloud` in memory, with a clock that advances when somebody sleeps.

Every account, region and compartment is a world of its own. Worlds are as unkind as clouds are: lists are late, a
machine that is not listed yet can't be ended, replies are lost, machines fail after their launch was accepted. A
world records the calls and the maximum number of machines at any time.
"""

import itertools
import json
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from clocks import StepClock

from provision.errors import Blocked, Capacity, Gone, Quota, TokenSpent
from provision.findings import Finding
from provision.records import (
    CloudCluster,
    Infrastructure,
    Instance,
    InstanceState,
    NewMachine,
    Offer,
    Preview,
    Resource,
    Target,
    Zone,
)
from provision.rented import tags
from provision.rented.find_or_create import Ensure
from provision.rented.planning.preview import Previewer
from provision.waiting import Clock

T = TypeVar("T")

ACCOUNT = "account-one"
REGION = "region-a"
ZONES = ("a-1", "a-2", "a-3")
CONSISTENCY_S = 60.0
LONGEST_S = 50_000.0
MOST_CALLS = 50_000
BEGAN = datetime(2026, 11, 21, 6, tzinfo=UTC)
STAGES = {"nsg": 0, "gateway": 1, "subnet": 2, "vcn": 3}
CHANGES = frozenset({"prepare", "prepare_zone", "make resource", "send", "terminate", "delete"})
"""Calls that change something."""


class WaitsForEver(BaseException):
    """A loop has no end."""


class StubClock(StepClock):
    """A clock in whose sleep somebody can press Ctrl-C."""

    def __init__(self) -> None:
        super().__init__()
        self._presses: list[Callable[[], bool]] = []

    def press_ctrl_c(self, when: Callable[[], bool]) -> None:
        """Raise KeyboardInterrupt once, in the first sleep at whose end `when` holds, after all earlier presses."""
        self._presses.append(when)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self._presses and self._presses[0]():
            self._presses.pop(0)
            raise KeyboardInterrupt
        if self.time > LONGEST_S:
            raise WaitsForEver


@dataclass(kw_only=True)
class StubMachine:
    id: str
    tags: dict[str, str]
    rank: int | None
    shape: str
    zone: str
    group: str | None = None
    subnet: str | None = None
    made_at: float
    listed_at: float
    """From when on lists have it, and calls about it are heard."""
    running_at: float
    ending_at: float = math.inf
    ended_at: float = math.inf
    immortal: bool = False
    stopped: bool = False
    reason: str | None = None
    failure: Exception | None = None
    user_data: str = ""

    def state(self, now: float) -> InstanceState:
        if now >= self.ended_at:
            return "ended"
        if now >= self.ending_at:
            return "ending"
        if self.stopped:
            return "stopped"
        return "running" if now >= self.running_at else "pending"


@dataclass(kw_only=True)
class StubResource:
    resource: Resource
    made_at: float
    deleted_at: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Call:
    """`living`: ids of the machines that had not ended when it came."""

    name: str
    argument: Any
    at: float
    account: str
    region: str
    living: tuple[str, ...]


@dataclass(kw_only=True)
class Rule:
    """A reaction to a call: `do` is run with the call's argument, before the call is performed or after it."""

    call: str
    do: Callable[[Any], object]
    match: Callable[[Any], bool]
    times: float
    performed: bool


class World:
    """A region and compartment of one account. Attributes set its behaviour."""

    def __init__(self, account: str, region: str, clock: StubClock, calls: list[Call]) -> None:
        self.account = account
        self.region = region
        self.clock = clock
        self.calls = calls
        self.lock = threading.RLock()
        self.zones = ZONES
        self.pending_s = 30.0
        self.ending_s = 20.0
        self.list_lag_s = 5.0
        """Delay in seconds until a list shows a new machine."""
        self.address_lag_s = 0.0
        """How long after it runs a machine gets its addresses."""
        self.ended_listed_s = 3600.0
        self.deleted_listed_s = 0.0
        self.capacity: dict[str, int] = {}
        """Maximum number of machines in a zone; unlimited for zones without an entry."""
        self.quota = math.inf
        self.lists_others = False
        """Lists wrongly include resources without our tag."""
        self.blocked_until: dict[str, float] = {}
        """Until when a part can't be deleted, by id."""
        self.machines: dict[str, StubMachine] = {}
        self.resources: dict[str, StubResource] = {}
        self.ssh_cidrs: dict[str, tuple[str, ...]] = {}
        """From where SSH is let in, by the nsg's id."""
        self.sent: list[dict[str, Any]] = []
        """All launch requests received, also refused ones."""
        self.peak = 0
        """The maximum number of machines at any time, including machines that are ending."""
        self._tokens: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._rules: list[Rule] = []
        self._late: list[tuple[Callable[[StubMachine], bool], float, Exception]] = []
        self._numbers = itertools.count(1)

    def on(
        self,
        call: str,
        do: Callable[[Any], object] | BaseException,
        *,
        match: Callable[[Any], bool] = lambda _: True,
        times: float = 1,
        performed: bool = False,
    ) -> None:
        """Run or raise `do` at the next `times` matching calls of that name ("*": of any).

        `performed`: after the call was performed, as if its reply was lost.
        """

        def throw(_: Any) -> None:
            assert isinstance(do, BaseException)
            raise do

        run = throw if isinstance(do, BaseException) else do
        self._rules.append(Rule(call=call, do=run, match=match, times=times, performed=performed))

    def calm(self) -> None:
        """Forget all rules."""
        self._rules.clear()

    def fail_late(
        self, error: Exception, *, after_s: float, match: Callable[[StubMachine], bool] = lambda _: True
    ) -> None:
        """Accept matching machines, then end them with that error before they run."""
        self._late.append((match, after_s, error))

    def called(self, *names: str) -> list[Call]:
        """Return the calls of these names in this world, in order."""
        mine = [call for call in self.calls if (call.account, call.region) == (self.account, self.region)]
        return [call for call in mine if call.name in names]

    def changes(self) -> list[Call]:
        """Return the calls that change something."""
        return self.called(*CHANGES)

    def living(self) -> list[StubMachine]:
        """Return the machines that have not ended."""
        return [machine for machine in self.machines.values() if self.state(machine) != "ended"]

    def state(self, machine: StubMachine) -> InstanceState:
        return machine.state(self.clock.now())

    def add_machine(
        self,
        of: Mapping[str, str],
        *,
        rank: int | None = None,
        zone: str = ZONES[0],
        shape: str = "VM.GPU.A10.1",
        lag_s: float | None = None,
        age_s: float = 0.0,
        **fields: Any,
    ) -> StubMachine:
        """Add a machine, `pending` unless `age_s` makes it older."""
        with self.lock:
            made_at = self.clock.now() - age_s
            machine = StubMachine(
                id=f"i-{self.account}-{self.region}-{next(self._numbers):03}",
                tags=dict(of),
                rank=rank,
                shape=shape,
                zone=zone,
                made_at=made_at,
                listed_at=made_at + (self.list_lag_s if lag_s is None else lag_s),
                running_at=made_at + self.pending_s,
                **fields,
            )
            for match, after_s, error in self._late:
                if match(machine):
                    machine.ending_at = machine.ended_at = made_at + after_s
                    machine.failure, machine.reason = error, str(error)
                    machine.running_at = math.inf
            self.machines[machine.id] = machine
            self.peak = max(self.peak, len(self.living()))
            return machine

    def end(self, machine: StubMachine, *, reason: str | None = None, at_once: bool = True) -> None:
        """End the machine, on its own or by request."""
        now = self.clock.now()
        if self.state(machine) in ("ending", "ended") or machine.immortal:
            return
        machine.ending_at = now
        machine.ended_at = now + (0.0 if at_once else self.ending_s)
        machine.reason = reason

    def end_all(self) -> None:
        """End all machines on their own, as at the end of their lease."""
        for machine in self.machines.values():
            self.end(machine)

    def add_resource(self, kind: str, of: Mapping[str, str], name: str = "") -> Resource:
        """Add a resource, listed at once."""
        with self.lock:
            number = next(self._numbers)
            resource = Resource(
                kind=kind,
                id=f"{kind}-{self.account}-{self.region}-{number:03}",
                name=name or kind,
                tags=dict(of),
                stage=STAGES[kind],
            )
            self.resources[resource.id] = StubResource(resource=resource, made_at=self.clock.now())
            return resource

    def there(self, kind: str | None = None) -> list[Resource]:
        """Return the resources that are not deleted."""
        all_of = [stub.resource for stub in self.resources.values() if stub.deleted_at == math.inf]
        return [resource for resource in all_of if kind in (None, resource.kind)]

    def perform(self, name: str, argument: Any, do: Callable[[], T]) -> T:
        """Record a call, apply its rules, and run `do` to perform it."""
        with self.lock:
            living = tuple(machine.id for machine in self.living())
            where = {"account": self.account, "region": self.region}
            self.calls.append(Call(name=name, argument=argument, at=self.clock.now(), living=living, **where))
            if len(self.calls) > MOST_CALLS:
                raise WaitsForEver
            self._follow(name, argument, performed=False)
            result = do()
            self._follow(name, argument, performed=True)
            return result

    def _follow(self, name: str, argument: Any, *, performed: bool) -> None:
        for rule in tuple(self._rules):
            fits = rule.call in (name, "*") and rule.performed == performed
            if fits and rule.times > 0 and rule.match(argument):
                rule.times -= 1
                rule.do(argument)

    def launch(self, request: Mapping[str, Any]) -> tuple[str, ...]:
        """Launch all machines of the request, or raise an error; a token launches only once."""
        text = json.dumps(request, sort_keys=True)
        self.sent.append(json.loads(text))
        known = self._tokens.get(request["token"])
        if known is not None:
            was, ids = known
            if was != text:
                raise TokenSpent("The token stood for another request.", code="IdempotentParameterMismatch")
            if any(self.state(self.machines[i]) in ("ending", "ended") for i in ids):
                raise TokenSpent("The token's machines have ended.", code="IdempotentInstanceTerminated")
            return ids
        if request["group"] not in {resource.id for resource in self.there()}:
            raise Gone(f"There is no {request['group']}.", code="NotFound")
        ranks, zone = request["ranks"], request["zone"]
        if len(self.living()) + len(ranks) > self.quota:
            raise Quota(f"The limit is {self.quota:.0f} machines.", code="LimitExceeded")
        if sum(m.zone == zone for m in self.living()) + len(ranks) > self.capacity.get(zone, math.inf):
            raise Capacity(f"There is none in {zone}.", code="OutOfHostCapacity")
        made = [
            self.add_machine(
                request["tags"],
                rank=rank,
                zone=zone,
                shape=request["shape"],
                group=request["group"],
                subnet=request["subnet"],
                user_data=request["user_data"],
            )
            for rank in ranks
        ]
        self._tokens[request["token"]] = (text, tuple(machine.id for machine in made))
        return self._tokens[request["token"]][1]

    def list_machines(self, cluster_id: str | None) -> tuple[Instance, ...]:
        now = self.clock.now()
        return tuple(
            Instance(
                id=machine.id,
                tags=dict(machine.tags),
                rank=machine.rank,
                state=self.state(machine),
                shape=machine.shape,
                zone=Zone(name=machine.zone),
                launched_at=(BEGAN + timedelta(seconds=machine.made_at)).isoformat(),
                reason=machine.reason if self.state(machine) in ("ending", "ended") else None,
            )
            for machine in self.machines.values()
            if machine.listed_at <= now < machine.ended_at + self.ended_listed_s
            and cluster_id in (None, machine.tags.get(tags.CLUSTER_ID))
            and (self.lists_others or tags.is_ours(machine.tags))
        )

    def terminate(self, ids: Collection[str]) -> None:
        for machine_id in ids:
            machine = self.machines[machine_id]
            # A resource too new for lists is unknown to other calls, too.
            if machine.listed_at <= self.clock.now():
                self.end(machine, reason="asked for", at_once=False)

    def list_resources(self) -> tuple[Resource, ...]:
        now = self.clock.now()
        return tuple(
            stub.resource
            for stub in self.resources.values()
            if now < stub.deleted_at + self.deleted_listed_s or stub.deleted_at == math.inf
            if self.lists_others or tags.is_ours(stub.resource.tags)
        )

    def delete(self, resource: Resource) -> None:
        stub = self.resources[resource.id]
        if stub.deleted_at < math.inf:
            return
        users = [machine.id for machine in self.living() if resource.id in (machine.group, machine.subnet)]
        if resource.kind == "vcn":
            users += [other.id for other in self.there() if other.kind != "vcn"]
        if users:
            raise Blocked(
                f"The {resource.kind} {resource.id} is used by {users[0]}.", code="DependencyViolation"
            )
        if self.clock.now() < self.blocked_until.get(resource.id, 0.0):
            raise Blocked(
                f"The {resource.kind} {resource.id} is used by something.", code="DependencyViolation"
            )
        stub.deleted_at = self.clock.now()


class StubCloud:
    """An account in one region, an implementation of `Cloud`."""

    name = "oci"
    consistency_s = CONSISTENCY_S

    def __init__(self, world: World, target: Target, *, one_request: bool) -> None:
        self.world = world
        self.target = target
        self.one_user_data = one_request
        self.all_or_none = one_request

    def offer(self, cluster: CloudCluster, *, terms: bool = False) -> Offer:
        def do() -> Offer:
            return Offer(
                shape=cluster.shape,
                gpus=1,
                image_id="image-1",
                image_name="image",
                user="ubuntu",
                disk_gb=cluster.disk_gb or 100,
                zones=tuple(Zone(name=zone) for zone in self.world.zones),
                hourly_usd=2.0,
            )

        return self.world.perform("offer", cluster, do)

    def preview(
        self,
        cluster: CloudCluster,
        offer: Offer,
        machines: Sequence[NewMachine],
        resources: Sequence[Resource],
        let_in: Sequence[str] = (),
    ) -> Preview:
        result = Previewer(cluster, resources)
        group = result.add("nsg", result.of_cluster("nsg"), ("create group", {}), name=cluster.name)
        if machines:
            ranks = [machine.rank for machine in machines]
            result.call(("launch", {"shape": offer.shape, "ranks": ranks, "group": group}))
        return result.preview()

    def prepare(self, cluster: CloudCluster, offer: Offer, public_key: str, ensure: Ensure) -> Infrastructure:
        def do() -> Infrastructure:
            shared = () if cluster.subnet_id else ("vcn", "gateway")
            ids = {kind: self._ensure(ensure, kind, kind, tags.of_network(cluster.owner)) for kind in shared}
            of = tags.of_cluster(cluster.name, cluster.id, cluster.owner)
            ids["nsg"] = self._ensure(ensure, "nsg", cluster.name, of)
            self.world.ssh_cidrs[ids["nsg"]] = cluster.ssh_cidrs
            return Infrastructure(ids=ids)

        return self.world.perform("prepare", cluster, do)

    def prepare_zone(
        self, cluster: CloudCluster, offer: Offer, infrastructure: Infrastructure, zone: Zone, ensure: Ensure
    ) -> Infrastructure:
        def do() -> Infrastructure:
            subnet = cluster.subnet_id or self._ensure(
                ensure, "subnet", zone.name, tags.of_network(cluster.owner)
            )
            return Infrastructure(ids={**infrastructure.ids, "subnet": subnet})

        return self.world.perform("prepare_zone", zone, do)

    def _ensure(self, ensure: Ensure, kind: str, name: str, of: Mapping[str, str]) -> str:
        def find() -> str | None:
            same = [p for p in self.world.list_resources() if (p.kind, p.name) == (kind, name)]
            ids = [p.id for p in same if p.tags.get(tags.CLUSTER_ID) == of.get(tags.CLUSTER_ID)]
            return min(ids, default=None)

        def create(token: str) -> str:
            return self.world.perform(
                "make resource", kind, lambda: self.world.add_resource(kind, of, name).id
            )

        return ensure(f"{kind} {name}", find=find, create=create, shared=tags.is_shared(of))

    def requests(
        self,
        cluster: CloudCluster,
        offer: Offer,
        infrastructure: Infrastructure,
        zone: Zone,
        launch: str,
        machines: Sequence[NewMachine],
    ) -> tuple[dict[str, Any], ...]:
        together = [machines] if self.all_or_none else [[machine] for machine in machines]
        of = tags.of_cluster(cluster.name, cluster.id, cluster.owner, cluster.expires_at)
        return tuple(
            {
                "token": "-".join([launch, *(str(machine.rank) for machine in group)]),
                "ranks": [machine.rank for machine in group],
                "zone": zone.name,
                "shape": offer.shape,
                "disk_gb": offer.disk_gb,
                "spot": cluster.spot,
                "public_ip": cluster.public_ip,
                "group": infrastructure.ids["nsg"],
                "subnet": infrastructure.ids["subnet"],
                "user_data": group[0].user_data,
                "tags": {**of, tags.LAUNCH: launch, tags.RANKS: tags.ranks_text(m.rank for m in group)},
            }
            for group in together
        )

    def send(self, request: Mapping[str, Any]) -> tuple[str, ...]:
        return self.world.perform("send", request, lambda: self.world.launch(request))

    def instances(self, cluster_id: str | None = None) -> tuple[Instance, ...]:
        return self.world.perform("instances", cluster_id, lambda: self.world.list_machines(cluster_id))

    def with_addresses(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        def addressed(instance: Instance) -> Instance:
            machine = self.world.machines[instance.id]
            if self.world.clock.now() < machine.running_at + self.world.address_lag_s:
                return instance
            number = int(instance.id.rpartition("-")[2]) % 250
            return replace(instance, public_ip=f"203.0.113.{number}", private_ip=f"10.0.0.{number}")

        def do() -> tuple[Instance, ...]:
            return tuple(addressed(instance) for instance in instances)

        return self.world.perform("with_addresses", instances, do)

    def user_data(self, machine_id: str) -> str:
        return self.world.perform("user_data", machine_id, lambda: self.world.machines[machine_id].user_data)

    def ssh_cidrs(self, cluster: CloudCluster) -> tuple[str, ...]:
        groups = [r.id for r in self.world.there("nsg") if r.tags.get(tags.CLUSTER_ID) == cluster.id]
        return self.world.ssh_cidrs[groups[0]] if groups else ()

    def admit_key(self, machine_id: str, user: str, public_key: str) -> str:
        return ""

    def failure(self, instance: Instance) -> Exception | None:
        return self.world.machines[instance.id].failure

    def terminate(self, ids: Sequence[str]) -> None:
        self.world.perform("terminate", tuple(ids), lambda: self.world.terminate(ids))

    def billed(self) -> tuple[tuple[Instance, ...], tuple[Resource, ...]]:
        return self.instances(), ()

    def resources(self) -> tuple[Resource, ...]:
        return self.world.perform("resources", None, self.world.list_resources)

    def delete(self, resource: Resource) -> None:
        self.world.perform("delete", resource, lambda: self.world.delete(resource))

    def regions(self) -> tuple[str, ...]:
        return (self.world.region,)

    def compartments(self) -> tuple[str, ...]:
        return ()

    def check(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        return ()


@dataclass(kw_only=True)
class StubClouds:
    """The accounts. `connect` is the function that a CloudProvider takes."""

    clock: StubClock = field(default_factory=StubClock)
    one_request: bool = False
    """True: one request per launch, as on AWS; else one per machine, as on OCI."""
    accounts: dict[str | None, str] = field(default_factory=lambda: {None: ACCOUNT})
    """The account of each profile's credentials; key `None`: the default credentials."""
    region: str = REGION
    """The default region, as set in the SDK's own configuration."""
    calls: list[Call] = field(default_factory=list)
    worlds: dict[tuple[str, str, str | None], World] = field(default_factory=dict)

    def world(self, account: str = ACCOUNT, region: str = REGION, compartment: str | None = None) -> World:
        """Return a world, created at its first use."""
        where = (account, region, compartment)
        if where not in self.worlds:
            name = f"{region}/{compartment}" if compartment else region
            self.worlds[where] = World(account, name, self.clock, self.calls)
        return self.worlds[where]

    def connect(self, target: Target, clock: Clock | None = None) -> StubCloud:
        """Return the cloud for a target; the account follows from the credentials, not from the target."""
        result = replace(target, region=target.region or self.region, account=self.accounts[target.profile])
        assert result.account is not None
        assert result.region is not None
        world = self.world(result.account, result.region, result.compartment)
        return StubCloud(world, result, one_request=self.one_request)

    def changes(self) -> list[Call]:
        """Return the calls that change something, in all worlds."""
        return [call for call in self.calls if call.name in CHANGES]
