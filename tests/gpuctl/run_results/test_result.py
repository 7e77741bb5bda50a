"""A run's result, put together from its records."""

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support import a_run

from gpuctl.run_results.advice import notes_on
from gpuctl.run_results.evidence import Evidence
from gpuctl.run_results.rank_metrics import RankMetrics
from gpuctl.run_results.result import result_of
from gpuctl.run_results.saved_results import nothing_was_left
from inventories import codec
from inventories.runs.end_reasons import Cause, Ended, Reason
from inventories.runs.hang import Culprit, Hang, RankStacks
from inventories.runs.records import NodeRecord, RankRecord
from inventories.runs.result import FirstError, Result, Seconds
from inventories.runs.run import Run, RunNode
from remote.runs.metrics_lines import MetricsFile

NODES = (
    RunNode(name="node-0", rank=0, nproc=2, first_rank=0, run_dir="/r"),
    RunNode(name="node-1", rank=1, nproc=1, first_rank=2, run_dir="/r", clock_offset_s=50.0),
)
RUN = a_run(
    script="train.py",
    args=("--lr", "0.1"),
    nodes=NODES,
    seconds={"connect": 0.5, "prepare": 1.0},
    hourly_usd=36.0,
)
ENDED_AT = "2026-11-21T05:48:05.000+00:00"


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
    ended_at = datetime.fromisoformat(ENDED_AT).timestamp()
    return [
        NodeRecord(
            node=part.name,
            launcher="torchrun",
            exit_code=code,
            ended_at=ended_at + part.clock_offset_s,
            stopped=stop,
        )
        for part, code, stop in zip(NODES, codes, stopped, strict=False)
    ]


def result(
    rank_records: dict[str, list[RankRecord]],
    node_records: list[NodeRecord],
    *,
    metrics: dict[int, list[dict[str, Any]]] | None = None,
    measured: dict[str, float] | None = None,
    run: Run = RUN,
    log_tails: dict[int, str] | None = None,
    hang: Hang | None = None,
) -> Result:
    evidence = Evidence(
        folder=Path("/home/runs/r"),
        run=run,
        ranks=rank_records,
        nodes=node_records,
        metrics={rank: RankMetrics.of(MetricsFile(lines=lines)) for rank, lines in (metrics or {}).items()},
        log_tails=log_tails or {},
        hang=hang,
    )
    return result_of(evidence, measured)


def test_result_of_reports_succeeded_run_with_its_ranks() -> None:
    start = {"event": "start", "device": "cuda:1", "model": "cnn"}
    run_result = result(
        ranks(0, 0, 0),
        nodes(0, 0),
        metrics={rank: [start, {"event": "end", "step_ms": {"p50": rank + 1.0}}] for rank in range(3)},
    )
    assert (run_result.status, run_result.exit_code, run_result.first_error) == ("succeeded", 0, None)
    assert (run_result.nnodes, run_result.nproc_per_node, run_result.world_size) == (2, 2, 3)
    assert [r.steps for r in run_result.ranks] == [None] * 3
    assert [
        (r.rank, r.local_rank, r.node, r.device, r.exit_code, r.step_ms_p50) for r in run_result.ranks
    ] == [
        (0, 0, "node-0", "cuda:1", 0, 1.0),
        (1, 1, "node-0", "cuda:1", 0, 2.0),
        (2, 0, "node-1", "cuda:1", 0, 3.0),
    ]
    assert run_result.ended_at == ENDED_AT
    assert run_result.dir == "/home/runs/r"


CAUGHT = (
    "ERROR:root:failed\nTraceback (most recent call last):\n"
    '  File "/x/t.py", line 6, in main\n    d["lr"]\nKeyError: \'lr\'\n'
)


@pytest.mark.parametrize(
    ("tails", "codes", "logged"),
    [
        (
            {1: CAUGHT},
            (0, 0, 0),
            "rank 1 on node-0 has exit status 0, and its log ends with an exception: KeyError: 'lr'",
        ),
        ({1: f"{CAUGHT}\n\n"}, (0, 0, 0), "KeyError: 'lr'"),
        ({1: f"{CAUGHT}\ntrained all the same\n"}, (0, 0, 0), None),
        ({1: "done\n"}, (0, 0, 0), None),
        ({1: CAUGHT}, (0, 0, 1), None),
    ],
)
def test_result_of_names_an_exception_that_a_script_only_logged(
    tails: dict[int, str], codes: tuple[int, ...], logged: str | None
) -> None:
    run_result = result(ranks(*codes), nodes(0, max(codes)), log_tails=tails)
    assert run_result.status == ("failed" if any(codes) else "succeeded")
    assert (run_result.logged_error is None) == (logged is None)
    assert run_result.logged_error is None or (logged or "") in run_result.logged_error.message


@pytest.mark.parametrize(
    ("joined", "names_ranks", "codes", "joined_of_run", "has_sentence"),
    [
        ((False, False, False), False, (0, 0, 0), False, True),
        ((False, False, False), True, (0, 0, 0), False, False),
        ((False, False, False), False, (0, 0, 1), False, False),
        ((False, True, False), False, (0, 0, 0), True, False),
        ((False, None, False), False, (0, 0, 0), None, False),
    ],
)
def test_ranks_that_never_joined_are_told_where_each_did_the_whole_job(
    joined: tuple[bool | None, ...],
    names_ranks: bool,
    codes: tuple[int, ...],
    joined_of_run: bool | None,
    has_sentence: bool,
) -> None:
    records = {
        node: [replace(record, joined=joined[record.rank]) for record in of_node]
        for node, of_node in ranks(*codes).items()
    }
    run = replace(RUN, names_ranks=names_ranks)
    run_result = result(records, nodes(0, max(codes)), run=run)
    assert run_result.joined is joined_of_run
    sentence = (
        "The 3 ranks never joined each other (torch.distributed), so each seems to have done the whole job."
    )
    notes = notes_on(run_result, run)
    assert len(notes) == has_sentence
    assert all(note.startswith(sentence) for note in notes)


def test_result_of_derives_speed_from_file_times_of_all_ranks() -> None:
    lines = [{"step": 1, "samples": 64}, {"step": 2, "samples": 264}]
    metrics = dict.fromkeys(range(3), lines)
    records = {
        node: [
            replace(record, metrics_began_at=20.0, metrics_began_samples=64.0, metrics_ended_at=22.0)
            for record in records
        ]
        for node, records in ranks(0, 0, 0).items()
    }
    run_result = result(records, nodes(0, 0), metrics=metrics)
    assert run_result.train.samples_per_s == 300.0
    assert [rank.steps for rank in run_result.ranks] == [2, 2, 2]
    assert result(ranks(0, 0, 0), nodes(0, 0), metrics=metrics).train.samples_per_s is None, (
        "an older gpuctl's"
    )
    records["node-1"] = ranks(0, 0, None)["node-1"]
    assert result(records, nodes(0), metrics=metrics).train.samples_per_s is None, "rank 2 still runs"


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
def test_nothing_was_left_needs_resumed_job_without_new_epochs(
    changes: dict[str, Any], train: dict[str, Any], *, left: bool
) -> None:
    ended = replace(result(ranks(0, 0, 0), nodes(0, 0)), script="built-in", resumed_from="earlier")
    ended = replace(ended, train=replace(ended.train, **({"epochs": 3} | train)))
    assert nothing_was_left(replace(ended, **changes)) is not left


def test_result_of_completes_seconds_from_records() -> None:
    run_result = result(ranks(0, 0, 0), nodes(0, 0))
    assert run_result.seconds == Seconds(total=100.0, connect=0.5, prepare=1.0, train=98.5)
    measured = {"total": 1.0, "train": 3.0, "collect": 0.5}
    known = Seconds(**measured, connect=0.5, prepare=1.0)
    assert result(ranks(0, 0, 0), nodes(0, 0), measured=measured).seconds == known
    silent = result(ranks(0, 0, 0), nodes(0)).seconds
    assert silent == Seconds(connect=0.5, prepare=1.0, train=92.0), "as its ranks took"


@pytest.mark.parametrize(("hourly", "cost"), [(36.0, 1.0), (0.0, 0.0), (None, None)])
def test_result_of_computes_cost_from_hourly_price_and_time(hourly: float | None, cost: float | None) -> None:
    run_result = result(ranks(0, 0, 0), nodes(0, 0), run=replace(RUN, hourly_usd=hourly))
    assert run_result.cost_usd == pytest.approx(cost)


def test_result_of_has_no_cost_for_unknown_time() -> None:
    run_result = result(ranks(None, None, None), [])
    assert (run_result.cost_usd, run_result.seconds.total) == (None, None)


def test_result_of_reports_running_while_a_node_has_not_ended() -> None:
    for records in ([], nodes(0)):
        run_result = result(ranks(0, 0, None), records)
        assert (run_result.status, run_result.exit_code, run_result.ended_at, run_result.first_error) == (
            "running",
            None,
            None,
            None,
        )


def test_result_of_reports_failed_as_soon_as_a_rank_failed() -> None:
    run_result = result(ranks(None, 3, None), [])
    assert (run_result.status, run_result.exit_code) == ("failed", 3)
    assert run_result.first_error == FirstError(
        rank=1,
        node="node-0",
        message="exit status 3 without a word in its log",
        reason=Reason.EXIT_CODE,
        cause=Cause.SILENT,
    )


def test_result_of_reports_unknown_node_exit_code_as_failed() -> None:
    assert result(ranks(0, 0, 0), nodes(0, None)).status == "failed"
    assert result(ranks(0, 0, None), nodes(0, 0)).status == "succeeded"
    assert result(ranks(0, 0, 1), nodes(0, 0)).status == "failed"


def test_result_of_reports_stopped_run() -> None:
    run_result = result(ranks(-15, -15, -15), nodes(1, 1, stopped=(True, True)))
    assert (run_result.status, run_result.exit_code, run_result.first_error) == ("stopped", None, None)


@pytest.mark.parametrize(
    ("reasons", "reason"),
    [
        ((Reason.STOPPED, Reason.STOPPED), Reason.STOPPED),
        ((Reason.RESIZED, Reason.RESIZED), Reason.RESIZED),
        ((Reason.RESIZED, Reason.STOPPED), Reason.STOPPED),
        ((None, None), None),
    ],
)
def test_result_of_tells_why_run_was_stopped(
    reasons: tuple[Reason | None, Reason | None], reason: Reason | None
) -> None:
    stopped = nodes(1, 1, stopped=(True, True))
    stopped = [
        replace(node, ended=None if why is None else Ended(reason=why))
        for node, why in zip(stopped, reasons, strict=True)
    ]
    run_result = result(ranks(-15, -15, -15), stopped)
    assert (run_result.status, run_result.reason) == ("stopped", reason)
    assert result(ranks(3, -15, -15), nodes(1, 1)).reason is Reason.EXIT_CODE
    assert result(ranks(0, 0, 0), nodes(0, 0)).reason is None


@pytest.mark.parametrize(("raised", "status"), [("ValueError: no", "failed"), (None, "stopped")])
def test_result_of_a_stopped_run_that_hung_is_failed_if_a_rank_had_raised(
    raised: str | None, status: str
) -> None:
    culprit = Culprit(rank=1, node="node-0", raised=raised)
    stacks = RankStacks(rank=1, node="node-0", state="S", cpu=0.0, last_collective=None, at=None, stacks="x")
    hang = Hang(
        run=RUN.run, verdict="hung", sentence="The run hangs: so.", culprits=(culprit,), ranks=(stacks,)
    )
    run_result = result(ranks(-15, -15, -15), nodes(1, 1, stopped=(True, True)), hang=hang)
    assert (run_result.status, run_result.exit_code) == (status, None)
    assert (run_result.first_error and run_result.first_error.detail) == raised
    assert run_result.hang == replace(hang, sentence="The run hung: so.")
    running = result(ranks(None, None, None), [], hang=replace(hang, verdict="slow"))
    assert (running.status, running.hang) == ("running", None)
    assert result(ranks(0, 0, 0), nodes(0, 0), hang=hang).hang is None, "it succeeded after all"


def test_result_of_reports_failed_for_run_stopped_after_failure() -> None:
    run_result = result(ranks(3, -15, -15), nodes(1, 1, stopped=(False, True)))
    assert (run_result.status, run_result.exit_code) == ("failed", 3)


def test_result_survives_json_round_trip() -> None:
    lines = [{"event": "epoch", "loss": float("nan"), "epoch_s": 1.0}, {"step": 1, "samples": 3}]
    run_result = result(ranks(0, 0, 3), nodes(0, 1), metrics={0: lines})
    text = codec.dump(run_result)
    again = codec.load(Result, text, "result.json")
    assert codec.dump(again) == text
    assert json.loads(text)["train"]["loss"] == [None]
