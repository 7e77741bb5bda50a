"""Test that `up` ends with exactly the requested machines or no machine, whatever the cloud answers."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from stub_cloud import CONSISTENCY_S, ZONES, StubCloud, StubClouds, StubMachine, World

from inventories.disk.store import ClusterFolder, Journal
from provision.errors import (
    BadCredentials,
    Capacity,
    CreateFailed,
    Denied,
    LeftBehind,
    NoCapacity,
    ProvisionError,
    Quota,
    Throttled,
    TokenSpent,
    Unclear,
)
from provision.records import CloudCluster, Infrastructure, Instance, Target, Zone
from provision.rented import tags
from provision.rented.find_or_create import Ensure
from provision.rented.launch.launch_in_zones import ensure_running
from provision.rented.launch.single_launch import ENDED_TIMEOUT_S, LaunchContext
from provision.rented.state import CloudState, Launch

LATE_S = 40.0
"""Delay of lists that the cloud still promises to stay within."""
ONE_BY_ONE = pytest.mark.parametrize("together", [False], ids=["one-by-one"])


class Killed(BaseException):
    """The process is dead."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A state of a launch as saved on disk, and the ids of its living machines at that time."""

    launch: str
    state: str
    living: tuple[str, ...]


@dataclass(kw_only=True)
class Scene:
    """A cluster's files and its world. Every `fill` is a new process."""

    home: Path
    clouds: StubClouds
    world: World
    cluster: CloudCluster
    dead: bool = False
    saved: list[Saved] = field(default_factory=list)
    network_hourly_usd: float = 0.0
    said: list[str] = field(default_factory=list)

    @property
    def cloud(self) -> StubCloud:
        return self.clouds.connect(self.cluster.target)

    @property
    def folder(self) -> "WatchedFolder":
        folder = WatchedFolder(ClusterFolder(self.home / "clusters" / self.cluster.name))
        folder.cluster_folder.make()
        folder.scene = self
        return folder

    @property
    def states(self) -> list[str]:
        return sorted(launch.state for launch in self.folder.launches())

    def fill(self, count: int = 3) -> tuple[Instance, ...]:
        cloud = self.cloud
        offer = replace(cloud.offer(self.cluster), network_hourly_usd=self.network_hourly_usd)
        journal = Journal(self.home / "journal.jsonl")
        ensure = Ensure(
            journal,
            Journal(self.home / "network.jsonl"),
            clock=self.clouds.clock,
            consistency_s=cloud.consistency_s,
        )

        def infrastructure_at(zone: Zone) -> Infrastructure:
            infrastructure = cloud.prepare(self.cluster, offer, "ssh-ed25519 AAAA", ensure)
            return cloud.prepare_zone(self.cluster, offer, infrastructure, zone, ensure)

        context = LaunchContext(
            cloud=cloud,
            files=self.folder,
            cluster=self.cluster,
            offer=offer,
            journal=journal,
            clock=self.clouds.clock,
            say=self.said.append,
        )
        return ensure_running(
            context,
            count,
            end=set(self.world.machines),
            infrastructure_at=infrastructure_at,
            public_key="ssh-ed25519 AAAA",
        )

    def kill_at(
        self, call: str, match: Callable[[Any], bool] = lambda _: True, *, performed: bool = False
    ) -> None:
        """Let the next fill die at such a call: no further calls, no further records."""

        def die(_: Any) -> None:
            self.dead = True
            raise Killed

        self.world.on(call, die, match=match, performed=performed)
        self.world.on("*", Killed(), match=lambda _: self.dead, times=1e9)

    def killed(self, count: int = 3) -> None:
        """Run the fill that dies."""
        with pytest.raises(Killed):
            self.fill(count)
        self.dead = False
        self.world.calm()

    def add(self, rank: int, **fields: Any) -> StubMachine:
        """Add a machine of the cluster that no launch on disk records."""
        of = tags.of_cluster(self.cluster.name, self.cluster.id, self.cluster.owner)
        return self.world.add_machine(of, rank=rank, **fields)

    def check(self, count: int = 3, peak: int | None = None) -> None:
        """Check that exactly `count` machines exist, all run, and never more existed at once."""
        living = self.world.living()
        assert sorted(machine.rank or 0 for machine in living) == list(range(count))
        assert {self.world.state(machine) for machine in living} <= {"running"}
        assert self.world.peak <= (peak or count)
        assert set(self.states) <= {"running", "undone"}
        self.check_undone()

    def check_undone(self) -> None:
        """Check that no launch was marked undone while one of its machines existed, and none appeared later."""
        assert [saved for saved in self.saved if saved.state == "undone" and saved.living] == []
        undone = {launch.id for launch in self.folder.launches() if launch.state == "undone"}
        assert [m.id for m in self.world.living() if m.tags.get(tags.LAUNCH) in undone] == []


class WatchedFolder(CloudState):
    """Records each saved launch in the scene."""

    scene: Scene

    def save_launch(self, launch: Launch) -> None:
        if self.scene.dead:
            raise Killed
        super().save_launch(launch)
        machines = [m for m in self.scene.world.living() if m.tags.get(tags.LAUNCH) == launch.id]
        living = tuple(machine.id for machine in machines)
        self.scene.saved.append(Saved(launch=launch.id, state=launch.state, living=living))


@pytest.fixture(params=[False, True], ids=["one-by-one", "together"])
def together(request: pytest.FixtureRequest) -> bool:
    """Return whether a launch is one request."""
    return bool(request.param)


@pytest.fixture
def scene(tmp_path: Path, together: bool) -> Scene:
    clouds = StubClouds(one_request=together)
    cluster = CloudCluster(
        name="default",
        id="cluster-1",
        owner="me@here",
        created_at="2026-11-21T06:00:00+00:00",
        target=clouds.connect(Target(provider="oci")).target,
        shape="VM.GPU.A10.1",
    )
    return Scene(home=tmp_path, clouds=clouds, world=clouds.world(), cluster=cluster)


def of_rank(rank: int, zone: str | None = None) -> Callable[[Any], bool]:
    """Requests for that rank, in that zone or any."""
    return lambda request: rank in request["ranks"] and zone in (None, request["zone"])


def all_made(scene: Scene, count: int = 3) -> Callable[..., bool]:
    """Return a trigger that fires once the cloud has accepted `count` machines, at any call."""
    return lambda *_: len(scene.world.machines) >= count


def immortal(scene: Scene) -> None:
    """Keep every existing machine alive after its termination call."""
    for machine in scene.world.machines.values():
        machine.immortal = True


def test_launch_creates_all_ranks_and_is_idempotent(scene: Scene, together: bool) -> None:
    machines = scene.fill()
    scene.check()
    assert [machine.rank for machine in machines] == [0, 1, 2]
    assert all(machine.public_ip and machine.private_ip for machine in machines)
    assert len(scene.world.sent) == (1 if together else 3)
    assert [m.id for m in scene.fill()] == [m.id for m in machines]
    assert len(scene.world.sent) == (1 if together else 3)
    scene.fill(4)
    scene.check(4)


# Facts missing from a reply, and facts missing from a late list.


@ONE_BY_ONE
@pytest.mark.parametrize("performed", [True, False])
def test_launch_with_lost_reply_and_no_capacity_moves_to_next_zone(scene: Scene, performed: bool) -> None:
    def lose(_: Any) -> None:
        for machine in scene.world.machines.values():
            # Listed later than the machine whose id is known.
            machine.listed_at += LATE_S if machine.rank == 1 else 0
        raise Unclear("No answer.")

    scene.world.on("send", lose, match=of_rank(1, ZONES[0]), performed=performed)
    scene.world.on("send", Capacity("None.", code="OutOfHostCapacity"), match=of_rank(2, ZONES[0]))
    machines = scene.fill()
    scene.check()
    assert {machine.zone.name for machine in machines} == {ZONES[1]}
    assert scene.states == ["running", "undone"]


@pytest.mark.parametrize("performed", [True, False])
@pytest.mark.parametrize("rank", [0, 2])
def test_launch_recovers_from_a_lost_reply(scene: Scene, rank: int, performed: bool) -> None:
    scene.world.list_lag_s = LATE_S
    scene.world.on("send", Unclear("No answer."), match=of_rank(rank), performed=performed)
    try:
        scene.fill()
    except CreateFailed:
        assert scene.world.living() == []
        scene.check_undone()
        scene.fill()
    scene.check()


def test_launch_denied_for_one_rank_leaves_no_machines(scene: Scene) -> None:
    scene.world.on("send", Denied("No permission."), match=of_rank(2))
    with pytest.raises(CreateFailed, match="No permission"):
        scene.fill()
    assert scene.world.living() == []
    scene.check_undone()


def test_launch_with_expired_credentials_names_what_is_left_behind(scene: Scene) -> None:
    def expire(_: Any) -> None:
        scene.world.on("*", BadCredentials("Expired."), times=1e9)
        raise BadCredentials("Expired.")

    scene.world.on("send", expire, match=of_rank(2))
    with pytest.raises(LeftBehind) as caught:
        scene.fill()
    existing = [machine.id for machine in scene.world.living()]
    (launch,) = scene.folder.launches()
    assert all(i in str(caught.value) for i in existing) or launch.id in str(caught.value)
    assert not launch.settled
    scene.world.calm()
    scene.fill()
    scene.check()


# Faults after every request was accepted.


@pytest.mark.parametrize(
    "error", [BadCredentials("Expired."), Unclear("No answer."), Throttled("Too fast.")], ids=repr
)
def test_launch_keeps_accepted_machines_when_the_cloud_stops_answering(
    scene: Scene, error: Exception
) -> None:
    scene.world.on("instances", error, match=all_made(scene), times=1e9)
    with pytest.raises(LeftBehind) as caught:
        scene.fill()
    assert all(machine_id in str(caught.value) for machine_id in scene.world.machines)
    assert scene.states == ["open"]
    assert scene.world.called("terminate") == []
    scene.world.calm()
    scene.fill()
    scene.check()
    assert len(scene.world.machines) == 3
    assert scene.states == ["running"]


def test_ctrl_c_during_launch_ends_the_new_machines(scene: Scene) -> None:
    scene.clouds.clock.press_ctrl_c(all_made(scene))
    with pytest.raises(KeyboardInterrupt):
        scene.fill()
    assert scene.world.living() == []
    assert scene.states == ["undone"]
    scene.check_undone()
    scene.fill()
    scene.check()


def test_second_ctrl_c_leaves_the_rollback_to_the_next_launch(scene: Scene) -> None:
    scene.clouds.clock.press_ctrl_c(all_made(scene))
    scene.clouds.clock.press_ctrl_c(lambda: scene.states == ["undoing"])
    with pytest.raises(KeyboardInterrupt):
        scene.fill()
    assert scene.states == ["undoing"]
    assert scene.world.living() != []
    scene.fill()
    scene.check()
    assert scene.states == ["running", "undone"]


def test_launch_moves_to_the_next_zone_after_late_capacity_error(scene: Scene) -> None:
    error = Capacity("Out of host capacity.", code="OutOfHostCapacity")
    scene.world.fail_late(error, after_s=12, match=lambda m: m.rank == 1 and m.zone == ZONES[0])
    machines = scene.fill()
    scene.check()
    assert {machine.zone.name for machine in machines} == {ZONES[1]}


@pytest.mark.parametrize("late", [True, False])
def test_launch_without_capacity_anywhere_leaves_no_machines(scene: Scene, late: bool) -> None:
    if late:
        error = Capacity("Out of host capacity.", code="OutOfHostCapacity")
        scene.world.fail_late(error, after_s=12, match=lambda m: m.rank == 2)
    else:
        scene.world.capacity = dict.fromkeys(ZONES, 2)
    with pytest.raises(NoCapacity) as caught:
        scene.fill()
    assert all(zone in str(caught.value) for zone in ZONES)
    assert scene.world.living() == []
    assert scene.world.peak <= 3
    assert set(scene.states) == {"undone"}
    scene.check_undone()


@pytest.mark.parametrize("late", [True, False])
def test_launch_over_quota_stops_after_the_first_zone(scene: Scene, late: bool) -> None:
    if late:
        error = Quota("The limit is 2 machines.", code="LimitExceeded")
        scene.world.fail_late(error, after_s=12, match=lambda m: m.rank == 2)
    else:
        scene.world.quota = 2
    with pytest.raises(NoCapacity, match="limit is 2"):
        scene.fill()
    assert {request["zone"] for request in scene.world.sent} == {ZONES[0]}
    assert scene.world.living() == []
    scene.check_undone()


@pytest.mark.parametrize("why", ["capacity", "quota", "no network"])
@pytest.mark.parametrize("billed", [True, False])
def test_failed_launch_warns_of_a_billed_network_without_machines(
    scene: Scene, why: str, billed: bool
) -> None:
    scene.network_hourly_usd = 0.05 * billed
    if why == "capacity":
        scene.world.capacity = dict.fromkeys(ZONES, 0)
    if why == "quota":
        scene.world.quota = 0
    if why == "no network":
        scene.world.on("prepare_zone", Denied("No permission."))
    with pytest.raises((NoCapacity, Denied)) as caught:
        scene.fill()
    assert why == "no network" or "No machine is left of" in str(caught.value)
    report = [line for line in scene.said if "is billed, about $0.05 an hour, until `gpuctl down" in line]
    assert len(report) == billed


def test_failed_launch_does_not_warn_of_a_network_in_use(scene: Scene) -> None:
    scene.network_hourly_usd = 0.05
    scene.fill(2)
    scene.world.quota = 2
    with pytest.raises(NoCapacity):
        scene.fill(3)
    assert not any("billed" in line for line in scene.said)


# Launches that a process which died has left.


@pytest.mark.parametrize("performed", [True, False])
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("lag_s", [0.0, LATE_S])
def test_killed_launch_is_repeated_with_the_same_requests(
    scene: Scene, performed: bool, rank: int, lag_s: float
) -> None:
    scene.world.list_lag_s = lag_s
    scene.kill_at("send", of_rank(rank), performed=performed)
    scene.killed()
    (launch,) = scene.folder.launches()
    assert launch.state == "open"
    before = len(scene.world.sent)
    scene.fill()
    scene.check()
    by_ranks = {tuple(request["ranks"]): request for request in launch.requests}
    again = {tuple(request["ranks"]): request for request in scene.world.sent[before:]}
    assert again == by_ranks
    assert len(scene.world.machines) == 3


def test_launch_killed_while_waiting_continues_without_new_machines(scene: Scene) -> None:
    scene.kill_at("instances", all_made(scene))
    scene.killed()
    scene.fill()
    scene.check()
    assert len(scene.world.machines) == 3


def test_killed_launch_whose_machines_ended_is_started_again(scene: Scene) -> None:
    scene.kill_at("instances", all_made(scene))
    scene.killed()
    scene.clouds.clock.sleep(CONSISTENCY_S)
    scene.world.end_all()
    scene.fill()
    scene.check()
    assert scene.states == ["running", "undone"]


@pytest.mark.parametrize("lag_s", [0.0, LATE_S])
def test_killed_launch_that_lost_one_machine_is_completed(scene: Scene, lag_s: float) -> None:
    scene.world.list_lag_s = lag_s
    scene.kill_at("instances", all_made(scene))
    scene.killed()
    # Its token is spent, which says nothing about the other machines, and no list shows them yet.
    scene.world.end(next(m for m in scene.world.living() if m.rank == 0))
    scene.fill()
    scene.check()


@pytest.mark.parametrize("performed", [True, False])
def test_killed_launch_with_spent_tokens_is_started_again(scene: Scene, performed: bool) -> None:
    scene.kill_at("send", of_rank(0), performed=performed)
    scene.killed()
    (launch,) = scene.folder.launches()
    scene.world.on("send", TokenSpent("Used."), match=lambda r: r["token"].startswith(launch.id), times=1e9)
    scene.fill()
    scene.check()
    assert scene.states == ["running", "undone"]


def test_killed_launch_of_more_machines_is_undone(scene: Scene) -> None:
    scene.world.list_lag_s = LATE_S
    scene.kill_at("send", of_rank(2), performed=True)
    scene.killed()
    scene.fill(2)
    scene.check(2, peak=3)
    assert scene.states == ["running", "undone"]


def test_killed_launch_with_expired_tokens_sends_no_requests(scene: Scene) -> None:
    scene.kill_at("instances", all_made(scene))
    scene.killed()
    scene.clouds.clock.sleep(CONSISTENCY_S)
    (launch,) = scene.folder.launches()
    old = (datetime.now(UTC) - timedelta(hours=30)).isoformat(timespec="milliseconds")
    scene.folder.save_launch(replace(launch, began_at=old, sent_at=old))
    before = len(scene.world.sent)
    scene.fill()
    scene.check()
    assert len(scene.world.sent) == before, "the tags tell that all of them are there"


@pytest.mark.parametrize("call", ["prepare", "prepare_zone", "make resource", "send", "instances"])
@pytest.mark.parametrize("performed", [True, False])
def test_launch_killed_at_any_call_is_completed_by_the_next(scene: Scene, call: str, performed: bool) -> None:
    scene.world.list_lag_s = LATE_S
    scene.kill_at(call, performed=performed)
    scene.killed()
    scene.fill()
    scene.check()


@pytest.mark.parametrize("skip", range(0, 24, 3))
def test_launch_killed_during_rollback_is_completed_by_the_next(scene: Scene, skip: int) -> None:
    scene.world.fail_late(
        Capacity("None.", code="OutOfHostCapacity"), after_s=12, match=lambda m: m.zone == ZONES[0]
    )
    polls = 0

    def at_last(_: Any) -> bool:
        nonlocal polls
        polls += 1
        return polls > skip

    scene.kill_at("instances", at_last)
    scene.killed()
    scene.fill()
    scene.check()


# Existing machines.


def test_launch_fails_fast_when_a_rank_ends_before_its_address(scene: Scene) -> None:
    scene.world.address_lag_s = 300

    def reclaim(_: Any) -> None:
        (machine,) = [m for m in scene.world.living() if m.rank == 1]
        scene.world.end(machine, reason="reclaimed")

    scene.world.on("with_addresses", reclaim)
    with pytest.raises(CreateFailed) as caught:
        scene.fill()
    ended = next(m.id for m in scene.world.machines.values() if m.rank == 1)
    assert ended in str(caught.value)
    assert scene.clouds.clock.time < 120
    assert sorted(m.rank or 0 for m in scene.world.living()) == [0, 2]
    assert scene.world.called("terminate") == []
    scene.fill()
    scene.check()


def test_launch_fails_fast_when_a_kept_rank_ends(scene: Scene) -> None:
    scene.fill()
    by_rank = {machine.rank: machine for machine in scene.world.living()}
    scene.world.end(by_rank[2])
    began = scene.clouds.clock.time
    scene.world.on("send", lambda _: scene.world.end(by_rank[0], reason="reclaimed"), performed=True)
    with pytest.raises(CreateFailed) as caught:
        scene.fill()
    assert by_rank[0].id in str(caught.value) or "rank 0" in str(caught.value)
    assert scene.clouds.clock.time - began < 180
    assert sorted(m.rank or 0 for m in scene.world.living()) == [1, 2]
    scene.fill()
    scene.check()


def test_launch_ends_surplus_machines_before_creating_more(scene: Scene) -> None:
    scene.world.list_lag_s = 0
    saved = scene.add(0, age_s=900)
    doubled = scene.add(0, age_s=600)
    beyond = scene.add(7, age_s=600)
    nobodys = scene.add(0, age_s=600)
    nobodys.rank = None
    scene.fill()
    first = scene.world.called("send")[0]
    assert first.living == (saved.id,)
    assert {scene.world.state(m) for m in (doubled, beyond, nobodys)} == {"ended"}
    scene.check(peak=4)


def test_launch_waits_for_ending_machines_first(scene: Scene) -> None:
    ending = scene.add(1, age_s=600)
    scene.world.end(ending, at_once=False)
    scene.fill()
    assert scene.world.called("send")[0].living == ()
    scene.check()


def test_launch_adds_machines_only_in_the_zone_of_the_others(scene: Scene) -> None:
    scene.world.capacity[ZONES[0]] = 0
    scene.fill(2)
    scene.world.capacity = {}
    assert {m.zone.name for m in scene.fill(3)} == {ZONES[1]}
    scene.world.capacity[ZONES[1]] = 3
    with pytest.raises(NoCapacity):
        scene.fill(4)
    scene.check(3)


def test_launch_ends_a_machine_that_never_runs(scene: Scene) -> None:
    scene.world.pending_s = 1e9
    with pytest.raises(ProvisionError):
        scene.fill()
    assert scene.world.living() == []
    assert scene.clouds.clock.time < 3600


def test_rollback_of_an_unending_machine_sends_few_requests(scene: Scene) -> None:
    """Half an hour of looks, and of asking again."""
    refused = of_rank(2)
    scene.world.on("send", Unclear("No answer."), match=refused, times=1e9, performed=True)
    scene.world.on("instances", lambda _: immortal(scene), times=1e9)
    with pytest.raises(LeftBehind, match="did not end"):
        scene.fill()
    assert scene.clouds.clock.time > ENDED_TIMEOUT_S
    assert 3 <= len(scene.world.called("terminate")) <= 15
    assert len(scene.world.called("terminate", "instances")) <= 75


def test_launch_waits_with_few_requests_for_unending_surplus(scene: Scene) -> None:
    scene.add(7, age_s=900, immortal=True)
    with pytest.raises(LeftBehind, match="for machines to end"):
        scene.fill()
    assert 3 <= len(scene.world.called("terminate")) <= 8
    assert len(scene.clouds.calls) <= 65


def test_launch_waits_with_few_requests_for_a_pending_machine(scene: Scene) -> None:
    scene.world.pending_s = 1e9
    with pytest.raises(ProvisionError):
        scene.fill()
    assert len(scene.clouds.calls) <= 130
