"""Machines that may join an active run, and the checkpoint at which the run may be ended."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support import a_machine, an_inventory

from gpuctl.workflow.jobs.elastic import ElasticScaler, NewCheckpoint
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.disk.store import ClusterFolder
from inventories.machine import Inventory, Machine


def machine(number: int, host: str = "127.0.0.1") -> Machine:
    return a_machine(name=f"gpu-{number}", rank=number, host=host, port=2200 + number)


def inventory(*machines: Machine) -> Inventory:
    return an_inventory(provider="local", machines=machines)


FOUR = inventory(*(machine(number) for number in (3, 2, 1, 0)))


def scaler_for(home: Path, *, max_nodes: int, python: str | None = None) -> ElasticScaler:
    request = TrainRequest(min_nodes=1, nnodes=max_nodes, python=python)
    return ElasticScaler(ClusterFolder(home / "default"), request)


def names(
    scaler: ElasticScaler,
    of: Inventory = FOUR,
    at_work: tuple[int, ...] = (0,),
    barred: frozenset[str] = frozenset(),
) -> list[str]:
    working = [machine(number) for number in at_work]
    return [candidate.name for candidate in scaler._candidates(of, working, barred)]


def test_scaler_offers_idle_machines_by_rank_up_to_maximum(tmp_path: Path) -> None:
    assert names(scaler_for(tmp_path, max_nodes=9)) == [
        "gpu-1",
        "gpu-2",
        "gpu-3",
    ]
    scaler = scaler_for(tmp_path, max_nodes=3)
    assert names(scaler) == ["gpu-1", "gpu-2"]
    assert names(scaler, at_work=(0, 3)) == ["gpu-1"]
    assert names(scaler, at_work=(0, 2, 3)) == []
    assert names(scaler, at_work=(0, 1, 2, 3)) == []


def test_scaler_skips_failed_machine_until_its_address_changes(tmp_path: Path) -> None:
    scaler = scaler_for(tmp_path, max_nodes=2)
    scaler._leave_out(machine(1))
    assert names(scaler) == ["gpu-2"]
    replaced = inventory(machine(0), machine(1, host="127.0.0.9"), machine(2))
    assert names(scaler, replaced) == ["gpu-1"]
    assert names(scaler, replaced, barred=frozenset({"gpu-1"})) == ["gpu-2"]


def test_scaler_backs_off_retries_of_failed_machine(tmp_path: Path) -> None:
    scaler = scaler_for(tmp_path, max_nodes=2)
    waits = []
    for _ in range(6):
        scaler._leave_out(machine(1))
        [(_, until)] = scaler._tries.values()
        waits.append(until)
    apart = [later - sooner for sooner, later in itertools.pairwise(waits)]
    assert apart == pytest.approx([60, 120, 240, 420, 0], abs=5)


def test_scaler_candidates_use_requested_python(tmp_path: Path) -> None:
    scaler = scaler_for(tmp_path, max_nodes=2, python="/opt/python3")
    [candidate] = scaler._candidates(FOUR, [machine(0)])
    assert candidate.python == "/opt/python3"


OLD, NEW, NEWER = ("a.pt", 1), ("b.pt", 2), ("b.pt", 3)


@pytest.mark.parametrize(
    ("first", "settle_s", "polls", "whole"),
    [
        (OLD, 0, [OLD, OLD, NEW], [False, False, True]),
        (None, 0, [None, NEW], [False, True]),
        (OLD, 0, [None, OLD], [False, False]),
        (OLD, 30, [NEW, NEW], [False, True]),
        (OLD, 30, [NEW, NEWER, NEWER], [False, False, True]),
        (None, 30, [NEW, NEWER, NEW, NEWER], [False, False, False, True]),
    ],
)
def test_new_checkpoint_is_whole_once_it_has_settled(
    first: tuple[str, int] | None,
    settle_s: float,
    polls: list[tuple[str, int] | None],
    whole: list[bool],
) -> None:
    """A look every 10 s."""
    checkpoint = NewCheckpoint(first, settle_s=settle_s)
    assert [checkpoint.is_whole(newest, 10.0 * at) for at, newest in enumerate(polls)] == whole


def test_scaler_waits_for_as_many_machines_as_the_strategy_needs(tmp_path: Path) -> None:
    request = TrainRequest(words=("--pp", "2"), min_nodes=1, nnodes=9, nproc_per_node=1)
    scaler = ElasticScaler(ClusterFolder(tmp_path / "default"), request)
    scaler._facts = cast("Any", {f"gpu-{number}": None for number in range(4)})
    notes: list[str] = []
    active = cast("Any", SimpleNamespace(say=notes.append))
    at_work = [machine(0), machine(3)]
    for _ in range(2):
        assert scaler._usable(active, at_work, [machine(1)]) == []
    assert notes == [
        "gpu-1 can't be used until more machines are added: 3 ranks can't be divided by pp 2: start a multiple of 2, "
        "or change --pp and --tp."
    ]
    assert scaler._usable(active, at_work, [machine(2), machine(1)]) == [machine(2), machine(1)]
