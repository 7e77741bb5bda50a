"""Nothing of a cluster stays, nothing of anybody else is touched, and what does stay is named."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from stub_cloud import StubClouds, StubMachine, World

from provision.errors import BadCredentials, Blocked, CloudError, Denied, LeftBehind, Throttled, Unclear
from provision.records import Resource, Target
from provision.rented import tags
from provision.rented.teardown import BLOCKED_TIMEOUT_S, ENDED_TIMEOUT_S, Removed, remove

ID = "cluster-1"
OURS = tags.of_cluster("default", ID, "me@here")
THEIRS = tags.of_cluster("other", "cluster-2", "she@there")
NETWORK = tags.of_network("me@here")
ERRORS = [Throttled("Too fast."), Unclear("No answer.")]


@dataclass(kw_only=True)
class Scene:
    """A region with a shared network and a cluster of three machines on it."""

    clouds: StubClouds = field(default_factory=StubClouds)
    world: World = field(init=False)
    vcn: Resource = field(init=False)
    gateway: Resource = field(init=False)
    subnet: Resource = field(init=False)
    nsg: Resource = field(init=False)
    machines: list[StubMachine] = field(init=False)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = self.clouds.world()
        self.vcn = self.world.add_resource("vcn", NETWORK)
        self.gateway = self.world.add_resource("gateway", NETWORK)
        self.subnet = self.world.add_resource("subnet", NETWORK)
        self.nsg = self.world.add_resource("nsg", OURS)
        self.machines = [self.add(rank, age_s=900) for rank in range(3)]

    @property
    def time(self) -> float:
        return self.clouds.clock.time

    def add(self, rank: int, **fields: Any) -> StubMachine:
        return self.world.add_machine(OURS, rank=rank, group=self.nsg.id, subnet=self.subnet.id, **fields)

    def down(self, **options: Any) -> Removed:
        cloud = self.clouds.connect(Target(provider="oci"))
        ids = options.pop("ids", {ID})
        return remove(cloud, ids, clock=self.clouds.clock, say=self.said.append, **options)

    def touched(self) -> set[str]:
        """Return the ids of everything that received a terminate or delete call."""
        ended = {i for call in self.world.called("terminate") for i in call.argument}
        return ended | {call.argument.id for call in self.world.called("delete")}

    def check_empty(self) -> None:
        assert self.world.living() == []
        assert self.world.there() == []


@pytest.fixture
def scene() -> Scene:
    return Scene()


def is_part(resource: Resource) -> Callable[[Any], bool]:
    return lambda argument: argument.id == resource.id


def test_teardown_removes_machines_then_parts_then_network(scene: Scene) -> None:
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()
    deletes = scene.world.called("delete")
    assert deletes[0].living == ()
    kinds = [call.argument.kind for call in deletes]
    assert [kind for n, kind in enumerate(kinds) if kind not in kinds[:n]] == [
        "nsg",
        "gateway",
        "subnet",
        "vcn",
    ]
    assert scene.down() == Removed(leftovers=()), "again: nothing to remove is success"


# Machines that lists tell of late.


@pytest.mark.parametrize("lag_s", [20.0, 50.0, 150.0])
@pytest.mark.parametrize("alone", [True, False])
def test_teardown_ends_a_machine_that_is_listed_late(scene: Scene, lag_s: float, alone: bool) -> None:
    if alone:
        scene.world.end_all()
    late = scene.add(3, lag_s=lag_s)
    assert scene.down() == Removed(leftovers=())
    assert scene.world.state(late) == "ended"
    scene.check_empty()


def test_teardown_watches_for_machines_of_an_interrupted_launch(scene: Scene) -> None:
    late = scene.world.add_machine(OURS, rank=3, lag_s=50)
    assert scene.down(watch_s=60) == Removed(leftovers=())
    assert scene.world.state(late) == "ended"
    assert scene.time >= 60


# Machines that don't end.


def test_teardown_denied_for_one_machine_ends_the_others(scene: Scene) -> None:
    saved = scene.machines[1]
    scene.world.on("terminate", Denied("No permission."), match=lambda ids: saved.id in ids, times=1e9)
    removed = scene.down()
    assert [scene.world.state(machine) for machine in scene.machines] == ["ended", "running", "ended"]
    by_id = {left.id: left for left in removed.leftovers}
    assert by_id[saved.id].kind == "instance"
    assert "No permission" in by_id[saved.id].reason
    assert by_id[scene.nsg.id].kind == "nsg"
    assert {resource.kind for resource in scene.world.there()} >= {"nsg", "vcn", "subnet"}
    assert scene.time < 2 * BLOCKED_TIMEOUT_S
    scene.world.calm()
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("performed", [True, False])
@pytest.mark.parametrize("times", [1, 6])
def test_teardown_retries_terminate_after_transient_errors(
    scene: Scene, error: CloudError, performed: bool, times: int
) -> None:
    scene.world.on("terminate", error, times=times, performed=performed)
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


def test_teardown_names_an_unending_machine_at_the_deadline(scene: Scene) -> None:
    scene.machines[2].immortal = True
    removed = scene.down()
    assert scene.machines[2].id in {left.id for left in removed.leftovers}
    assert scene.time < ENDED_TIMEOUT_S + 2 * BLOCKED_TIMEOUT_S
    assert [scene.world.state(machine) for machine in scene.machines[:2]] == ["ended", "ended"]


def test_teardown_waits_with_few_requests_for_an_unending_machine(scene: Scene) -> None:
    """Half an hour of looks, and of asking again."""
    scene.machines[2].immortal = True
    removed = scene.down()
    assert scene.time > ENDED_TIMEOUT_S
    assert scene.machines[2].id in {left.id for left in removed.leftovers}
    assert 3 <= len(scene.world.called("terminate")) <= 8
    assert len(scene.clouds.calls) <= 60


# Others in the region.


@pytest.mark.parametrize("of", ["nsg", "machine"])
def test_teardown_keeps_a_network_another_cluster_uses(scene: Scene, of: str) -> None:
    if of == "nsg":
        theirs = scene.world.add_resource("nsg", THEIRS).id
    else:
        theirs = scene.world.add_machine(THEIRS, rank=0, age_s=900).id
    removed = scene.down()
    assert removed == Removed(leftovers=(), network_users=("other",))
    assert scene.nsg not in scene.world.there()
    network = {scene.vcn.id, scene.gateway.id, scene.subnet.id}
    assert {resource.id for resource in scene.world.there()} >= network
    assert not scene.touched() & {theirs, *network}


def test_teardown_ignores_ended_machines_of_other_clusters(scene: Scene) -> None:
    scene.world.end(scene.world.add_machine(THEIRS, rank=0, age_s=900))
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


def test_teardown_keeps_the_network_for_a_cluster_that_appears(scene: Scene) -> None:
    scene.world.on("delete", lambda _: scene.world.add_resource("nsg", THEIRS), match=is_part(scene.nsg))
    assert scene.down().network_users == ("other",)
    assert not scene.touched() & {scene.vcn.id, scene.gateway.id, scene.subnet.id}


def test_teardown_stops_network_removal_when_a_cluster_appears(scene: Scene) -> None:
    scene.world.on("delete", lambda _: scene.world.add_resource("nsg", THEIRS), match=is_part(scene.gateway))
    removed = scene.down()
    assert removed == Removed(leftovers=(), network_users=("other",))
    assert not scene.touched() & {scene.vcn.id, scene.subnet.id}
    assert len(scene.world.there("nsg")) == 1


def test_teardown_stops_waiting_for_a_blocked_network_when_reused(scene: Scene) -> None:
    scene.world.blocked_until[scene.subnet.id] = 100
    scene.world.on(
        "delete",
        lambda _: scene.world.add_resource("nsg", THEIRS),
        match=lambda resource: resource.id == scene.subnet.id and scene.time > 40,
    )
    removed = scene.down()
    assert removed == Removed(leftovers=(), network_users=("other",))
    assert {resource.kind for resource in scene.world.there()} >= {"subnet", "vcn", "nsg"}


PRIVATE_NETWORK = tags.of_network("me@here", private=True)
THEIRS_PRIVATE = tags.of_cluster("other", "cluster-2", "she@there", private=True)


def test_teardown_removes_nat_with_the_last_private_cluster(scene: Scene) -> None:
    nat = scene.world.add_resource("gateway", PRIVATE_NETWORK)
    theirs = scene.world.add_resource("nsg", THEIRS)
    assert scene.down() == Removed(leftovers=(), network_users=("other",))
    assert {resource.id for resource in scene.world.there()} == {
        theirs.id,
        scene.vcn.id,
        scene.gateway.id,
        scene.subnet.id,
    }
    assert nat.id in scene.touched()


def test_teardown_keeps_nat_another_private_cluster_uses(scene: Scene) -> None:
    nat = scene.world.add_resource("gateway", PRIVATE_NETWORK)
    theirs = scene.world.add_machine(THEIRS_PRIVATE, rank=0, age_s=900)
    assert scene.down() == Removed(leftovers=(), network_users=("other",))
    shared = {nat.id, scene.vcn.id, scene.gateway.id, scene.subnet.id}
    assert {resource.id for resource in scene.world.there()} == shared
    assert not scene.touched() & {theirs.id, *shared}


def test_teardown_names_a_blocked_nat_while_the_network_is_shared(scene: Scene) -> None:
    nat = scene.world.add_resource("gateway", PRIVATE_NETWORK)
    scene.world.blocked_until[nat.id] = 1e9
    scene.world.add_resource("nsg", THEIRS)
    removed = scene.down()
    assert [left.id for left in removed.leftovers] == [nat.id]
    assert removed.network_users == ("other",)


@pytest.mark.parametrize("why", [Denied("No permission."), Blocked("Used.")], ids=["denied", "blocked"])
def test_teardown_removes_nat_though_a_security_group_stays(scene: Scene, why: CloudError) -> None:
    """Resources that may be billed do not wait for free ones."""
    nat = scene.world.add_resource("gateway", PRIVATE_NETWORK)
    scene.world.on("delete", why, match=is_part(scene.nsg), times=1e9)
    assert [left.id for left in scene.down().leftovers] == [scene.nsg.id]
    assert nat not in scene.world.there()
    assert not scene.touched() & {scene.vcn.id, scene.gateway.id, scene.subnet.id}
    scene.world.calm()
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


def test_teardown_names_nat_and_security_group_that_stay(scene: Scene) -> None:
    nat = scene.world.add_resource("gateway", PRIVATE_NETWORK)
    scene.world.on(
        "delete", Denied("No permission."), match=lambda p: p.id in (scene.nsg.id, nat.id), times=1e9
    )
    assert {left.id for left in scene.down().leftovers} == {scene.nsg.id, nat.id}


def test_teardown_keeps_a_used_nat_though_a_security_group_stays(scene: Scene) -> None:
    nat = scene.world.add_resource("gateway", PRIVATE_NETWORK)
    scene.world.add_resource("nsg", THEIRS_PRIVATE)
    scene.world.on("delete", Denied("No permission."), match=is_part(scene.nsg), times=1e9)
    assert [left.id for left in scene.down().leftovers] == [scene.nsg.id]
    assert nat in scene.world.there()


@pytest.mark.parametrize("needed", [False, True])
def test_teardown_names_unused_nat_with_an_unending_machine(scene: Scene, needed: bool) -> None:
    nat = scene.world.add_resource("gateway", PRIVATE_NETWORK)
    if needed:
        scene.world.add_resource("nsg", THEIRS_PRIVATE)
    scene.machines[0].immortal = True
    report = {left.id: left.reason for left in scene.down().leftovers}
    assert report.keys() == {scene.machines[0].id, scene.nsg.id} | ({nat.id} if not needed else set())
    assert report[scene.nsg.id] == f"Instance {scene.machines[0].id} is still there."
    assert nat in scene.world.there()


def in_network(scene: Scene, resource: Resource, network: str) -> Resource:
    """Return the part, in a network of that id."""
    placed = replace(resource, network=network)
    scene.world.resources[resource.id].resource = placed
    return placed


@pytest.mark.parametrize("known", [True, False])
def test_teardown_keeps_nat_only_of_the_other_clusters_network(scene: Scene, known: bool) -> None:
    """A race has created two networks; if the cluster's network is unknown, both are retained."""
    nat = in_network(scene, scene.world.add_resource("gateway", PRIVATE_NETWORK), "vcn-1")
    other = in_network(scene, scene.world.add_resource("gateway", PRIVATE_NETWORK), "vcn-2")
    theirs = scene.world.add_resource("nsg", THEIRS_PRIVATE)
    scene.world.add_machine(THEIRS_PRIVATE, rank=0, age_s=900)
    if known:
        in_network(scene, theirs, "vcn-2")
    assert scene.down() == Removed(leftovers=(), network_users=("other",))
    existing = {resource.id for resource in scene.world.there()}
    assert other.id in existing
    assert (nat.id in existing) == (not known)
    assert scene.vcn.id in existing, "it is not known where that one is"


def test_teardown_removes_an_address_freed_by_its_nat(scene: Scene) -> None:
    """An address has no network itself: it is reported as long as its gateway uses it."""
    nat = in_network(scene, scene.world.add_resource("gateway", PRIVATE_NETWORK), "vcn-1")
    address = in_network(scene, scene.world.add_resource("subnet", PRIVATE_NETWORK), "vcn-1")
    in_network(scene, scene.world.add_resource("nsg", THEIRS_PRIVATE), "vcn-2")
    freed = replace(address, network=None)
    scene.world.on(
        "delete", lambda _: setattr(scene.world.resources[address.id], "part", freed), match=is_part(nat)
    )
    scene.down()
    assert not {nat.id, address.id} & {resource.id for resource in scene.world.there()}


@pytest.mark.parametrize("remains", ["nothing", "a part", "a user"])
def test_teardown_reports_the_network_gone_under_its_lock(scene: Scene, remains: str) -> None:
    messages: list[str] = []

    @contextmanager
    def lock() -> Iterator[None]:
        messages.append("locked")
        yield
        messages.append("free")

    if remains == "a part":
        scene.world.on("delete", Denied("No permission."), match=is_part(scene.vcn), times=1e9)
    if remains == "a user":
        scene.world.add_resource("nsg", THEIRS)
    scene.down(network=lock, network_gone=lambda: messages.append("gone"))
    assert messages == (["locked", "gone", "free"] if remains == "nothing" else ["locked", "free"])


def test_teardown_without_ids_removes_all_clusters(scene: Scene) -> None:
    theirs = scene.world.add_machine(THEIRS, rank=0, age_s=900)
    scene.world.add_resource("nsg", THEIRS)
    assert scene.down(ids=None) == Removed(leftovers=())
    assert scene.world.state(theirs) == "ended"
    scene.check_empty()


@pytest.mark.parametrize("ids", [{ID}, {ID, "cluster-3"}, None], ids=["one", "two", "all"])
def test_teardown_never_touches_untagged_resources(scene: Scene, ids: set[str] | None) -> None:
    scene.world.lists_others = True
    nobodys: list[dict[str, str]] = [{}, {"Name": "default"}, {tags.CLUSTER_ID: ID}]
    rest = {scene.world.add_machine(of, rank=0, age_s=900).id for of in nobodys}
    rest |= {scene.world.add_resource("nsg", of, name="default").id for of in nobodys}
    scene.down(ids=ids, blocked_timeout_s=20)
    assert not scene.touched() & rest
    assert rest <= {m.id for m in scene.world.living()} | {p.id for p in scene.world.there()}
    assert [scene.world.state(machine) for machine in scene.machines] == ["ended"] * 3


# A cloud that stops answering.


def test_teardown_names_machines_when_credentials_expire(scene: Scene) -> None:
    scene.world.on("instances", BadCredentials("Expired."), times=1e9, match=lambda _: scene.time > 5)
    with pytest.raises(LeftBehind) as caught:
        scene.down()
    assert "Expired" in str(caught.value)
    assert all(machine.id in str(caught.value) for machine in scene.machines)
    scene.world.calm()
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


def test_teardown_names_remaining_parts_when_credentials_expire(scene: Scene) -> None:
    scene.world.on("delete", BadCredentials("Expired."), times=1e9, match=is_part(scene.subnet))
    with pytest.raises(LeftBehind) as caught:
        scene.down()
    assert scene.subnet.id in str(caught.value)
    assert scene.vcn.id in str(caught.value)
    assert scene.nsg.id not in str(caught.value)
    assert not any(machine.id in str(caught.value) for machine in scene.machines)


def test_teardown_fails_when_machines_cannot_be_listed(scene: Scene) -> None:
    scene.world.on("instances", Denied("No permission."), times=1e9)
    with pytest.raises((Denied, LeftBehind)):
        scene.down()
    assert scene.touched() == set()


# Parts that don't go.


@pytest.mark.parametrize("choice", ["nsg", "subnet"])
def test_teardown_names_a_blocked_part_at_the_deadline(scene: Scene, choice: str) -> None:
    resource: Resource = getattr(scene, choice)
    scene.world.blocked_until[resource.id] = 1e9
    removed = scene.down()
    assert resource.id in {left.id for left in removed.leftovers}
    assert BLOCKED_TIMEOUT_S <= scene.time < 3 * BLOCKED_TIMEOUT_S
    assert scene.vcn in scene.world.there()
    assert scene.gateway in scene.world.there() or choice == "subnet"


def test_teardown_waits_for_a_temporarily_blocked_part(scene: Scene) -> None:
    scene.world.blocked_until[scene.nsg.id] = 100
    scene.world.blocked_until[scene.subnet.id] = 200
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


def test_teardown_waits_longer_for_a_slow_part(scene: Scene) -> None:
    slow = replace(scene.gateway, ends_within_s=600.0)
    scene.world.resources[slow.id].resource = slow
    scene.world.blocked_until[slow.id] = BLOCKED_TIMEOUT_S + 500
    scene.world.blocked_until[scene.subnet.id] = BLOCKED_TIMEOUT_S + 550
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()
    assert any("waiting, at most 15 minutes" in line for line in scene.said)


def test_teardown_names_a_denied_part_without_waiting(scene: Scene) -> None:
    scene.world.on("delete", Denied("No permission."), match=is_part(scene.nsg), times=1e9)
    removed = scene.down()
    assert [(left.kind, left.id) for left in removed.leftovers] == [("nsg", scene.nsg.id)]
    assert "No permission" in removed.leftovers[0].reason
    assert scene.time < BLOCKED_TIMEOUT_S


@pytest.mark.parametrize("error", [*ERRORS, Blocked("Used.")], ids=repr)
def test_teardown_retries_delete_after_transient_errors(scene: Scene, error: CloudError) -> None:
    scene.world.on("delete", error, times=3)
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


def test_teardown_waits_for_deleted_parts_that_are_still_listed(scene: Scene) -> None:
    scene.world.deleted_listed_s = 60
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


def test_teardown_names_deleted_parts_that_stay_listed(scene: Scene) -> None:
    scene.world.deleted_listed_s = 1e9
    removed = scene.down()
    assert scene.nsg.id in {left.id for left in removed.leftovers}
    assert scene.time < 3 * BLOCKED_TIMEOUT_S
