"""Test a job's progress, from its metrics lines."""

import math

import pytest

from gpuctl.run_results.metrics import summary
from gpuctl.run_results.progress import Progress, State
from gpuctl.run_results.rank_metrics import RankMetrics
from remote.runs.metrics_lines import MetricsFile

START = {"event": "start", "epochs": 3, "steps_per_epoch": 40}


def after(*lines: tuple[int, dict[str, object], float]) -> State:
    progress = Progress()
    for rank, line, now_s in lines:
        progress.update(rank, line, now_s)
    return progress.state()


def test_state_without_lines_is_empty() -> None:
    state = after()
    assert state == State()
    assert (state.where(), state.figures(), state.fraction) == ([], [], None)


def test_state_reports_epoch_step_speed_and_time_left() -> None:
    lines = [
        (rank, {"step": n, "loss": 0.5, "samples": n * 32, "time": n * 0.1}, 0.0)
        for n in range(1, 61)
        for rank in (0, 1)
    ]
    state = after((0, START, 0.0), *lines)
    assert (state.epoch, state.epochs, state.step, state.steps, state.fraction) == (2, 3, 60, 120, 0.5)
    assert state.samples_per_s == pytest.approx(640)
    assert state.left_s == pytest.approx(6.0)
    assert state.where() == ["epoch 2/3", "step 60/120", "6.0 s left"]
    assert state.figures() == ["loss 0.500", "640 samples/s"]


def test_state_omits_total_steps_after_change_of_ranks() -> None:
    lines = [(0, {"step": n, "epoch": 3}, n * 0.1) for n in range(50, 61)]
    state = after((0, START, 0.0), *lines)
    assert (state.epoch, state.epochs, state.step, state.steps, state.left_s) == (3, 3, 60, None, None)


def test_time_left_is_told_after_some_steps_and_without_the_warm_up() -> None:
    lines = [(0, {"step": 1}, 0.0), *((0, {"step": n}, 60.0 + n) for n in range(2, 6))]
    assert [after((0, START, 0.0), *lines[:n]).left_s for n in range(1, 4)] == [None] * 3
    assert after((0, START, 0.0), *lines[:4]).left_s == pytest.approx(116.0)
    assert after((0, START, 0.0), *lines).left_s == pytest.approx(115.0)


def test_time_left_counts_each_evaluation_of_a_longer_run() -> None:
    lines = [(0, {"step": n}, n + 100.0 * (n // 25)) for n in range(1, 101)]
    assert after((0, START, 0.0), *lines).left_s == pytest.approx(20 * (49 + 200) / 49)


def test_speed_is_that_of_steady_steps_as_in_the_results() -> None:
    lines = [
        {"step": n, "samples": n * 32, "time": 100.0 + n + 300.0 * (n > 1) + 60.0 * (n > 5)}
        for n in range(1, 11)
    ]
    assert after(*((0, line, 0.0) for line in lines)).samples_per_s == pytest.approx(32)
    file = MetricsFile(lines=lines)
    assert summary({0: RankMetrics.of(file)}, world_size=1, written={}).samples_per_s == pytest.approx(32)


def test_state_prefers_line_times_to_arrival_times() -> None:
    lines = [(0, {"step": n, "samples": n, "time": 1000 + n}, 5.0) for n in (1, 2, 3)]
    assert after(*lines).samples_per_s == pytest.approx(1.0)


def test_state_of_script_shows_step_and_loss_only() -> None:
    state = after((3, {"step": 7, "loss": 1.25}, 0.0))
    assert (state.where(), state.figures(), state.fraction) == (["step 7"], ["loss 1.250"], None)


def test_script_that_reports_its_last_step_gets_the_time_left() -> None:
    lines = [{"step": n, "max_steps": 20, "time": 100.0 + n} for n in range(1, 11)]
    state = after(*((0, line, 0.0) for line in lines))
    assert (state.where(), state.fraction) == (["step 10/20", "10.0 s left"], 0.5)
    assert after((0, {"step": 1, "max_steps": "all"}, 0.0)).where() == ["step 1"]


def test_state_shows_nan_loss() -> None:
    assert after((0, {"step": 7, "loss": math.nan}, 0.0)).figures() == ["loss nan"]


def test_state_shows_accuracy_of_last_epoch() -> None:
    state = after((0, START, 0.0), (0, {"step": 40}, 1.0), (0, {"event": "epoch", "accuracy": 0.951}, 1.0))
    assert state.figures() == ["accuracy 95.1 %"]


def test_state_takes_end_of_epoch_from_epoch_line() -> None:
    epoch = {"event": "epoch", "epoch": 1, "loss": 1.9, "accuracy": 0.5, "samples_per_s": 6000.0}
    lines = [(0, START, 0.0), (0, {"step": 30, "epoch": 1, "loss": 1.2}, 1.0), (0, epoch, 2.0)]
    state = after(*lines)
    assert (state.where()[:2], state.figures()) == (
        ["epoch 1/3", "step 40/120"],
        ["loss 1.900", "accuracy 50.0 %", "6,000 samples/s"],
    )
    late = after(*lines, (1, {"step": 30, "epoch": 1, "loss": 1.3}, 2.1))
    assert late.figures()[:2] == state.figures()[:2], "another rank's line of the same epoch came later"
    on = after(*lines, (0, {"step": 50, "epoch": 2, "loss": 0.8}, 3.0))
    assert (on.where()[:2], on.figures()[:2]) == (
        ["epoch 2/3", "step 50/120"],
        ["loss 0.800", "accuracy 50.0 % after epoch 1"],
    )


def test_state_speed_excludes_time_between_epochs() -> None:
    epoch = {"event": "epoch", "epoch": 1}
    first = [(0, {"step": 10, "samples": 100}, 0.0), (0, {"step": 20, "samples": 200}, 1.0), (0, epoch, 2.0)]
    assert after(*first[:2]).samples_per_s == pytest.approx(100)
    assert after(*first).samples_per_s is None
    second = [(0, {"step": 30, "samples": 300}, 60.0), (0, {"step": 40, "samples": 400}, 61.0)]
    assert after(*first, second[0]).samples_per_s is None
    assert after(*first, *second).samples_per_s == pytest.approx(100)
    report = [*first[:2], (0, epoch | {"samples_per_s": 90.0}, 2.0), (1, {"step": 30, "samples": 300}, 60.0)]
    assert after(*report, *second).samples_per_s == pytest.approx(90), "until every rank has told"


def test_state_speed_adds_up_the_ranks_that_count_their_samples() -> None:
    def told(steps: range) -> list[tuple[int, dict[str, object], float]]:
        return [
            (rank, {"step": n, "samples": n * (32, 0)[rank % 2], "time": n * 0.1}, 0.0)
            for n in steps
            for rank in range(4)
        ]

    assert after(*told(range(1, 11))).samples_per_s == pytest.approx(640)
    over = (0, {"event": "epoch", "epoch": 1, "samples_per_s": 90.0}, 1.0)
    assert after(*told(range(1, 11)), over).samples_per_s == pytest.approx(90)
    second = after(*told(range(1, 11)), over, *told(range(11, 21)))
    assert second.samples_per_s == pytest.approx(640), "not the epoch before for ever"


def test_state_caps_fraction_at_1_beyond_announced_steps() -> None:
    state = after((0, START, 0.0), *((0, {"step": 50 * n}, float(n)) for n in range(1, 5)))
    assert (state.fraction, state.left_s) == (1.0, 0.0)
    assert "left" not in " ".join(state.where())


def test_update_returns_true_for_steps_and_epochs_only() -> None:
    progress = Progress()
    assert not progress.update(0, START, 0.0)
    assert progress.update(0, {"step": 1}, 0.0)
    assert progress.update(0, {"event": "epoch"}, 0.0)
    assert not progress.update(0, {"event": "end"}, 0.0)
    assert not progress.update(0, {"loss": 1}, 0.0)
