"""Test random sequences of commands and faults on both clouds for properties that always hold.

Never more machines than requested; foreign resources stay unchanged; every begun creation can be removed whole; a
command ends in time; and it reports success only for work that is done.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

import pytest
from cloud_world import CALM, LONGEST_LAG_S, Account, Fault, Killed, Trouble, World, an_account
from clouds import KINDS
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from inventories.specs.spec import Spec
from provision.errors import CreateFailed, LeftBehind, NoCapacity, ProvisionError, RefusedPlan
from provision.records import Target
from provision.rented.teardown import remove

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("GPUCTL_TEST_SEQUENCES", "0"))
"""Number of sequences, chosen at random each time. 0: a fixed set."""
CLUSTERS = ("default", "second")
WHATS: tuple[Literal["up", "up_with_another_shape", "down", "reap"], ...]
WHATS = ("up", "up", "up", "up", "up_with_another_shape", "down", "down", "reap")
LONG = ("drop_before", "drop_after", "broken")
"""Faults that may persist: a command gives up on each after two minutes."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command of a user, and the faults during it."""

    what: Literal["up", "up_with_another_shape", "down", "reap"]
    name: str
    """Name of the cluster."""
    count: int
    trouble: Trouble
    lag_s: float
    """Lag of lists from now on, in seconds."""
    one_ended: bool
    """Another user has just ended one of its machines."""
    forget: bool
    """`down` forgets the cluster, as it does when nothing keeps it from doing so."""


def sequence(seed: int) -> tuple[Step, ...]:
    """Return the steps for a seed. Hypothesis alone favours small equal cases, here an `up` of one machine without
    faults.
    """
    draw = Random(seed)
    return tuple(
        Step(
            what="up" if number == 0 else draw.choice(WHATS),
            name=draw.choice((CLUSTERS[0], *CLUSTERS)),
            count=draw.randint(1, 3),
            trouble=trouble(draw),
            lag_s=draw.choice((0.0, 0.5, LONGEST_LAG_S)),
            one_ended=draw.random() < 0.25,
            forget=draw.random() < 0.7,
        )
        for number in range(draw.randint(4, 6))
    )


def trouble(draw: Random) -> Trouble:
    scarce = draw.random() < 0.3
    ending = draw.choice(("interrupt", "kill_before", "kill_after", *[None] * 7))
    ends = {ending: draw.randint(1, 8 if ending == "interrupt" else 40)} if ending else {}
    return Trouble(
        faults=tuple(fault(draw) for _ in range(draw.choice((0, 0, 1, 2, 3)))),
        capacity={place: draw.randint(0, 2) for place in draw.sample(range(3), draw.randint(0, 3) * scarce)},
        late=frozenset(draw.sample(range(3), draw.randint(0, 2) * scarce)),
        quota=draw.randint(0, 2) if draw.random() < 0.1 else None,
        **ends,
    )


def fault(draw: Random) -> Fault:
    where = draw.choice(("calls", "changes", "launches", "ends", "deletions", "lists"))
    subject = draw.choice(("throttled", "expired", "duplicate", *LONG))
    remains = where in ("launches", "deletions") and subject in LONG and draw.random() < 0.3
    return Fault(
        what=subject,
        where=where,
        nth=draw.randint(1, {"calls": 40, "changes": 12, "lists": 8}.get(where, 3)),
        times=0 if remains else draw.randint(1, 4),
    )


def do(world: World, step: Step) -> None:
    """Take one step, then check that the properties hold."""
    if step.one_ended:
        world.end_one(step.name)
    {"up": up, "up_with_another_shape": up_with_another_shape, "down": down, "reap": lose_home_and_reap}[
        step.what
    ](world, step)
    world.check()


def up(world: World, step: Step) -> None:
    before = world.machines(step.name)
    request = world.most.get(world.id_of(step.name) or "", 0)
    error, machines = told(step, *world.command(step.trouble, step.lag_s, lambda: make(world, step)))
    live = world.machines(step.name)
    new = set(live) - set(before)
    if error is None:
        assert {machine.id for machine in machines} == set(live)
        assert [machine.rank for machine in machines] == list(range(step.count))
        assert set(live.values()) == {"running"}
    elif isinstance(error, RefusedPlan):
        assert step.count < request, error
        assert not new
    elif isinstance(error, NoCapacity | CreateFailed) and "kept" not in str(error):
        assert not new, "what failed is undone"
    elif isinstance(error, ProvisionError):
        assert world.told(new, str(error)), error
    assert error is None or step.trouble != CALM or isinstance(error, RefusedPlan), error


def up_with_another_shape(world: World, step: Step) -> None:
    before = world.machines(step.name)
    if not before or set(before.values()) != {"running"}:
        return
    world.fake.forget_calls()
    shape = world.kind.other_shape
    error, _ = told(step, *world.command(step.trouble, step.lag_s, lambda: make(world, step, shape)))
    assert error is not None
    assert world.fake.calls(mutating=True) == []


def down(world: World, step: Step) -> None:
    cluster = world.id_of(step.name)
    if cluster is None:
        return
    destroy = world.provider(step.name).destroy
    error, left = told(step, *world.command(step.trouble, step.lag_s, lambda: destroy(note)))
    if isinstance(error, LeftBehind):
        assert world.told(set(world.machines(step.name)), str(error)), error
    assert step.trouble != CALM or (error is None and left == ()), error or left
    if error is None:
        assert {leftover.id for leftover in left} >= set(world.machines(step.name))
        if not left:
            assert world.ours(cluster) == []
            if step.forget:
                shutil.rmtree(world.folder(step.name).path)


def lose_home_and_reap(world: World, step: Step) -> None:
    shutil.rmtree(world.home, ignore_errors=True)
    world.home.mkdir()
    # Machines without a record are found once they are listed.
    world.clock.sleep(LONGEST_LAG_S)
    cloud = world.account.connect(Target(provider=world.kind.provider), world.clock)
    error, left = told(
        step,
        *world.command(
            step.trouble, step.lag_s, lambda: remove(cloud, None, clock=world.clock, say=note).leftovers
        ),
    )
    assert step.trouble != CALM or (error is None and left == ()), error or left
    if error is None and left == ():
        assert world.ours() == []


def make(world: World, step: Step, shape: str | None = None) -> Any:
    provider = world.provider(step.name)
    spec = Spec(cluster=step.name, shape=shape or world.kind.shape, count=step.count, ssh_cidr="127.0.0.1/32")
    plan = provider.plan(spec, None)
    cluster = plan.details.cluster.id
    world.most[cluster] = max(world.most.get(cluster, 0), step.count)
    return provider.create(plan, world.folder(step.name).journal, note)


def told(step: Step, error: BaseException | None, answer: Any) -> tuple[BaseException | None, Any]:
    """Note the result of each step, for the reader of a failure."""
    ended = type(error).__name__ if error else "done"
    note(f"→ {step.what} of {step.name}: {'' if isinstance(error, Killed) else error or ''} {ended}")
    return error, answer


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def account(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    with an_account(request.param, tmp_path_factory.mktemp("cloud")) as result:
        yield result


@pytest.mark.timeout(600 + 60 * EXAMPLES)
@settings(
    derandomize=not EXAMPLES,
    max_examples=EXAMPLES or 8,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # a smaller example is not worth the minutes
)
@given(steps=st.integers(0, 2**32 - 1).map(sequence))
def test_random_command_sequences_keep_cloud_invariants(account: Account, steps: tuple[Step, ...]) -> None:
    world = World(account)
    for step in steps:
        do(world, step)
    last = Step(what="down", name="", count=1, trouble=CALM, lag_s=0.0, one_ended=False, forget=True)
    for name in CLUSTERS:
        down(world, replace(last, name=name))
    if any(step.what == "reap" for step in steps):
        lose_home_and_reap(world, last)
    world.check()
    assert world.ours() == []
