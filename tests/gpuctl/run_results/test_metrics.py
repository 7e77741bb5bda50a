"""Test parsing metrics lines, good ones and bad ones."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuctl.run_results import metrics
from gpuctl.run_results.progress import Progress
from gpuctl.run_results.rank_metrics import RankMetrics, Written, percentile
from inventories.runs.end_reasons import Reason
from inventories.runs.result import Share, StepMs, TrainSummary
from remote.runs.metrics_lines import MetricsFile, read_metrics_file

START = {
    "event": "start",
    "device": "cuda:0",
    "model": "cnn",
    "dataset": "digits",
    "strategy": "ddp",
    "epochs": 2,
    "steps_per_epoch": 10,
}
END = {
    "event": "end",
    "accuracy": 0.97,
    "loss": 0.1,
    "samples_per_s": 640.0,
    "step_ms": {"p50": 3.0, "p95": 4.0},
    "share": {"compute": 0.5, "communication": 0.3, "data": 0.2},
}


def steps(count: int, *, every_s: float = 0.1, samples: int = 32, **more: object) -> list[dict[str, object]]:
    return [
        {"step": n, "loss": 1 / n, "samples": n * samples, "time": 100 + n * every_s} | more
        for n in range(1, count + 1)
    ]


def epoch(number: int, **more: object) -> dict[str, object]:
    return {"event": "epoch", "epoch": number, "epoch_s": 2.0, "loss": 1 / number, "accuracy": 0.9} | more


def parsed(lines: list[dict[str, object]]) -> RankMetrics:
    return RankMetrics.of(MetricsFile(lines=lines))


def summary(
    lines: dict[int, list[dict[str, object]]], world_size: int = 1, written: Written | None = None
) -> TrainSummary:
    files = {} if written is None else dict.fromkeys(range(world_size), written)
    ranks = {rank: parsed(of_rank) for rank, of_rank in lines.items()}
    train = metrics.summary(ranks, world_size=world_size, written=files)
    assert bool(train.loss) is metrics.has_losses(ranks)
    return train


def grew(seconds: float, samples: float = 64) -> Written:
    return Written(samples=samples, seconds=seconds)


def test_summary_takes_values_of_complete_job() -> None:
    train = summary({0: [START, *steps(20), epoch(1), epoch(2), END]})
    assert (train.model, train.dataset, train.strategy, train.device) == ("cnn", "digits", "ddp", "cuda")
    assert (train.epochs, train.epoch_s, train.loss) == (2, (2.0, 2.0), (1.0, 0.5))
    assert (train.accuracy, train.samples_per_s) == (0.97, 640.0)
    assert train.step_ms == StepMs(p50=3.0, p95=4.0)
    assert train.share == Share(compute=0.5, communication=0.3, data=0.2)


def test_summary_has_the_precision_and_what_saves_memory() -> None:
    savers = ["activation_checkpointing", 7, "a\nb", "cpu_offload"]
    result = summary({0: [START | {"precision": "bf16", "memory_savers": savers}, END | {"graphs": True}]})
    assert (result.precision, result.graphs, result.memory_savers) == ("bf16", True, (savers[0], savers[3]))
    unknown = summary({0: [START | {"precision": 16, "memory_savers": "all"}, END | {"graphs": "yes"}]})
    assert (unknown.precision, unknown.memory_savers, unknown.graphs) == (None, (), None)


def test_summary_has_what_the_end_line_tells_of_text_and_devices() -> None:
    report = {"accuracy": None, "perplexity": 5.5, "tokens_per_s": 81_920.0, "memory_gb": 21.4, "mfu": 0.41}
    text = summary({0: [START, epoch(1, perplexity=9.0), END | report]})
    assert (text.accuracy, text.perplexity, text.tokens_per_s) == (0.9, 5.5, 81_920.0)
    assert (text.memory_gb, text.mfu) == (21.4, 0.41)
    interrupted = summary({0: [START, epoch(1, perplexity=9.0), epoch(2, perplexity=7.0)]})
    assert (interrupted.perplexity, interrupted.memory_gb, interrupted.mfu) == (7.0, None, None)
    images = summary({0: [START, epoch(1), END | {"mfu": "fast", "memory_gb": math.inf}]})
    assert (images.perplexity, images.tokens_per_s, images.memory_gb, images.mfu) == (None,) * 4


def test_summary_derives_values_of_job_without_end_line() -> None:
    parts = {"step_ms": 10.0, "compute_ms": 6.0, "communication_ms": 3.0, "data_ms": 1.0}
    lines = [
        START,
        *steps(10, **parts),
        epoch(1, samples_per_s=300),
        epoch(2, samples_per_s=500, epoch_s=6.0),
    ]
    train = summary({0: lines})
    assert train.accuracy == 0.9
    assert train.samples_per_s == (300 * 2 + 500 * 6) / 8
    assert train.step_ms == StepMs(p50=10.0, p95=10.0)
    assert train.share == Share(compute=0.6, communication=0.3, data=0.1)


def test_summary_of_sparse_script_has_loss_and_speed_only() -> None:
    lines = [{"step": 1, "loss": 0.9, "samples": 64}, {"step": 2, "loss": 0.4, "samples": 128}]
    train = summary({0: lines, 1: lines}, world_size=2, written=grew(2.0))
    assert train.samples_per_s == 64
    assert (train.loss, train.loss_at, train.loss_by) == ((0.9, 0.4), (1, 2), "step")
    assert (train.model, train.device, train.epochs, train.epoch_s, train.accuracy) == (
        None,
        None,
        None,
        (),
        None,
    )
    assert (train.step_ms, train.share) == (StepMs(), Share())


def test_summary_takes_last_valid_accuracy_without_epochs() -> None:
    lines = [{"step": n, "accuracy": accuracy} for n, accuracy in enumerate((0.1, 0.8, 97.0, "high", None))]
    assert summary({0: lines, 1: [{"step": 1, "accuracy": 0.9}]}).accuracy == 0.8
    assert summary({0: lines[2:]}).accuracy is None
    assert summary({0: [epoch(1), *lines]}).accuracy == 0.9


def test_summary_averages_step_loss_per_epoch() -> None:
    lines = [{"step": n, "loss": float(n), "epoch": 1 + n // 4} for n in range(1, 7)]
    assert summary({0: lines}).loss == (2.0, 5.0)
    assert summary({0: [*lines, epoch(1)]}).loss == (1.0,)
    broken = summary({0: [*lines, {"step": 7, "loss": None, "epoch": 2}]}).loss
    assert broken[0] == 2.0
    assert math.isnan(broken[1])


def test_summary_has_no_speed_when_a_rank_reports_none() -> None:
    assert summary({0: steps(5)}, world_size=2, written=grew(1.0)).samples_per_s is None


def test_summary_adds_up_the_ranks_that_count_their_samples() -> None:
    replicas = {0: steps(11), 1: steps(11, samples=0), 2: steps(11), 3: steps(11, samples=0)}
    assert summary(replicas, world_size=4).samples_per_s == pytest.approx(640)
    assert summary({**replicas, 2: []}, world_size=4).samples_per_s is None, "rank 2 has not told"
    assert summary({0: steps(11, samples=0)}).samples_per_s is None


def test_summary_prefers_line_times_to_file_times() -> None:
    train = summary({0: steps(11)}, written=grew(1000.0))
    assert (train.samples_per_s, train.samples_per_s_by) == (pytest.approx(320), None)


def test_summary_names_the_writes_as_the_source_of_a_speed_without_line_times() -> None:
    train = summary({0: steps(11, time=None)}, written=grew(2.0))
    assert (train.samples_per_s, train.samples_per_s_by) == (144.0, "writes")
    assert summary({0: steps(11, time=None)}).samples_per_s_by is None


def counts(*samples: object) -> list[dict[str, object]]:
    """Return metrics lines with steps and samples but no times; `None`: another kind of line."""
    return [
        {"accuracy": 0.9} if sample is None else {"step": step, "samples": sample}
        for step, sample in enumerate(samples)
    ]


@pytest.mark.parametrize(
    "late",
    [{2: 30.0}, {6: 20.0}, {2: 30.0, 5: 4.0, 6: 20.0, 9: 3.0}, {}],
    ids=["first", "save", "all", "none"],
)
def test_slow_first_steps_evaluations_and_saves_change_no_speed_of_a_script(late: dict[int, float]) -> None:
    lines = steps(10)
    for line in lines:
        line["time"] = 100 + 0.1 * line["step"] + sum(s for step, s in late.items() if step <= line["step"])
    assert summary({0: lines}).samples_per_s == pytest.approx(320)


def test_lines_that_are_written_together_tell_one_speed() -> None:
    lines = [{"step": n, "samples": 32 * n, "time": 100 + n // 4} for n in range(16)]
    assert summary({0: lines}).samples_per_s == pytest.approx(128)


@pytest.mark.parametrize(
    ("lines", "written", "speed"),
    [
        (counts(64, 128, 256), grew(2.0), 96.0),
        (counts(64, None, 256), grew(2.0), 96.0),
        (counts(64, 128, 256), grew(2.0, samples=128), 64.0),
        (counts(64, 128, 256), None, None),
        (counts(64, 128, 256), grew(0.09), None),
        (counts(64), grew(2.0), None),
        (counts(64, 64), grew(2.0), None),
        (counts(256, 64), grew(2.0), None),
        (counts(None, 64, 256), grew(2.0), 96.0),
        (counts(64, 128, None), grew(2.0), 32.0),
        (counts(64, "many", 256), grew(2.0), 96.0),
        (counts(64, 128, "many"), grew(2.0), 32.0),
        ([*counts(64, 256), {"epoch": 1, "val_loss": 0.5}], grew(2.0), 96.0),
        ([{"event": "start", "samples": 0}, *counts(None, 64, 128)], grew(2.0, samples=0), 64.0),
        ([], grew(2.0), None),
    ],
)
def test_samples_per_s_of_uses_file_times_without_line_times(
    lines: list[dict[str, object]], written: Written | None, speed: float | None
) -> None:
    assert parsed(lines).samples_per_s(written) == speed


JUDGED = {"loss": 0.2, "accuracy": 0.9, "f1": 0.8, "top5": 1}


@pytest.mark.parametrize(
    ("lines", "judged", "judged_on"),
    [
        (
            [epoch(1, validation=JUDGED), END | {"test": {"loss": 0.1, "f1": 0.7}}],
            {"f1": 0.7},
            "test",
        ),
        (
            [epoch(1, validation={"f1": 0.1}), epoch(2, validation=JUDGED), END | {"test": None}],
            {"accuracy": 0.9, "f1": 0.8, "top5": 1.0},
            "validation",
        ),
        (
            [epoch(1, validation=JUDGED), END | {"test": ["f1"]}],
            {"accuracy": 0.9, "f1": 0.8, "top5": 1.0},
            "validation",
        ),
        ([END | {"test": {"f1": None, "top5": True, "auc": math.nan, "x": "0.5", "y": 10**400}}], {}, None),
        (
            [END | {"test": {"": 1, "\x1b[2J": 1, "a\nb": 1, "m" * 65: 1, "\ud800": 1, "m" * 64: 1}}],
            {"m" * 64: 1.0},
            "test",
        ),
        ([END | {"test": {"loss": 0.1}}], {}, None),
        ([epoch(1), END], {}, None),
    ],
)
def test_summary_takes_metrics_from_test_or_last_validation(
    lines: list[dict[str, object]], judged: dict[str, float], judged_on: str | None
) -> None:
    train = summary({0: lines, 1: [END | {"test": {"other": 1.0}}]}, world_size=2)
    assert (train.metrics, train.judged_on) == (judged, judged_on)


def test_summary_keeps_first_32_metrics() -> None:
    many = {f"m{n}": n for n in range(1000)}
    assert list(summary({0: [END | {"test": {"bad": None} | many}]}).metrics) == [f"m{n}" for n in range(32)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (steps(5), 5),
        ([{"step": 500}, {"step": 510}, {"step": "x"}, {"event": "epoch", "step": 900}], 11),
        ([{"step": 7.5}], None),
        ([START, END], None),
    ],
)
def test_steps_of_counts_steps_by_their_numbers(lines: list[dict[str, object]], message: int | None) -> None:
    assert parsed(lines).step_count == message


def test_summary_averages_step_shares_over_ranks() -> None:
    """While one computes, the other waits for it."""
    slow = END | {"share": {"compute": 0.9, "communication": 0.0, "data": 0.1}}
    waits = END | {"share": {"compute": 0.1, "communication": 0.8, "data": 0.1}}
    report = {0: [slow], 1: [waits], 2: [END | {"share": {"compute": 0.5}}]}
    assert summary(report, world_size=3).share == Share(
        compute=pytest.approx(0.5), communication=pytest.approx(0.4), data=pytest.approx(0.1)
    )
    assert summary({0: [END | {"share": {"compute": 0.5}}]}).share == Share(compute=0.5)


def test_summary_of_no_lines_is_empty() -> None:
    assert summary({}) == TrainSummary()
    assert summary({0: []}) == TrainSummary()


def test_summary_reports_missing_or_nan_loss_as_nan() -> None:
    for bad in (math.nan, None):
        losses = summary({0: [epoch(1), epoch(2, loss=bad)]}).loss
        assert losses[0] == 1.0
        assert math.isnan(losses[1])


def test_summary_joins_device_kinds_of_ranks() -> None:
    assert summary({0: [START], 1: [START | {"device": "cpu"}]}, world_size=2).device == "cpu+cuda"


@pytest.mark.parametrize(
    ("lines", "p50", "p95"),
    [
        ([END], 3.0, 4.0),
        (steps(5, step_ms=7.0), 7.0, 7.0),
        (steps(5, every_s=0.2), 200.0, 200.0),
        (steps(2), None, None),
        ([{"step": n, "time": n * 1.0} for n in (10, 20, 30)], 1000.0, None),
        ([{"step": n, "time": 5.0 - n} for n in (1, 2, 3)], None, None),
        ([END | {"step_ms": {"p50": "fast"}}, *steps(3, every_s=0.5)], 500.0, 500.0),
    ],
)
def test_step_ms_of_takes_reported_or_derived_step_times(
    lines: list[dict[str, object]], p50: float | None, p95: float | None
) -> None:
    result = parsed(lines).step_ms
    assert (result.p50, result.p95) == (pytest.approx(p50), pytest.approx(p95))


def test_percentile_interpolates_between_values() -> None:
    assert [percentile([4, 1, 3, 2], percent) for percent in (0, 50, 95, 100)] == pytest.approx(
        [1, 2.5, 3.85, 4]
    )


KEYS = ("event", "step", "loss", "samples", "time", "epoch", "epochs", "steps_per_epoch", "epoch_s", "share")
MORE = (
    "global_step",
    "train/loss",
    "val_loss",
    "accuracy",
    "samples_per_s",
    "step_ms",
    "device",
    "model",
    "compute_ms",
    "data_ms",
    "communication_ms",
    "test",
    "validation",
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([10**400, -(10**400), 1e308, -1e308, 5e-324])
    | st.sampled_from(
        ["start", "epoch", "end", "", "x", "\x1b[2J", "0.3", "nan", "tensor(1., device='cpu')"]
    ),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["p50", "compute", "accuracy"]), inner, max_size=2)
    ),
    max_leaves=3,
)
anything = st.lists(st.dictionaries(st.sampled_from(KEYS + MORE), values, max_size=8), max_size=8)


@given(anything, anything)
@settings(max_examples=300, deadline=None)
def test_metrics_and_progress_accept_any_line(
    lines: list[dict[str, object]], others: list[dict[str, object]]
) -> None:
    train = summary({0: lines, 1: others}, world_size=2, written=grew(1.0))
    assert all(math.isfinite(value) for value in train.metrics.values())
    assert parsed(lines).step_ms.p50 != math.inf
    assert (parsed(lines).step_count or 1) > 0
    progress = Progress()
    for line in lines:
        progress.update(0, line, 1.0)
        progress.update(1, line, 2.0)
        state = progress.state()
        assert all(isinstance(part, str) for part in state.where() + state.figures())
        assert state.fraction is None or state.fraction <= 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"reason": "lost_peer", "ranks": []}, (Reason.LOST_PEER, ())),
        ({"reason": "timed_out", "ranks": [2, 3]}, (Reason.TIMED_OUT, (2, 3))),
        ({"reason": "timed_out", "ranks": [True, "2", None, 3]}, (Reason.TIMED_OUT, (3,))),
        ({"reason": "timed_out", "ranks": "all"}, (Reason.TIMED_OUT, ())),
        ({"reason": "timed_out"}, (Reason.TIMED_OUT, ())),
        ({"reason": "exit_code"}, None),
        ({"reason": ["timed_out"]}, None),
        ({}, None),
    ],
)
def test_failed_takes_only_what_a_rank_can_know(line: dict[str, object], message: object) -> None:
    assert parsed([{"step": 1}, {"event": "failed", **line}]).end_reason == message
    assert parsed([{"event": "end", **line}]).end_reason is None


def curve(*lines: dict[str, object]) -> tuple[object, ...]:
    train = summary({0: list(lines)})
    return train.loss_by, train.loss_at, train.loss, train.loss_name


@pytest.mark.parametrize(
    ("shape", "by"),
    [
        ('{"step": %d, "loss": %d}', "step"),
        ('{"step": "%d", "loss": "%d"}', "step"),
        ('{"global_step": %d, "loss": [%d]}', "step"),
        ('{"trainer/global_step": %d, "loss": "tensor(%d., device=\'cuda:0\')"}', "step"),
        ('{"iteration": %d, "batch": 0, "epoch": 1, "loss": %d}', "step"),
        ('{"_step": %d, "loss": %d, "_runtime": 1.5, "_timestamp": 2.5}', "step"),
        ('{"iter": %d, "loss": %d, "event": "train"}', "step"),
        ('{"num_updates": %d, "epoch": 0.5, "loss": %d}', "step"),
        ('{"epoch": %d, "loss": %d}', "epoch"),
        ('{"epoch": %d, "step": 7, "loss": %d}', "epoch"),
        ('{"Epoch": %d, "Loss": %d}', "epoch"),
    ],
)
def test_losses_of_any_usual_shape_are_a_curve(shape: str, by: str) -> None:
    result = curve(*(json.loads(shape % (at, loss)) for at, loss in ((1, 9), (2, 6), (4, 3))))
    assert result[:3] == (by, (1, 2, 4), (9.0, 6.0, 3.0))


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("val_loss", "loss"), None),
        (("loss_scale", "train/aux_loss", "train/loss", "eval/loss"), "train/loss"),
        (("kl_loss", "total_loss", "value_loss"), "total_loss"),
        (("value_loss",), "value_loss"),
        (("valLoss", "trainLoss"), "trainLoss"),
        (("test_loss", "validation/loss"), "test_loss"),
    ],
)
def test_loss_of_several_names_is_the_training_loss(names: tuple[str, ...], chosen: str | None) -> None:
    lines = [{"step": step} | {name: step + at for at, name in enumerate(names)} for step in (1, 2)]
    at = names.index(chosen or "loss")
    assert curve(*lines) == ("step", (1, 2), (1 + at, 2 + at), chosen)


def test_losses_by_fractions_of_epochs_and_nested_names() -> None:
    fractions = [{"train": {"loss": 1 - at}, "epoch": at} for at in (0.25, 0.5, 1)]
    assert curve(*fractions) == ("epoch", (0.25, 0.5, 1), (0.75, 0.5, 0.0), "train/loss")
    assert curve({"loss": 3}, {"loss": 2}, {"loss": 1}) == ("line", (1, 2, 3), (3.0, 2.0, 1.0), None)


def test_losses_of_mixed_lines_are_those_of_one_kind_of_place() -> None:
    by_step = [{"step": step, "train_loss": 1 / step} for step in (1, 2, 4)]
    ends = [{"epoch": epoch, "val_loss": 2.0, "val_acc": 0.5 + epoch / 10} for epoch in (1, 2)]
    train = summary({0: [by_step[0], ends[0], *by_step[1:], ends[1]]})
    assert (train.loss_at, train.loss, train.metrics) == (
        (1, 2, 4),
        (1, 0.5, 0.25),
        {"val_loss": 2.0, "val_acc": 0.7},
    )
    epochs = [{"epoch": epoch, "train_loss": 1 / epoch} for epoch in (1, 2)]
    assert summary({0: [*by_step, *epochs]}).loss == (1.0, 0.5)
    assert summary({0: ends[:1], 1: by_step}).loss == (1, 0.5, 0.25), (
        "a training loss of any rank comes first"
    )


def test_losses_of_steps_that_begin_anew_are_counted_on() -> None:
    result = curve(*({"batch": batch, "loss": loss} for batch, loss in ((0, 4), (5, 3), (0, 2), (5, 1))))
    assert result[1:3] == ((0, 5, 6, 11), (4.0, 3.0, 2.0, 1.0))


def test_losses_of_an_only_epoch_that_resumes_others_are_by_epoch() -> None:
    again = [{"step": step, "epoch": 4, "loss": 1.0} for step in (1, 2)]
    assert curve(*again)[:2] == ("epoch", (4,))


def test_loss_is_the_name_with_the_most_numbers() -> None:
    lines = [{"step": n, "train_loss_epoch": None, "train_loss_step": 1 / n, "eta_s": 5} for n in (1, 2)]
    ends = {"step": 2, "train_loss_epoch": 0.7, "train_runtime": 12.5, "train_samples_per_second": 80}
    train = summary({0: [*lines, ends]})
    assert (train.loss_name, train.loss) == ("train_loss_step", (1.0, 0.5))
    assert train.metrics == {"train_loss_epoch": 0.7}


def test_losses_that_are_nan_or_null_stay_in_the_curve() -> None:
    losses = summary(
        {0: [{"step": n, "loss": loss} for n, loss in enumerate((1, math.nan, None, "NaN", 2))]}
    ).loss
    assert [math.isnan(loss) for loss in losses] == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("text", "lines", "unused"),
    [
        (b'{"step": 1, "loss": 2}\n\n{"step": 2, "loss": NaN}\n', 2, None),
        (b'\xef\xbb\xbf{"step": 1, "loss": 2}{"step": 2, "loss": 3}', 2, None),
        (b'[{"step": 1, "loss": 2}, {"step": 2, "loss": 3}]\r\n', 2, None),
        (b'{"step": 1, "loss": 2}\n{"step": 2, "lo', 1, None),
        (b'{"lr": 0.1}\n{"loss_fn": "mse", "loss": 2}\n{"event": "end", "loss": true}\n', 3, None),
        (b"step 1 loss 2\nstep 2 loss 1\n", 0, (2, "step 1 loss 2", "it is not JSON")),
        (b"step 1 loss 2", 0, (1, "step 1 loss 2", "it is not JSON")),
        (b"{'step': 1, 'loss': 2}\n", 0, (1, "{'step': 1, 'loss': 2}", "it is not JSON")),
        (b'{"step": 1}\n0.5\n', 1, (1, "0.5", "it is not a JSON object")),
        (b'{"step": 1, "loss": true}\n', 1, (1, '{"step": 1, "loss": true}', 'its "loss" is true')),
        (b'{"loss": [1, 2]}\n', 1, (1, '{"loss": [1, 2]}', 'its "loss" is a list of 2')),
        (b'{"step": "1/9"}\n', 1, (1, '{"step": "1/9"}', 'its "step" is the text "1/9"')),
        (b'{"message": "hello"}\n', 1, (1, '{"message": "hello"}', "it holds no number")),
        (
            b'{"loss": ' + b"1" * 70_000 + b"}\n",
            0,
            (1, '{"loss": ' + "1" * 110 + "…", "it is longer than 64 KiB"),
        ),
    ],
)
def test_lines_that_are_not_used_are_counted_with_an_example_and_the_reason(
    text: bytes, lines: int, unused: tuple[object, ...] | None
) -> None:
    read = read_metrics_file(text.splitlines(keepends=True))
    result = metrics.unused({0: RankMetrics(), 1: RankMetrics.of(read)})
    assert len(read.lines) == lines
    assert (result and (result.lines, result.example, result.why)) == unused
    assert result is None or result.rank == 1


@pytest.mark.parametrize("last", [math.nan, None, "nan"])
def test_last_value_that_is_no_number_hides_the_one_before(last: object) -> None:
    lines = [
        {"step": 1, "loss": 1.0, "val_loss": 0.5, "acc": 0.9},
        {"step": 2, "loss": 1.0, "val_loss": last},
    ]
    assert summary({0: lines}).metrics == {"acc": 0.9}
