"""A part is made once, whatever crashed before, and however late the cloud's list is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from clocks import StepClock

from inventories.disk.store import Journal
from provision.errors import Denied, TokenSpent, Unclear
from provision.rented.find_or_create import Ensure, all_gone, recent_makings

LAG_S = 8.0
CONSISTENCY_S = 20.0


@dataclass
class Cloud:
    """A part of a cloud whose list lags."""

    clock: StepClock
    made_at: list[float] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)

    def find(self) -> str | None:
        return "part-0" if any(at + LAG_S <= self.clock.time for at in self.made_at) else None

    def create(self, token: str) -> str:
        self.tokens.append(token)
        self.made_at.append(self.clock.time)
        return f"part-{len(self.made_at) - 1}"


@pytest.fixture
def cloud() -> Cloud:
    return Cloud(clock=StepClock())


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


@pytest.fixture
def ensure(cloud: Cloud, journal: Journal, tmp_path: Path) -> Ensure:
    shared = Journal(tmp_path / "network.jsonl")
    return Ensure(journal, shared, clock=cloud.clock, consistency_s=CONSISTENCY_S)


class Crash(BaseException):
    """The power fails."""


def crashing(create: Callable[[str], str], *, before: bool) -> Callable[[str], str]:
    def do(token: str) -> str:
        if not before:
            create(token)
        raise Crash

    return do


def test_ensure_uses_an_existing_part(ensure: Ensure, cloud: Cloud, journal: Journal) -> None:
    cloud.made_at.append(-100)
    assert ensure("vpc", find=cloud.find, create=cloud.create) == "part-0"
    assert len(cloud.made_at) == 1
    assert journal.read() == []


def test_ensure_journals_the_intent_before_the_call(ensure: Ensure, cloud: Cloud, journal: Journal) -> None:
    def create(token: str) -> str:
        assert [(e["event"], e["token"]) for e in journal.read()] == [("making", token)]
        return cloud.create(token)

    assert ensure("vpc", find=cloud.find, create=create) == "part-0"
    assert [entry["event"] for entry in journal.read()] == ["making", "made"]
    ((made, age_s),) = recent_makings(journal, CONSISTENCY_S)
    assert made == "part-0"
    assert age_s < CONSISTENCY_S
    assert recent_makings(journal, 0.0) == []


@pytest.mark.parametrize("before", [True, False])
def test_ensure_after_a_crash_waits_and_creates_only_once(
    ensure: Ensure, cloud: Cloud, journal: Journal, before: bool
) -> None:
    with pytest.raises(Crash):
        ensure("vpc", find=cloud.find, create=crashing(cloud.create, before=before))
    ((made, age_s),) = recent_makings(journal, CONSISTENCY_S)
    assert made is None
    assert age_s < CONSISTENCY_S
    ensure("vpc", find=cloud.find, create=cloud.create)
    assert len(cloud.made_at) == 1
    if before:
        token = journal.read()[0]["token"]
        assert cloud.tokens == [token], "where the cloud knows tokens, it is the same one"


def test_ensure_waits_for_an_unlisted_part_instead_of_recreating(ensure: Ensure, cloud: Cloud) -> None:
    ensure("vpc", find=cloud.find, create=cloud.create)
    assert ensure("vpc", find=cloud.find, create=cloud.create) == "part-0"
    assert len(cloud.made_at) == 1
    assert cloud.clock.time >= LAG_S


def test_ensure_recreates_a_removed_part_at_once(ensure: Ensure, cloud: Cloud, journal: Journal) -> None:
    ensure("vpc", find=cloud.find, create=cloud.create)
    began = cloud.clock.time
    all_gone(journal)
    assert recent_makings(journal, CONSISTENCY_S) == []
    ensure("vpc", find=lambda: None, create=cloud.create)
    assert len(cloud.made_at) == 2
    assert cloud.clock.time == began


@pytest.mark.parametrize("reached", [True, False])
def test_ensure_creates_one_part_after_a_lost_reply(ensure: Ensure, cloud: Cloud, reached: bool) -> None:
    tries: list[str] = []

    def create(token: str) -> str:
        tries.append(token)
        if len(tries) == 1:
            if reached:
                cloud.create(token)
            raise Unclear("no reply")
        return cloud.create(token)

    assert ensure("vpc", find=cloud.find, create=create) == "part-0"
    assert len(cloud.made_at) == 1
    assert len(set(tries)) == 1
    assert cloud.clock.time >= (LAG_S if reached else CONSISTENCY_S)


def test_ensure_replaces_a_spent_token(ensure: Ensure, cloud: Cloud, journal: Journal) -> None:
    tries: list[str] = []

    def create(token: str) -> str:
        tries.append(token)
        if len(tries) == 1:
            raise TokenSpent("used")
        return cloud.create(token)

    ensure("vpc", find=cloud.find, create=create)
    assert len(set(tries)) == 2
    assert journal.read()[-1]["event"] == "made"


def test_ensure_raises_when_creation_is_denied(ensure: Ensure, cloud: Cloud) -> None:
    def create(token: str) -> str:
        raise Denied("no")

    with pytest.raises(Denied):
        ensure("vpc", find=cloud.find, create=create)


def test_ensure_journals_shared_parts_separately(
    ensure: Ensure, cloud: Cloud, journal: Journal, tmp_path: Path
) -> None:
    ensure("vpc", find=cloud.find, create=cloud.create, shared=True)
    assert journal.read() == []
    assert len(Journal(tmp_path / "network.jsonl").read()) == 2
