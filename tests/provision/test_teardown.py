"""Nothing of a cluster stays, nothing of anybody else is touched, and what does stay is named."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from stub_cloud import StubClouds, StubMachine, World

from provision import tags
from provision.cloud import Part, Target
from provision.errors import BadCredentials, Blocked, CloudError, Denied, LeftBehind, Throttled, Unclear
from provision.teardown import BLOCKED_TIMEOUT_S, ENDED_TIMEOUT_S, Removed, remove

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
    vcn: Part = field(init=False)
    gateway: Part = field(init=False)
    subnet: Part = field(init=False)
    nsg: Part = field(init=False)
    machines: list[StubMachine] = field(init=False)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = self.clouds.world()
        self.vcn = self.world.add_part("vcn", NETWORK)
        self.gateway = self.world.add_part("gateway", NETWORK)
        self.subnet = self.world.add_part("subnet", NETWORK)
        self.nsg = self.world.add_part("nsg", OURS)
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
        """Ids of all that was asked to end, or to go."""
        ended = {i for call in self.world.called("terminate") for i in call.argument}
        return ended | {call.argument.id for call in self.world.called("delete")}

    def check_empty(self) -> None:
        assert self.world.living() == []
        assert self.world.there() == []


@pytest.fixture
def scene() -> Scene:
    return Scene()


def is_part(part: Part) -> Callable[[Any], bool]:
    return lambda argument: argument.id == part.id


def test_machines_then_parts_then_the_network(scene: Scene) -> None:
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
def test_a_machine_that_is_listed_once_its_parts_are_being_deleted(
    scene: Scene, lag_s: float, alone: bool
) -> None:
    if alone:
        scene.world.end_all()
    late = scene.add(3, lag_s=lag_s)
    assert scene.down() == Removed(leftovers=())
    assert scene.world.state(late) == "ended"
    scene.check_empty()


def test_a_machine_of_an_interrupted_launch_is_watched_for(scene: Scene) -> None:
    late = scene.world.add_machine(OURS, rank=3, lag_s=50)
    assert scene.down(watch_s=60) == Removed(leftovers=())
    assert scene.world.state(late) == "ended"
    assert scene.time >= 60


# Machines that don't end.


def test_a_machine_that_may_not_be_ended_keeps_no_other(scene: Scene) -> None:
    kept = scene.machines[1]
    scene.world.on("terminate", Denied("No permission."), match=lambda ids: kept.id in ids, times=1e9)
    removed = scene.down()
    assert [scene.world.state(machine) for machine in scene.machines] == ["ended", "running", "ended"]
    by_id = {left.id: left for left in removed.leftovers}
    assert by_id[kept.id].kind == "instance"
    assert "No permission" in by_id[kept.id].reason
    assert by_id[scene.nsg.id].kind == "nsg"
    assert {part.kind for part in scene.world.there()} >= {"nsg", "vcn", "subnet"}
    assert scene.time < 2 * BLOCKED_TIMEOUT_S
    scene.world.calm()
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("performed", [True, False])
@pytest.mark.parametrize("times", [1, 6])
def test_a_call_that_was_not_refused_is_made_again(
    scene: Scene, error: CloudError, performed: bool, times: int
) -> None:
    scene.world.on("terminate", error, times=times, performed=performed)
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


def test_a_machine_that_never_ends_is_named_at_the_deadline(scene: Scene) -> None:
    scene.machines[2].immortal = True
    removed = scene.down()
    assert scene.machines[2].id in {left.id for left in removed.leftovers}
    assert scene.time < ENDED_TIMEOUT_S + 2 * BLOCKED_TIMEOUT_S
    assert [scene.world.state(machine) for machine in scene.machines[:2]] == ["ended", "ended"]


def test_a_machine_that_ignores_its_end_costs_few_requests(scene: Scene) -> None:
    """Half an hour of looks, and of asking again."""
    scene.machines[2].immortal = True
    removed = scene.down()
    assert scene.time > ENDED_TIMEOUT_S
    assert scene.machines[2].id in {left.id for left in removed.leftovers}
    assert 3 <= len(scene.world.called("terminate")) <= 8
    assert len(scene.clouds.calls) <= 60


# Others in the region.


@pytest.mark.parametrize("of", ["nsg", "machine"])
def test_the_network_stays_for_another_cluster(scene: Scene, of: str) -> None:
    if of == "nsg":
        theirs = scene.world.add_part("nsg", THEIRS).id
    else:
        theirs = scene.world.add_machine(THEIRS, rank=0, age_s=900).id
    removed = scene.down()
    assert removed == Removed(leftovers=(), network_users=("other",))
    assert scene.nsg not in scene.world.there()
    network = {scene.vcn.id, scene.gateway.id, scene.subnet.id}
    assert {part.id for part in scene.world.there()} >= network
    assert not scene.touched() & {theirs, *network}


def test_an_ended_machine_of_another_cluster_keeps_nothing(scene: Scene) -> None:
    scene.world.end(scene.world.add_machine(THEIRS, rank=0, age_s=900))
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


def test_a_user_that_comes_while_the_cluster_goes(scene: Scene) -> None:
    scene.world.on("delete", lambda _: scene.world.add_part("nsg", THEIRS), match=is_part(scene.nsg))
    assert scene.down().network_users == ("other",)
    assert not scene.touched() & {scene.vcn.id, scene.gateway.id, scene.subnet.id}


def test_a_user_that_comes_between_two_stages_of_the_network(scene: Scene) -> None:
    scene.world.on("delete", lambda _: scene.world.add_part("nsg", THEIRS), match=is_part(scene.gateway))
    removed = scene.down()
    assert removed == Removed(leftovers=(), network_users=("other",))
    assert not scene.touched() & {scene.vcn.id, scene.subnet.id}
    assert len(scene.world.there("nsg")) == 1


def test_a_user_that_comes_while_a_blocked_network_is_waited_for(scene: Scene) -> None:
    scene.world.blocked_until[scene.subnet.id] = 100
    scene.world.on(
        "delete",
        lambda _: scene.world.add_part("nsg", THEIRS),
        match=lambda part: part.id == scene.subnet.id and scene.time > 40,
    )
    removed = scene.down()
    assert removed == Removed(leftovers=(), network_users=("other",))
    assert {part.kind for part in scene.world.there()} >= {"subnet", "vcn", "nsg"}


PRIVATE_NETWORK = tags.of_network("me@here", private=True)
THEIRS_PRIVATE = tags.of_cluster("other", "cluster-2", "she@there", private=True)


def test_private_parts_go_with_the_last_private_cluster(scene: Scene) -> None:
    nat = scene.world.add_part("gateway", PRIVATE_NETWORK)
    theirs = scene.world.add_part("nsg", THEIRS)
    assert scene.down() == Removed(leftovers=(), network_users=("other",))
    assert {part.id for part in scene.world.there()} == {
        theirs.id,
        scene.vcn.id,
        scene.gateway.id,
        scene.subnet.id,
    }
    assert nat.id in scene.touched()


def test_private_parts_stay_for_another_private_cluster(scene: Scene) -> None:
    nat = scene.world.add_part("gateway", PRIVATE_NETWORK)
    theirs = scene.world.add_machine(THEIRS_PRIVATE, rank=0, age_s=900)
    assert scene.down() == Removed(leftovers=(), network_users=("other",))
    shared = {nat.id, scene.vcn.id, scene.gateway.id, scene.subnet.id}
    assert {part.id for part in scene.world.there()} == shared
    assert not scene.touched() & {theirs.id, *shared}


def test_a_private_part_that_stays_is_named_though_others_use_the_network(scene: Scene) -> None:
    nat = scene.world.add_part("gateway", PRIVATE_NETWORK)
    scene.world.blocked_until[nat.id] = 1e9
    scene.world.add_part("nsg", THEIRS)
    removed = scene.down()
    assert [left.id for left in removed.leftovers] == [nat.id]
    assert removed.network_users == ("other",)


@pytest.mark.parametrize("why", [Denied("No permission."), Blocked("Used.")], ids=["denied", "blocked"])
def test_private_parts_go_though_a_part_of_the_cluster_stays(scene: Scene, why: CloudError) -> None:
    """What may cost money does not wait for what is free."""
    nat = scene.world.add_part("gateway", PRIVATE_NETWORK)
    scene.world.on("delete", why, match=is_part(scene.nsg), times=1e9)
    assert [left.id for left in scene.down().leftovers] == [scene.nsg.id]
    assert nat not in scene.world.there()
    assert not scene.touched() & {scene.vcn.id, scene.gateway.id, scene.subnet.id}
    scene.world.calm()
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


def test_private_parts_that_do_not_go_either_are_named(scene: Scene) -> None:
    nat = scene.world.add_part("gateway", PRIVATE_NETWORK)
    scene.world.on(
        "delete", Denied("No permission."), match=lambda p: p.id in (scene.nsg.id, nat.id), times=1e9
    )
    assert {left.id for left in scene.down().leftovers} == {scene.nsg.id, nat.id}


def test_private_parts_stay_for_another_though_a_part_of_the_cluster_stays(scene: Scene) -> None:
    nat = scene.world.add_part("gateway", PRIVATE_NETWORK)
    scene.world.add_part("nsg", THEIRS_PRIVATE)
    scene.world.on("delete", Denied("No permission."), match=is_part(scene.nsg), times=1e9)
    assert [left.id for left in scene.down().leftovers] == [scene.nsg.id]
    assert nat in scene.world.there()


@pytest.mark.parametrize("needed", [False, True])
def test_private_parts_are_named_with_a_machine_that_stays(scene: Scene, needed: bool) -> None:
    nat = scene.world.add_part("gateway", PRIVATE_NETWORK)
    if needed:
        scene.world.add_part("nsg", THEIRS_PRIVATE)
    scene.machines[0].immortal = True
    told = {left.id: left.reason for left in scene.down().leftovers}
    assert told.keys() == {scene.machines[0].id, scene.nsg.id} | ({nat.id} if not needed else set())
    assert told[scene.nsg.id] == f"Instance {scene.machines[0].id} is still there."
    assert nat in scene.world.there()


def in_network(scene: Scene, part: Part, network: str) -> Part:
    """The part, in a network of that id."""
    placed = replace(part, network=network)
    scene.world.parts[part.id].part = placed
    return placed


@pytest.mark.parametrize("known", [True, False])
def test_a_cluster_in_another_network_keeps_nothing(scene: Scene, known: bool) -> None:
    """A race has made two networks; of a cluster of which it is not known, all are kept."""
    nat = in_network(scene, scene.world.add_part("gateway", PRIVATE_NETWORK), "vcn-1")
    other = in_network(scene, scene.world.add_part("gateway", PRIVATE_NETWORK), "vcn-2")
    theirs = scene.world.add_part("nsg", THEIRS_PRIVATE)
    scene.world.add_machine(THEIRS_PRIVATE, rank=0, age_s=900)
    if known:
        in_network(scene, theirs, "vcn-2")
    assert scene.down() == Removed(leftovers=(), network_users=("other",))
    there = {part.id for part in scene.world.there()}
    assert other.id in there
    assert (nat.id in there) == (not known)
    assert scene.vcn.id in there, "it is not known where that one is"


def test_what_is_freed_belongs_where_it_was(scene: Scene) -> None:
    """An address has no network of its own: it is told while its gateway has it."""
    nat = in_network(scene, scene.world.add_part("gateway", PRIVATE_NETWORK), "vcn-1")
    address = in_network(scene, scene.world.add_part("subnet", PRIVATE_NETWORK), "vcn-1")
    in_network(scene, scene.world.add_part("nsg", THEIRS_PRIVATE), "vcn-2")
    freed = replace(address, network=None)
    scene.world.on(
        "delete", lambda _: setattr(scene.world.parts[address.id], "part", freed), match=is_part(nat)
    )
    scene.down()
    assert not {nat.id, address.id} & {part.id for part in scene.world.there()}


@pytest.mark.parametrize("stays", ["nothing", "a part", "a user"])
def test_the_end_of_the_network_is_told_under_its_lock(scene: Scene, stays: str) -> None:
    told: list[str] = []

    @contextmanager
    def lock() -> Iterator[None]:
        told.append("locked")
        yield
        told.append("free")

    if stays == "a part":
        scene.world.on("delete", Denied("No permission."), match=is_part(scene.vcn), times=1e9)
    if stays == "a user":
        scene.world.add_part("nsg", THEIRS)
    scene.down(network=lock, network_gone=lambda: told.append("gone"))
    assert told == (["locked", "gone", "free"] if stays == "nothing" else ["locked", "free"])


def test_all_clusters_at_once(scene: Scene) -> None:
    theirs = scene.world.add_machine(THEIRS, rank=0, age_s=900)
    scene.world.add_part("nsg", THEIRS)
    assert scene.down(ids=None) == Removed(leftovers=())
    assert scene.world.state(theirs) == "ended"
    scene.check_empty()


@pytest.mark.parametrize("ids", [{ID}, {ID, "cluster-3"}, None], ids=["one", "two", "all"])
def test_what_carries_no_tag_of_ours_is_not_touched(scene: Scene, ids: set[str] | None) -> None:
    scene.world.lists_others = True
    nobodys: list[dict[str, str]] = [{}, {"Name": "default"}, {tags.CLUSTER_ID: ID}]
    others = {scene.world.add_machine(of, rank=0, age_s=900).id for of in nobodys}
    others |= {scene.world.add_part("nsg", of, name="default").id for of in nobodys}
    scene.down(ids=ids, blocked_timeout_s=20)
    assert not scene.touched() & others
    assert others <= {m.id for m in scene.world.living()} | {p.id for p in scene.world.there()}
    assert [scene.world.state(machine) for machine in scene.machines] == ["ended"] * 3


# A cloud that stops answering.


def test_credentials_that_expire_while_machines_end(scene: Scene) -> None:
    scene.world.on("instances", BadCredentials("Expired."), times=1e9, match=lambda _: scene.time > 5)
    with pytest.raises(LeftBehind) as caught:
        scene.down()
    assert "Expired" in str(caught.value)
    assert all(machine.id in str(caught.value) for machine in scene.machines)
    scene.world.calm()
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


def test_credentials_that_expire_while_parts_go(scene: Scene) -> None:
    scene.world.on("delete", BadCredentials("Expired."), times=1e9, match=is_part(scene.subnet))
    with pytest.raises(LeftBehind) as caught:
        scene.down()
    assert scene.subnet.id in str(caught.value)
    assert scene.vcn.id in str(caught.value)
    assert scene.nsg.id not in str(caught.value)
    assert not any(machine.id in str(caught.value) for machine in scene.machines)


def test_a_list_that_can_not_be_read_is_no_empty_one(scene: Scene) -> None:
    scene.world.on("instances", Denied("No permission."), times=1e9)
    with pytest.raises((Denied, LeftBehind)):
        scene.down()
    assert scene.touched() == set()


# Parts that don't go.


@pytest.mark.parametrize("which", ["nsg", "subnet"])
def test_a_part_that_is_blocked_for_ever_is_named_at_the_deadline(scene: Scene, which: str) -> None:
    part: Part = getattr(scene, which)
    scene.world.blocked_until[part.id] = 1e9
    removed = scene.down()
    assert part.id in {left.id for left in removed.leftovers}
    assert BLOCKED_TIMEOUT_S <= scene.time < 3 * BLOCKED_TIMEOUT_S
    assert scene.vcn in scene.world.there()
    assert scene.gateway in scene.world.there() or which == "subnet"


def test_a_part_that_is_blocked_for_a_while_is_waited_for(scene: Scene) -> None:
    scene.world.blocked_until[scene.nsg.id] = 100
    scene.world.blocked_until[scene.subnet.id] = 200
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


def test_a_part_whose_end_is_slow_is_waited_for_longer(scene: Scene) -> None:
    slow = replace(scene.gateway, ends_within_s=600.0)
    scene.world.parts[slow.id].part = slow
    scene.world.blocked_until[slow.id] = BLOCKED_TIMEOUT_S + 500
    scene.world.blocked_until[scene.subnet.id] = BLOCKED_TIMEOUT_S + 550
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()
    assert any("waiting, at most 15 minutes" in line for line in scene.said)


def test_a_part_that_may_not_be_deleted_is_named_at_once(scene: Scene) -> None:
    scene.world.on("delete", Denied("No permission."), match=is_part(scene.nsg), times=1e9)
    removed = scene.down()
    assert [(left.kind, left.id) for left in removed.leftovers] == [("nsg", scene.nsg.id)]
    assert "No permission" in removed.leftovers[0].reason
    assert scene.time < BLOCKED_TIMEOUT_S


@pytest.mark.parametrize("error", [*ERRORS, Blocked("Used.")], ids=repr)
def test_a_deletion_that_was_not_refused_is_made_again(scene: Scene, error: CloudError) -> None:
    scene.world.on("delete", error, times=3)
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


def test_parts_that_are_deleted_and_listed_for_a_while(scene: Scene) -> None:
    scene.world.deleted_listed_s = 60
    assert scene.down() == Removed(leftovers=())
    scene.check_empty()


def test_parts_that_are_listed_for_ever_are_given_up(scene: Scene) -> None:
    scene.world.deleted_listed_s = 1e9
    removed = scene.down()
    assert scene.nsg.id in {left.id for left in removed.leftovers}
    assert scene.time < 3 * BLOCKED_TIMEOUT_S
