"""The losses in files that a script wrote."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuctl.run_results.written_losses import losses_from_files, written_losses
from inventories.disk.store import Store
from inventories.runs.outputs import OutputFile
from train.reporting.tensorboard import Writer


def written(folder: Path, files: dict[str, str]) -> list[OutputFile]:
    """Return the downloaded files: `NODE/PATH` → text."""
    outputs = []
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        node, _, inner = name.partition("/")
        outputs.append(OutputFile(node=node, path=inner, bytes=len(text), kind=None, brought=True))
    return outputs


LIGHTNING = "epoch,train_loss_epoch,train_loss_step,val_loss,step\n0,,4.5,,3\n0,4.0,,9.0,7\n1,2.0,,9.0,15\n"
TRAINER = {
    "log_history": [
        {"step": 2, "loss": 5.0},
        {"step": 4, "loss": 4},
        {"step": 4, "eval_loss": 9.0},
        7,
        {"loss": 1},
    ]
}


def test_training_loss_of_lightnings_csv_is_found(tmp_path: Path) -> None:
    outputs = written(tmp_path, {"n-0/logs/lightning_logs/version_0/metrics.csv": LIGHTNING})
    assert losses_from_files(tmp_path, outputs) == ("Lightning", {7: 4.0, 15: 2.0})


def test_training_loss_of_the_trainers_state_is_found_in_the_longest(tmp_path: Path) -> None:
    state = json.dumps(TRAINER)
    outputs = written(
        tmp_path,
        {"n-0/out/checkpoint-2/trainer_state.json": "{}", "n-0/out/checkpoint-4/trainer_state.json": state},
    )
    assert losses_from_files(tmp_path, outputs) == ("Trainer", {2: 5.0, 4: 4.0})


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("metrics.csv", LIGHTNING + "x,1", {7: 4.0, 15: 2.0}),
        ("metrics.csv", LIGHTNING + "1,2,3,4,5,6,7\n", {7: 4.0, 15: 2.0}),
        ("metrics.csv", "epoch,loss\n1,2\n", None),
        ("metrics.csv", '"' + "x" * 200_000, None),
        ("metrics.csv", "step,val_loss\n1,2\n", None),
        ("metrics.csv", "step,loss\n1,nan\n", None),
        ("metrics.csv", "", None),
        ("trainer_state.json", "[" * 100_000, None),
        ("trainer_state.json", "[]", None),
        ("trainer_state.json", '{"log_history": 3}', None),
        ("trainer_state.json", '{"log_history": [{"step": "a", "loss": 1}]}', None),
        ("my_metrics.csv", LIGHTNING, None),
    ],
)
def test_torn_or_foreign_files_tell_what_they_can(
    tmp_path: Path, name: str, text: str, expected: dict[int, float] | None
) -> None:
    report = losses_from_files(tmp_path, written(tmp_path, {f"n-0/{name}": text}))
    assert (report and report[1]) == expected


def test_files_of_the_first_node_count_and_missing_ones_tell_nothing(tmp_path: Path) -> None:
    files = {"n-0/metrics.csv": LIGHTNING, "n-1/metrics.csv": "step,loss\n" + "1,2\n" * 99}
    outputs = written(tmp_path, files)
    assert losses_from_files(tmp_path, outputs) == ("Lightning", {7: 4.0, 15: 2.0})
    (tmp_path / "n-0" / "metrics.csv").unlink()
    assert losses_from_files(tmp_path, outputs) is None


def test_training_loss_of_event_files_comes_before_the_log(tmp_path: Path) -> None:
    folder = Store(tmp_path).new_run(datetime.now(UTC))
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    log = folder.logs_path / "rank-0.log"
    log.write_text("epoch 1 loss 0.5\n")
    path = folder.outputs_path / "n-0" / "runs" / "events.out.tfevents.1"
    path.parent.mkdir(parents=True)
    with Writer(path) as writer:
        for step in range(4):
            writer.scalar("a/val_loss", 9.0, step)
            writer.scalar("train/loss", 4.0 - step, step * 10)
            writer.scalar("accuracy", 0.5, step)
    (events,) = path.parent.iterdir()
    outputs = [OutputFile(node="n-0", path=f"runs/{events.name}", bytes=1, kind=None, brought=True)]
    result = written_losses(log, folder.outputs_path, outputs)
    assert (result.losses, result.source, result.by) == ((4.0, 3.0, 2.0, 1.0), "TensorBoard", "step")
    events.write_bytes(events.read_bytes()[:-90] + b"\xff" * 300)
    assert written_losses(log, folder.outputs_path, outputs).losses == (4.0, 3.0, 2.0), (
        "as far as it is whole"
    )
    events.write_bytes(b"no events")
    assert written_losses(log, folder.outputs_path, outputs).source == "log"
