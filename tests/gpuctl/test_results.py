"""A run's result, put together from its records."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuctl.results import nothing_was_left, summarise
from inventories import codec
from inventories.run import FirstError, NodeRecord, RankRecord, Result, Run, RunNode, Seconds

NODES = (
    RunNode(name="node-0", rank=0, nproc=2, first_rank=0, run_dir="/r"),
    RunNode(name="node-1", rank=1, nproc=1, first_rank=2, run_dir="/r", clock_offset_s=50.0),
)
RUN = Run(
    run="20261121-054625-3fa9",
    cluster="default",
    mode="torchrun",
    script="train.py",
    args=("--lr", "0.1"),
    nodes=NODES,
    master_addr="127.0.0.1",
    master_port=1,
    started_at="2026-11-21T05:46:25+00:00",
    seconds={"connect": 0.5, "prepare": 1.0},
    hourly_usd=36.0,
)
ENDED_AT = "2026-11-21T05:48:05+00:00"


def ranks(*codes: int | None) -> dict[str, list[RankRecord]]:
    places = (("node-0", 0, 0.0), ("node-0", 1, 0.0), ("node-1", 0, 50.0))
    records: dict[str, list[RankRecord]] = {}
    for rank, (code, (node, local_rank, offset)) in enumerate(zip(codes, places, strict=True)):
        ended_at = None if code is None else 100.0 + rank + offset
        records.setdefault(node, []).append(
            RankRecord(
                rank=rank,
                local_rank=local_rank,
                pid=1,
                started_at=10.0 + offset,
                ended_at=ended_at,
                exit_code=code,
            )
        )
    return records


def nodes(*codes: int | None, stopped: tuple[bool, ...] = (False, False)) -> list[NodeRecord]:
    return [
        NodeRecord(node=f"node-{n}", launcher="torchrun", exit_code=code, ended_at=200.0, stopped=stop)
        for n, (code, stop) in enumerate(zip(codes, stopped, strict=False))
    ]


def result(
    rank_records: dict[str, list[RankRecord]],
    node_records: list[NodeRecord],
    *,
    metrics: dict[int, list[dict[str, Any]]] | None = None,
    seconds: Seconds | None = None,
    run: Run = RUN,
) -> Result:
    return summarise(
        run, rank_records, node_records, metrics or {}, {}, seconds or Seconds(), ENDED_AT, Path("/here")
    )


def test_a_run_that_went_well() -> None:
    start = {"event": "start", "device": "cuda:1", "model": "cnn"}
    found = result(
        ranks(0, 0, 0),
        nodes(0, 0),
        metrics={rank: [start, {"event": "end", "step_ms": {"p50": rank + 1.0}}] for rank in range(3)},
    )
    assert (found.status, found.exit_code, found.first_error) == ("succeeded", 0, None)
    assert (found.nnodes, found.nproc_per_node, found.world_size) == (2, 2, 3)
    assert [r.steps for r in found.ranks] == [None] * 3
    assert [(r.rank, r.local_rank, r.node, r.device, r.exit_code, r.step_ms_p50) for r in found.ranks] == [
        (0, 0, "node-0", "cuda:1", 0, 1.0),
        (1, 1, "node-0", "cuda:1", 0, 2.0),
        (2, 0, "node-1", "cuda:1", 0, 3.0),
    ]
    assert found.ended_at == ENDED_AT
    assert found.dir == "/here"


def test_the_speed_of_a_script_that_tells_no_times_is_that_of_its_files_writes() -> None:
    lines = [{"step": 1, "samples": 64}, {"step": 2, "samples": 264}]
    metrics = dict.fromkeys(range(3), lines)
    told = {
        node: [
            replace(record, metrics_began_at=20.0, metrics_began_samples=64.0, metrics_ended_at=22.0)
            for record in records
        ]
        for node, records in ranks(0, 0, 0).items()
    }
    found = result(told, nodes(0, 0), metrics=metrics)
    assert found.train.samples_per_s == 300.0
    assert [rank.steps for rank in found.ranks] == [2, 2, 2]
    assert result(ranks(0, 0, 0), nodes(0, 0), metrics=metrics).train.samples_per_s is None, (
        "an older gpuctl's"
    )
    told["node-1"] = ranks(0, 0, None)["node-1"]
    assert result(told, nodes(0), metrics=metrics).train.samples_per_s is None, "rank 2 still runs"


@pytest.mark.parametrize(
    ("changes", "train", "left"),
    [
        ({}, {}, False),
        ({"script": "train.py"}, {}, True),
        ({"status": "stopped"}, {}, True),
        ({"resumed_from": None}, {}, True),
        ({}, {"epochs": None}, True),
        ({}, {"epoch_s": (1.0,)}, True),
        ({}, {"loss": (0.5,)}, True),
    ],
)
def test_nothing_was_left_only_where_that_is_known(
    changes: dict[str, Any], train: dict[str, Any], *, left: bool
) -> None:
    ended = replace(result(ranks(0, 0, 0), nodes(0, 0)), script="built-in", resumed_from="earlier")
    ended = replace(ended, train=replace(ended.train, **({"epochs": 3} | train)))
    assert nothing_was_left(replace(ended, **changes)) is not left


def test_seconds_are_completed_from_the_records() -> None:
    found = result(ranks(0, 0, 0), nodes(0, 0))
    assert found.seconds == Seconds(total=100.0, connect=0.5, prepare=1.0, train=92.0)
    given = Seconds(total=1.0, connect=2.0, train=3.0)
    assert result(ranks(0, 0, 0), nodes(0, 0), seconds=given).seconds == replace(given, prepare=1.0)


@pytest.mark.parametrize(("hourly", "cost"), [(36.0, 1.0), (0.0, 0.0), (None, None)])
def test_the_cost_is_the_machines_for_that_time(hourly: float | None, cost: float | None) -> None:
    found = result(ranks(0, 0, 0), nodes(0, 0), run=replace(RUN, hourly_usd=hourly))
    assert found.cost_usd == pytest.approx(cost)


def test_the_cost_of_an_unknown_time_is_unknown() -> None:
    found = result(ranks(None, None, None), [])
    assert (found.cost_usd, found.seconds.total) == (None, None)


def test_a_run_that_goes_on() -> None:
    for records in ([], nodes(0)):
        found = result(ranks(0, 0, None), records)
        assert (found.status, found.exit_code, found.ended_at, found.first_error) == (
            "running",
            None,
            None,
            None,
        )


def test_a_run_without_any_record_is_not_a_success() -> None:
    empty = replace(RUN, nodes=())
    assert result({}, [], run=empty).status == "failed"


def test_a_rank_that_failed_decides_before_every_node_has_ended() -> None:
    found = result(ranks(None, 3, None), [])
    assert (found.status, found.exit_code) == ("failed", 3)
    assert found.first_error == FirstError(rank=1, node="node-0", message="exit status 3")


def test_unknown_is_not_success() -> None:
    assert result(ranks(0, 0, 0), nodes(0, None)).status == "failed"
    assert result(ranks(0, 0, None), nodes(0, 0)).status == "succeeded"
    assert result(ranks(0, 0, 1), nodes(0, 0)).status == "failed"


def test_a_run_that_was_stopped() -> None:
    found = result(ranks(-15, -15, -15), nodes(1, 1, stopped=(True, True)))
    assert (found.status, found.exit_code, found.first_error) == ("stopped", None, None)


def test_a_run_that_failed_and_was_then_stopped() -> None:
    found = result(ranks(3, -15, -15), nodes(1, 1, stopped=(False, True)))
    assert (found.status, found.exit_code) == ("failed", 3)


def test_a_result_survives_the_way_through_its_file() -> None:
    lines = [{"event": "epoch", "loss": float("nan"), "epoch_s": 1.0}, {"step": 1, "samples": 3}]
    found = result(ranks(0, 0, 3), nodes(0, 1), metrics={0: lines})
    text = codec.dump(found)
    again = codec.load(Result, text, "result.json")
    assert codec.dump(again) == text
    assert json.loads(text)["train"]["loss"] == [None]
