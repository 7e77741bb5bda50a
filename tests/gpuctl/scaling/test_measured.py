"""Test the figures of a bench. Pure: results and metrics lines in, figures out."""

from dataclasses import replace
from typing import Any

import pytest

from gpuctl.errors import Usage
from gpuctl.run_results.rank_metrics import RankMetrics
from gpuctl.scaling.measurements import (
    Job,
    Layout,
    Measured,
    RankPace,
    Repetition,
    default_layouts,
    parse_layouts,
    repetition_of,
    repetition_of_script,
    same_batch,
)
from inventories.runs.result import RankResult, Result, Seconds, Share, StepMs, TrainSummary
from remote.runs.metrics_lines import MetricsFile


def parsed(lines: list[Any]) -> RankMetrics:
    return RankMetrics.of(MetricsFile(lines=lines))


def layout(name: str) -> Layout:
    return parse_layouts(name, "--layouts")[0]


def repetition(epoch_s: float = 10.0, **changed: Any) -> Repetition:
    values: dict[str, Any] = {
        "run": "R", "epoch_s": epoch_s, "samples": 50_000, "step_ms": StepMs(p50=20.0, p95=25.0),
        "share": Share(compute=0.75, communication=0.0, data=0.25),
    }  # fmt: skip
    return Repetition(**{**values, **changed})


def measured(
    name: str, *epochs_s: float, hourly_usd: float | None = None, job: Job | None = None, **changed: Any
) -> Measured:
    return Measured(
        layout=layout(name),
        job=job or Job(model="resnet18", dataset="cifar10", device="cuda:0", batch_size=64),
        hourly_usd=hourly_usd,
        repetitions=tuple(repetition(epoch_s, **changed) for epoch_s in epochs_s or (10.0,)),
    )


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("1x1", ["1x1"]),
        ("1x1,1x2,2x2", ["1x1", "1x2", "2x2"]),
        (" 2x4 , 4x8", ["2x4", "4x8"]),
        ("2x1,2x1", ["2x1"]),
    ],
)
def test_parse_layouts_reads_nodes_times_processes(words: str, names: list[str]) -> None:
    result = parse_layouts(words, "--layouts")
    assert [item.name for item in result] == names
    assert [item.world_size for item in result] == [item.nodes * item.nproc for item in result]


@pytest.mark.parametrize("words", ["", "2", "0x1", "1x0", "1x1,", "-1x2", "2X2", "1x1x1", "12345x1", "1 x 1"])
def test_parse_layouts_refuses_malformed_layouts(words: str) -> None:
    with pytest.raises(Usage, match=r"--forecast .* is no layout\. Write NODESxPROCESSES"):
        parse_layouts(words, "--forecast")


@pytest.mark.parametrize(
    ("gpus", "names"),
    [
        ([0], ["1x1"]),
        ([0, 0], ["1x1", "2x1"]),
        ([1, 1], ["1x1", "2x1"]),
        ([2], ["1x1", "1x2"]),
        ([2, 2], ["1x1", "1x2", "2x2"]),
        ([8, 4, 8], ["1x1", "1x4", "3x4"]),
    ],
)
def test_default_layouts_follow_node_and_gpu_counts(gpus: list[int], names: list[str]) -> None:
    assert [default_layout.name for default_layout in default_layouts(gpus)] == names


def test_measured_computes_speed_up_and_efficiency() -> None:
    # Seconds an epoch of one A10, two in one machine, and two machines with two each.
    item, two, four = measured("1x1", 16.4), measured("1x2", 8.3), measured("2x2", 7.5)
    assert item.speed_up(item) == item.efficiency(item) == 1.0
    assert two.speed_up(item) == pytest.approx(16.4 / 8.3)
    assert four.speed_up(item) == pytest.approx(2.1867, abs=1e-4)
    assert four.efficiency(item) == pytest.approx(0.5467, abs=1e-4)
    assert four.efficiency(two) == pytest.approx(8.3 / 7.5 / 2)


def test_measured_takes_median_of_repetitions() -> None:
    result = measured("1x2", 8.0, 9.0, 8.2, hourly_usd=4.0)
    assert result.epoch_s == 8.2
    assert result.spread == pytest.approx(1.0 / 8.2)
    assert result.samples == 50_000
    assert result.samples_per_s == pytest.approx(50_000 / 8.2)
    assert result.epoch_usd == pytest.approx(4.0 * 8.2 / 3600)
    assert result.step_ms == StepMs(p50=20.0, p95=25.0)
    assert measured("1x2", 8.0).epoch_usd is None
    assert measured("1x2", 8.0, hourly_usd=0.0).epoch_usd == 0.0


def test_measured_averages_shares_of_repetitions_with_shares() -> None:
    shares = [
        Share(compute=0.8, communication=0.2, data=0.0),
        Share(),
        Share(compute=0.6, communication=0.2, data=0.2),
    ]
    result = Measured(
        layout=layout("2x1"),
        job=Job(),
        hourly_usd=None,
        repetitions=tuple(repetition(share=share) for share in shares),
    )
    assert result.share == Share(compute=pytest.approx(0.7), communication=0.2, data=0.1)
    assert measured("2x1", share=Share()).share == Share()
    assert measured("2x1", step_ms=StepMs()).step_ms == StepMs()


def test_measured_takes_median_pace_per_rank() -> None:
    def of(*own_ms: float) -> tuple[RankPace, ...]:
        return tuple(RankPace(rank=rank, node=f"n-{rank}", own_ms=ms) for rank, ms in enumerate(own_ms))

    result = Measured(
        layout=layout("2x1"), job=Job(), hourly_usd=None,
        repetitions=tuple(repetition(paces=of(*ms)) for ms in ((1, 9), (2, 7), (3, 8))),
    )  # fmt: skip
    assert result.paces == of(2, 8)


RESULT = Result(
    run="R", cluster="c", mode="torchrun", script="built-in", status="succeeded", exit_code=0, nnodes=2,
    nproc_per_node=1, world_size=2, started_at="2026-11-21T05:46:25+00:00", ended_at=None, seconds=Seconds(),
    train=TrainSummary(step_ms=StepMs(p50=10.0), share=Share(compute=0.6, communication=0.3, data=0.1)),
    ranks=tuple(RankResult(rank=rank, local_rank=0, node=f"n-{rank}") for rank in (0, 1)),
    first_error=None, cost_usd=None, dir="/r",
)  # fmt: skip


def epoch(number: int, seconds: object, speed: object) -> dict[str, object]:
    return {"event": "epoch", "epoch": number, "epoch_s": seconds, "samples_per_s": speed}


def end(p50: float, communication: float) -> dict[str, object]:
    share = {"compute": 0.9 - communication, "communication": communication, "data": 0.1}
    return {"event": "end", "step_ms": {"p50": p50, "p95": p50}, "share": share}


@pytest.mark.parametrize(
    ("lines", "epoch_s", "samples"),
    [
        ([epoch(1, 2.0, 500.0)], 2.0, 1000.0),
        ([epoch(1, 9.0, 111.0), epoch(2, 2.0, 500.0)], 2.0, 1000.0),
        (
            [epoch(1, 9.0, 111.0), epoch(2, 2.0, 500.0), epoch(3, 4.0, 250.0), epoch(4, 2.5, 400.0)],
            2.5,
            1000.0,
        ),
        ([epoch(1, None, 111.0), epoch(2, 2.0, 500.0)], 2.0, 1000.0),
        ([epoch(1, 9.0, None) | {"samples": 1000}], 9.0, 1000.0),
        ([epoch(1, 9.0, None) | {"samples": 1000}, epoch(2, 2.0, 700.0) | {"samples": 1000}], 2.0, 1000.0),
    ],
)
def test_repetition_of_skips_first_epoch_as_warm_up(lines: list[Any], epoch_s: float, samples: float) -> None:
    result = repetition_of(RESULT, {0: parsed(lines)})
    assert (result.run, result.epoch_s, result.samples, result.paces) == ("R", epoch_s, samples, ())
    assert (result.step_ms, result.share) == (RESULT.train.step_ms, RESULT.train.share)


@pytest.mark.parametrize(
    "lines", [[], [end(1.0, 0.1)], [epoch(1, None, 5.0)], [epoch(1, 0.0, 5.0)], [epoch(1, 2.0, None)]]
)
def test_repetition_of_is_none_without_timed_epoch(lines: list[Any]) -> None:
    assert repetition_of(RESULT, {0: parsed(lines)}) is None


def test_repetition_of_excludes_waiting_from_rank_pace() -> None:
    result = repetition_of(
        RESULT, {0: parsed([epoch(1, 2.0, 500.0), end(10.0, 0.5)]), 1: parsed([end(10.0, 0.0)])}
    )
    assert result.paces == (
        RankPace(rank=0, node="n-0", own_ms=5.0),
        RankPace(rank=1, node="n-1", own_ms=10.0),
    )


@pytest.mark.parametrize(
    ("start", "job", "compressed"),
    [
        ({}, Job(), False),
        (
            {"batch_size": 64, "parameters": 10, "gradient_bytes": 40},
            Job(batch_size=64, parameters=10, gradient_bytes=40),
            False,
        ),
        ({"parameters": 10, "gradient_bytes": 20}, Job(parameters=10, gradient_bytes=20), True),
        (
            {"parameters": 10, "gradient_bytes": None, "model": 3, "loop": "fast"},
            Job(parameters=10, loop="fast"),
            True,  # another number of bytes at each step
        ),
    ],
)
def test_job_of_reads_start_line_and_detects_compression(
    start: dict[str, object], job: Job, compressed: bool
) -> None:
    assert Job.of(start) == job
    assert job.compressed is compressed


def test_same_batch_compares_batch_sizes_of_layouts() -> None:
    item, two, four = (
        measured(name, job=Job(batch_size=size)) for name, size in (("1x1", 64), ("1x2", 64), ("2x2", 16))
    )
    assert same_batch([item, two])
    assert not same_batch([item, two, four])


def test_measured_document_has_no_speed_up_over_what_it_can_not_be_compared_with() -> None:
    document = measured("2x1", 1.0).document(measured("1x1", 16.0), compared=False)
    assert (document.speed_up, document.efficiency) == (None, None)


def test_measured_document_lists_all_figures() -> None:
    first, second = (
        measured("1x1", 16.0, hourly_usd=3.6),
        measured("2x1", 10.0, hourly_usd=7.2, samples=50_000.4),
    )
    assert vars(second.document(first)) == {
        "layout": "2x1", "nnodes": 2, "nproc_per_node": 1, "world_size": 2, "batch_size": 64, "runs": ("R",),
        "epoch_s": (10.0,),
        "epoch_s_median": 10.0, "samples_per_s": pytest.approx(5000.04), "unit": "samples",
        "per_s": pytest.approx(5000.04), "from_log": False, "spread": 0.0, "disturbed": False,
        "speed_up": pytest.approx(1.6, rel=1e-4),
        "efficiency": pytest.approx(0.8, rel=1e-4), "step_ms": StepMs(p50=20.0, p95=25.0),
        "share": Share(compute=0.75, communication=0.0, data=0.25), "hourly_usd": 7.2,
        "epoch_usd": pytest.approx(0.02),
    }  # fmt: skip


SCRIPT = Result(
    run="R", cluster="default", mode="torchrun", script="train.py", status="succeeded", exit_code=0, nnodes=2,
    nproc_per_node=1, world_size=2, started_at="", ended_at=None, seconds=Seconds(train=10.0), train=TrainSummary(),
    ranks=(), first_error=None, cost_usd=None, dir="/none",
)  # fmt: skip
OF_LOG = TrainSummary(loss=(3.0, 2.0), loss_at=(100, 299), loss_from="log", loss_by="step")


@pytest.mark.parametrize(
    ("train", "unit", "per_s", "from_log"),
    [
        (TrainSummary(samples_per_s=640.0, step_ms=StepMs(p50=5.0)), "samples", 640.0, False),
        (TrainSummary(step_ms=StepMs(p50=5.0)), "steps", 400.0, False),
        (OF_LOG, "steps", 40.0, True),
        (replace(OF_LOG, loss_by="epoch", loss_at=(0, 4)), "epochs", 0.5, True),
    ],
)
def test_script_is_measured_by_what_it_tells(
    train: TrainSummary, unit: str, per_s: float, from_log: bool
) -> None:
    result = repetition_of_script(replace(SCRIPT, train=train), {})
    assert (result.unit, result.samples_per_s, result.from_log) == (unit, pytest.approx(per_s), from_log)
    assert not result.by_epoch


@pytest.mark.parametrize(
    "train", [TrainSummary(), replace(OF_LOG, loss_at=(100,)), TrainSummary(loss=(1.0,))]
)
def test_script_that_tells_nothing_is_not_measured(train: TrainSummary) -> None:
    assert repetition_of_script(replace(SCRIPT, train=train), {}) is None


def test_script_that_times_its_epochs_is_measured_by_them() -> None:
    lines = [{"event": "epoch", "epoch": n, "epoch_s": 2.0, "samples_per_s": 100.0} for n in (1, 2)]
    result = repetition_of_script(SCRIPT, {0: parsed(lines)})
    assert (result.unit, result.by_epoch, result.epoch_s) == ("samples", True, 2.0)


def test_document_of_a_script_has_null_for_what_it_did_not_tell() -> None:
    known = {"unit": "steps", "by_epoch": False, "from_log": True}
    document = measured("1x1", hourly_usd=2.0, **known).document(measured("1x1", **known))
    assert (document.epoch_s, document.epoch_s_median, document.samples_per_s) == ((), None, None)
    assert (document.unit, document.per_s, document.epoch_usd) == ("steps", 5000.0, None)
