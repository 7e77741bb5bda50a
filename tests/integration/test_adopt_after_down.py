"""`down` is killed after each call that changes something, its computer's files are deleted, and another one adopts.

Nothing of ours may stay for ever, and nothing of strangers may change: a machine and a network with nearly our tags,
and, in the cases `beside`, another user's cluster of the same name.
"""

import itertools
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from cloud_world import Clock, make_foreign
from clouds import COUNT, KINDS, PRIVATE, CloudGpuctl, Clouds, Kind
from killing import Point, calls_of, kill

from provision.records import Target
from provision.rented.interface import connect
from tests.fakes.client import GONE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SIDE_BY_SIDE = 3
"""Number of clouds: a kill is mostly waiting."""
DOWN = ("down", "--yes")
TAKEN_OVER, CLUSTERS_REST, NETWORK, NOTHING, STRANGERS = (
    "gpuctl down` removes the cluster from here",
    "No machine of the cluster default is alive",
    "the network of gpuctl is left",
    "There is no cluster of gpuctl",
    "made by stranger@",
)
"""Answers of `adopt`."""


@pytest.mark.parametrize(
    ("kind", "beside"),
    [
        pytest.param(KINDS["oci"], False, id="oci"),
        pytest.param(replace(KINDS["aws"], up_options=PRIVATE), False, id="aws-private"),
        pytest.param(KINDS["oci"], True, id="oci-beside"),
        pytest.param(KINDS["aws"], True, id="aws-beside"),
    ],
)
def test_remains_of_killed_down_are_taken_over_or_named(
    kind: Kind, beside: bool, clouds: Clouds, tmp_path: Path
) -> None:
    """The points before a call have the same state as those after the call before it."""
    accounts: SimpleQueue[CloudGpuctl] = SimpleQueue()
    for number in range(SIDE_BY_SIDE):
        account = clouds.as_new(kind, tmp_path / f"account-{number}", number)
        add_strangers(account, cluster=beside)
        accounts.put(account)
    homes = itertools.count()

    def at(point: Point) -> str:
        account = accounts.get()
        try:
            gpuctl = replace(account, home=tmp_path / f"home-{next(homes)}")
            before = existing(gpuctl)
            gpuctl.ok(*gpuctl.up_words)
            kill(gpuctl, DOWN, point)
            shutil.rmtree(gpuctl.home)
            answer = end_by_adoption(gpuctl)
            assert existing(gpuctl) == before, f"{point}: {answer}"
            assert max(gpuctl.cloud.state()["most_by_cluster"].values()) == COUNT
            return answer
        finally:
            accounts.put(account)

    first = replace(account, home=tmp_path / "first")
    first.ok(*first.up_words)
    total = calls_of(first, DOWN)
    points = [Point(nth=1, phase="before"), *(Point(nth=n, phase="after") for n in range(1, total + 1))]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        answers = set(pool.map(at, points))
    last = {STRANGERS} if beside else {NETWORK, NOTHING}
    assert answers == {TAKEN_OVER, CLUSTERS_REST, *last}


def add_strangers(gpuctl: CloudGpuctl, *, cluster: bool) -> None:
    """Create what nearly has our tags, and with `cluster` another user's cluster."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in gpuctl.cloud.env.items():
            patch.setenv(name, value)
        api: Any = connect(Target(provider=gpuctl.kind.provider), Clock())
        make_foreign(gpuctl.kind, api.api, gpuctl.cloud)
    if cluster:
        gpuctl.ok(*gpuctl.up_words, env={"LOGNAME": "stranger"})


def existing(gpuctl: CloudGpuctl) -> dict[str, Any]:
    """Return the state and the tags of all that exists in the account, by id."""
    state = gpuctl.cloud.state()
    items = [*state["instances"], *state["resources"]]
    return {
        item["id"]: (item["state"], item["tags"]) for item in items if str(item["state"]).lower() not in GONE
    }


def end_by_adoption(gpuctl: CloudGpuctl) -> str:
    """Adopt from a computer without files, and end what is left by the command that `adopt` names.

    Returns the answer.
    """
    adopted = gpuctl("adopt", "--yes")
    if mine := re.search(r"^  (\w+): .*made by (?!stranger)", adopted.err, re.MULTILINE):
        adopted = gpuctl("adopt", mine[1], "--yes")
    answers = (TAKEN_OVER, CLUSTERS_REST, NETWORK, NOTHING, STRANGERS)
    answer = next((text for text in answers if text in adopted.err), None)
    assert answer, adopted.err
    assert adopted.status == (4 if answer == TAKEN_OVER else 2), adopted.err
    if answer in (TAKEN_OVER, CLUSTERS_REST, NETWORK):
        command = re.search(r"`gpuctl (down|reap [^`]*)`", adopted.err[adopted.err.index(answer) - 1 :])
        assert command, adopted.err
        gpuctl.ok(*command[1].split(), "--yes")
    return answer
