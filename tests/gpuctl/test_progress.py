"""How far a job is, from its metrics lines."""

import math

import pytest

from gpuctl.progress import Progress, State

START = {"event": "start", "epochs": 3, "steps_per_epoch": 40}


def after(*lines: tuple[int, dict[str, object], float]) -> State:
    progress = Progress()
    for rank, line, now_s in lines:
        progress.update(rank, line, now_s)
    return progress.state()


def test_before_anything_is_told() -> None:
    state = after()
    assert state == State()
    assert (state.where(), state.how(), state.fraction) == ([], [], None)


def test_a_job_half_way() -> None:
    lines = [
        (rank, {"step": n, "loss": 0.5, "samples": n * 32}, n * 0.1) for n in range(1, 61) for rank in (0, 1)
    ]
    state = after((0, START, 0.0), *lines)
    assert (state.epoch, state.epochs, state.step, state.steps, state.fraction) == (2, 3, 60, 120, 0.5)
    assert state.samples_per_s == pytest.approx(640)
    assert state.left_s == pytest.approx(6.0)
    assert state.where() == ["epoch 2/3", "step 60/120", "6.0 s left"]
    assert state.how() == ["loss 0.500", "640 samples/s"]


def test_a_job_that_goes_on_with_another_number_of_ranks() -> None:
    lines = [(0, {"step": n, "epoch": 3}, n * 0.1) for n in range(50, 61)]
    state = after((0, START, 0.0), *lines)
    assert (state.epoch, state.epochs, state.step, state.steps, state.left_s) == (3, 3, 60, None, None)


def test_times_in_the_lines_count_more_than_their_arrival() -> None:
    lines = [(0, {"step": n, "samples": n, "time": 1000 + n}, 5.0) for n in (1, 2, 3)]
    assert after(*lines).samples_per_s == pytest.approx(1.0)


def test_a_script_of_its_own_kind() -> None:
    state = after((3, {"step": 7, "loss": 1.25}, 0.0))
    assert (state.where(), state.how(), state.fraction) == (["step 7"], ["loss 1.250"], None)


def test_a_loss_that_is_no_number_any_more() -> None:
    assert after((0, {"step": 7, "loss": math.nan}, 0.0)).how() == ["loss nan"]


def test_an_epochs_accuracy() -> None:
    state = after((0, START, 0.0), (0, {"step": 40}, 1.0), (0, {"event": "epoch", "accuracy": 0.951}, 1.0))
    assert state.how() == ["accuracy 95.1 %"]


def test_more_steps_than_were_announced() -> None:
    state = after((0, START, 0.0), (0, {"step": 100}, 0.0), (0, {"step": 200}, 1.0))
    assert (state.fraction, state.left_s) == (1.0, 0.0)
    assert "left" not in " ".join(state.where())


def test_what_counts_as_progress() -> None:
    progress = Progress()
    assert not progress.update(0, START, 0.0)
    assert progress.update(0, {"step": 1}, 0.0)
    assert progress.update(0, {"event": "epoch"}, 0.0)
    assert not progress.update(0, {"event": "end"}, 0.0)
    assert not progress.update(0, {"loss": 1}, 0.0)
