"""Test the losses of scripts whose metrics contain no loss."""

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuctl.run_results.metrics import POINTS, LossCurve, thinned
from gpuctl.run_results.written_losses import losses_from_log, written_losses
from inventories.disk.store import RunFolder, Store


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return Store(tmp_path).new_run(datetime.now(UTC))


def log(folder: RunFolder, text: str | bytes) -> None:
    (folder.logs_path / "rank-0.log").write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize(
    "line",
    [
        "epoch 3 loss 0.41",
        "Epoch: 3/10, train_loss=0.41, val_loss=0.9",
        "[Epoch 3] val loss 0.9 | train loss: 0.41",
        "Train Epoch: 3 [640/60000 (1%)]\tLoss: 0.410000",
        "{'loss': 0.41, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 3.02}",
        "{'loss': '0.41', 'grad_norm': '1.2', 'learning_rate': '5e-05', 'epoch': '3.02'}",
        "Epoch 3: 100%|████| 10/10 [00:00<00:00, 9.1it/s, v_num=0, train_loss=0.41]",
        "Epoch [3/5], Step [100/600], Loss: 0.41",
        "INFO:root:epoch=3 loss=4.1e-1 lr=0.1",
        "epoch 3: loss is tensor(0.41, device='cuda:0')",
    ],
)
def test_loss_of_an_epoch_is_found_in_usual_lines(line: str) -> None:
    assert losses_from_log(["epoch 2 loss 0.5", "hello", line]) == ({2: 0.5, 3: 0.41}, {})


@pytest.mark.parametrize(
    "line",
    [
        "epoch 3 done", "loss 0.4", "epoch 3 val_loss 0.4", "Test set: Average loss: 0.05, epoch 1", "loss 4% epoch",
        "epoch 3 floss 0.4", "Validation loss: 0.3 (epoch 2)", "epoch x loss 0.4", "closs epoch 3", "epochs 9 loss f",
    ],
)  # fmt: skip
def test_other_lines_tell_of_no_loss(line: str) -> None:
    assert losses_from_log([line]) == ({}, {})


def test_last_loss_of_each_epoch_counts_and_steps_only_without_epochs() -> None:
    assert losses_from_log(["epoch 1 loss 3", "epoch 1 loss 2", "epoch 0 loss 9"]) == ({1: 2.0, 0: 9.0}, {})
    lines = ["iter 0: loss 10.9, time 12ms", "step 100: train loss 4.2, val loss 4.3"]
    assert losses_from_log(lines) == ({}, {0: 10.9, 100: 4.2})
    again = ["step 0 loss 9", "step 1 loss 8", "step 0 loss 7", "step 1 loss 6"]
    assert losses_from_log(again) == ({}, {0: 9.0, 1: 8.0, 2: 7.0, 3: 6.0})


def test_loss_that_is_no_number_any_more_is_seen() -> None:
    losses, _ = losses_from_log(["epoch 1 loss nan"])
    assert math.isnan(losses[1])


def test_long_curve_keeps_its_ends_and_its_course() -> None:
    saved = thinned(range(10_000))
    assert (len(saved), saved[0], saved[-1]) == (POINTS, 0, 9999)
    assert list(saved) == sorted(saved)


def losses(folder: RunFolder) -> LossCurve:
    return written_losses(folder.logs_path / "rank-0.log", folder.outputs_path, ())


def test_states_of_a_bar_that_writes_over_itself_are_lines(folder: RunFolder) -> None:
    log(folder, b"\xff\x00Epoch 0: loss=0.9\rEpoch 0: loss=0.8\rEpoch 1: loss=0.7 " + b"x" * 100_000)
    assert losses(folder) == LossCurve(losses=(0.8, 0.7), places=(0, 1), by="epoch", source="log")


def test_run_without_log_or_with_an_empty_one_has_no_curve(folder: RunFolder) -> None:
    assert losses(folder) == LossCurve()
    log(folder, "")
    assert losses(folder) == LossCurve()
