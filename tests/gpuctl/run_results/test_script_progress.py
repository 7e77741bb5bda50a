"""Test a script's progress, from lines of its log and files of its libraries."""

import json
import struct
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from gpuctl.run_results import script_progress, written_files
from gpuctl.run_results.progress import Progress, State
from remote.shared.log_lines import LogLine
from train.reporting.tensorboard import Writer


def after(*lines: str, every_s: float = 10.0) -> State:
    progress = Progress()
    for at, line in enumerate(lines):
        progress.log(0, line, at * every_s)
    return progress.state()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Epoch [3/5], Step [100/600], Loss: 0.41", LogLine(epoch=3, epochs=5, step=100, steps=600, loss=0.41)),
        ("Epoch: [3][ 10/500]\tTime 0.2\tLoss 0.41", LogLine(epoch=3, step=10, steps=500, loss=0.41)),
        ("Train Epoch: 3 [640/60000 (1%)]\tLoss: 0.41", LogLine(epoch=3, loss=0.41)),
        ("epoch 3 of 5: train loss 0.41, val loss 0.5", LogLine(epoch=3, epochs=5, loss=0.41)),
        ("iter 100: loss 0.41, time 12ms", LogLine(step=100, loss=0.41)),
        ("  5%|5         | 25/500 [00:04<01:20,  5.91it/s]", LogLine(step=25, steps=500)),
        ("Epoch 3:  50%|██  | 5/10 [00:01<00:01, 9.1it/s, loss=0.41]", LogLine(epoch=3, step=5, steps=10, loss=0.41)),
        ("Map: 100%|████| 500/500 [00:01<00:00, 900.1 examples/s]", LogLine()),
        ("Validation: 100%|████| 5/5 [00:01<00:00, 9.1it/s]", LogLine()),
        ("{'loss': '0.41', 'learning_rate': '5e-05', 'epoch': '3.02'}", LogLine(epoch=3, loss=0.41)),
        ("global_step=500 train/loss=0.41", LogLine(step=500, loss=0.41)),
        ("[epoch 3] batch 10/50 loss 0.41", LogLine(epoch=3, step=10, steps=50, loss=0.41)),
        ("max_step=500, total steps: 900, 12ms/step", LogLine()),
        ("val step 3 loss 0.6", LogLine()),
        ("epoch 3: val step 3 loss 0.6", LogLine(epoch=3)),
        ("hello", LogLine()),
    ],
)  # fmt: skip
def test_values_are_found_in_usual_lines(text: str, line: LogLine) -> None:
    assert LogLine.of(text) == line


def test_state_shows_a_scripts_position_loss_speed_and_time_left() -> None:
    state = after(*(f"step {n}/100: loss {1 / n:.3f}" for n in range(10, 60, 10)))
    assert state.where() == ["step 50/100", "50.0 s left"]
    assert state.figures() == ["loss 0.020 (log)", "1 steps/s"]
    assert state.fraction == 0.5


def test_steps_of_an_epoch_are_a_part_of_all_epochs() -> None:
    lines = [f"Epoch [{epoch}/4], Step [{n}/100], Loss: 0.5" for epoch in (1, 2) for n in (50, 100)]
    state = after(*lines)
    assert (state.where(), state.fraction) == (["epoch 2/4", "step 100/100", "40.0 s left"], 0.5)
    assert state.steps_per_s == 5
    assert after(*lines, "Epoch 3/4").fraction == 0.5, "its steps have not begun"


def test_steps_that_are_counted_over_all_epochs_are_a_part_of_the_run() -> None:
    state = after("epoch 1/4 step 100/400", "epoch 2/4 step 150/400")
    assert (state.fraction, state.steps_per_s) == (0.375, 5)


def test_epochs_count_from_zero_or_one_and_end_with_their_loss() -> None:
    assert after("epoch 0/4", "epoch 1/4 loss 0.5").fraction == 0.5
    assert after("epoch 1/4 loss 0.5").fraction == 0.25
    assert after("epoch 1/4").fraction == 0
    assert after("epoch 1/4 loss 0.5", "epoch 1/4 val_loss 0.6").fraction == 0.25


def test_bar_that_begins_again_leaves_the_end_of_the_run_unknown() -> None:
    bars = [f"50%|█| {n}/10 [00:01<00:01,  1.0it/s]" for n in (5, 10, 5, 10)]
    state = after(*bars)
    assert (state.where(), state.fraction, state.steps_per_s) == (["step 10/10"], None, 0.5)


def test_shorter_bar_of_an_evaluation_is_no_progress() -> None:
    state = after("5%|█| 25/500 [00:04<01:20, 5.9it/s]", "50%|█| 5/10 [00:01<00:01, 5.9it/s]")
    assert state.where() == ["step 25/500"]


def test_bar_of_data_before_training_is_no_part_of_it() -> None:
    bar = " 5%|5  | {}/{} [00:04<01:20,  5.91it/s]"
    for total in (50000, 100):
        data = (bar.format(n, total) for n in (total // 2, total))
        state = after(*data, *(bar.format(n, 500) for n in (5, 10, 15, 20)))
        assert (state.where(), state.fraction, state.steps_per_s) == (
            ["step 20/500", "16 min 0 s left"],
            0.04,
            0.5,
        )


def test_slow_first_step_does_not_count() -> None:
    progress = Progress()
    for n, at_s in enumerate((0.0, 600.0, 601.0, 602.0, 603.0)):
        progress.log(0, f"step {n}/10 loss 0.5", at_s)
    state = progress.state()
    assert (state.steps_per_s, state.left_s) == (1, pytest.approx(6.0))


def test_lines_that_arrive_together_are_one_mark_of_the_speed() -> None:
    progress = Progress()
    for n in range(100):
        progress.log(0, f"step {n}", 5.0 + n * 1e-4)
    progress.log(0, "step 109", 15.0)
    assert progress.state().steps_per_s == 1


def test_only_the_first_ranks_log_counts_and_metrics_have_precedence() -> None:
    progress = Progress()
    assert not progress.log(1, "step 7 loss 0.7", 0.0)
    assert not progress.log(0, "hello", 0.0)
    assert progress.log(0, "step 8 loss 0.8", 0.0)
    progress.update(0, {"step": 9}, 1.0)
    assert progress.state().figures() == ["loss 0.800 (log)"], "as in the results"
    progress.update(0, {"step": 10, "loss": 0.9}, 2.0)
    assert not progress.log(0, "step 11 loss 0.1", 2.0)
    assert (progress.state().where(), progress.state().figures()) == (
        ["step 10"],
        ["loss 0.900", "1 steps/s"],
    )


def test_step_counted_over_all_epochs_by_lines_of_its_own_is_a_part_of_the_run() -> None:
    """As Hugging Face's Trainer prints them: a bar of the run, and losses with a fraction of the epoch."""
    bars = [f" 5%|5  | {n}/40 [00:04<01:20,  5.91it/s]" for n in (5, 10, 15, 20)]
    state = after(
        bars[0], bars[1], "{'loss': 0.9, 'epoch': 0.5}", bars[1], "{'loss': 0.7, 'epoch': 1.0}", *bars[2:]
    )
    assert (state.where()[:2], state.fraction) == (["epoch 1", "step 20/40"], 0.5)
    assert state.figures()[0] == "loss 0.700 (log)"
    half, whole = "{'loss': 0.9, 'epoch': 0.5}", "{'loss': 0.7, 'epoch': 1.0}"
    assert after(bars[0], half, bars[1], whole, bars[2], whole).fraction == 15 / 40, "its lines name no total"


STATE = {"max_steps": 40, "log_history": [{"step": 10, "loss": 0.9}, {"step": 20, "loss": 0.5}]}


def test_trainers_state_has_the_end_of_the_run_and_the_log_the_newer_loss() -> None:
    progress = Progress()
    assert progress.script_file("out/trainer_state.json", json.dumps(STATE).encode(), 0.0, begins=True)
    state = progress.state()
    assert (state.where(), state.figures()) == (["step 20/40"], ["loss 0.500 (Trainer)"])
    for n in (22, 24, 26, 28):
        progress.log(0, f"{n}/40 [00:04<01:20]", 0.0)
        progress.log(0, f" 50%|5  | {n}/40 [00:04<01:20,  5.9it/s]", float(n))
    progress.log(0, "{'loss': 0.25, 'epoch': 3.0}", 28.0)
    state = progress.state()
    assert state.where() == ["epoch 3", "step 28/40", "12.0 s left"]
    assert state.figures() == ["loss 0.250 (log)", "1 steps/s"]


def test_table_of_lightning_is_read_part_by_part() -> None:
    progress = Progress()
    path = "lightning_logs/version_0/metrics.csv"
    assert not progress.script_file(path, b"epoch,step,train_loss,val_loss\n0,9", 0.0, begins=True)
    assert progress.script_file(path, b",0.5,\n0,9,,0.7\n", 10.0, begins=False)
    assert progress.script_file(path, b"1,19,0.25,\n", 20.0, begins=False)
    progress.log(0, "step 3 loss 7", 20.0)
    state = progress.state()
    assert (state.figures()[0], progress.state().where()) == ("loss 0.250 (Lightning)", ["step 3"])
    assert progress.script_file(path, b"step,loss\n1,0.1\n", 30.0, begins=True), "written anew"
    assert progress.state().figures()[0] == "loss 0.100 (Lightning)"
    assert not progress.script_file("notes.csv", b"step,loss\n1,0.1\n", 30.0, begins=True)


def test_events_of_tensorboard_come_first_and_show_the_speed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    with Writer(tmp_path / "events.out.tfevents.1") as writer:
        for step in range(0, 40, 10):
            writer.scalar("train/loss", 4.0 - step / 10, step)
    (path,) = tmp_path.iterdir()
    data, progress = path.read_bytes(), Progress()
    progress.script_file("metrics.csv", b"step,loss\n1,0.1\n", 0.0, begins=True)
    for at in range(0, len(data), 50):
        progress.script_file(path.name, data[at : at + 50], float(at), begins=at == 0)
    state = progress.state()
    assert (state.where(), state.figures()[0]) == (["step 30"], "loss 1.000 (TensorBoard)")
    assert state.steps_per_s is not None
    progress.update(0, {"step": 5}, 1.0)
    assert progress.state().figures() == ["loss 1.000 (TensorBoard)"]


HUGE = "9" * 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("trainer_state.json", f'{{"max_steps": 9, "log_history": [{{"step": 1, "loss": {HUGE}}}]}}'),
        ("trainer_state.json", f'{{"log_history": [{{"step": {HUGE}, "loss": 1}}]}}'),
        ("trainer_state.json", "[" * 100_000),
        ("metrics.csv", f"step,loss\n{HUGE},0.5\n"),
        ("metrics.csv", "step,loss\n\0,0.5\n"),
        ("events.out.tfevents.1", "\x7f" * 100),
    ],
)
def test_hostile_file_has_no_loss(path: str, body: str) -> None:
    progress = Progress()
    for at_s in range(3):
        assert not progress.script_file(path, body.encode(), float(at_s), begins=True)
    assert progress.state().figures() == []


def test_impossible_end_of_a_run_is_unknown() -> None:
    progress = Progress()
    for step in range(1, 6):
        state = f'{{"max_steps": {HUGE}, "log_history": [{{"step": {step}, "loss": 0.5}}]}}'
        assert progress.script_file("trainer_state.json", state.encode(), float(step), begins=True)
    assert progress.state().where() == ["step 5"]


def test_tensor_of_tensorboard_that_is_no_single_number_is_passed_over() -> None:
    proto = pytest.importorskip("tensorboard.compat.proto.event_pb2", reason="tensorboard is not installed")
    event = proto.Event(step=7)
    for tag, size in (("loss/huge", 10**13), ("loss/train", 1)):
        value = event.summary.value.add(tag=tag)
        value.metadata.plugin_data.plugin_name = "scalars"
        value.tensor.dtype = 1
        value.tensor.tensor_shape.dim.add(size=size)
        value.tensor.float_val.append(0.5)
    body = event.SerializeToString()
    file = written_files.EventFile()
    file.feed(struct.pack("<Q", len(body)) + bytes(4) + body + bytes(4))
    assert file.losses == {7: 0.5}


def test_package_of_tensorboard_that_fails_at_its_import_leaves_no_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Old(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise AttributeError("`np.string_` was removed in the NumPy 2.0 release")

    monkeypatch.setitem(sys.modules, "google.protobuf.message", SimpleNamespace(DecodeError=ValueError))
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", SimpleNamespace(Event=Old("old")))
    file = written_files.EventFile()
    file.feed(struct.pack("<Q", 1) + bytes(9))
    assert file.losses == {}


def test_length_that_no_record_has_ends_the_file() -> None:
    file = written_files.EventFile()
    file.feed(struct.pack("<Q", 2**39) + bytes(100))
    assert file._rest == b""


def test_each_checkpoints_state_is_read_and_the_oldest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_progress, "MAX_FILES", 3)
    progress = Progress()
    progress.script_file("metrics.csv", b"step,val\n1,0.1\n", 0.0, begins=True)
    for last in range(1, 9):
        history = [{"step": step, "loss": 1 / step} for step in range(1, last + 1)]
        path, body = f"checkpoint-{last}/trainer_state.json", json.dumps({"log_history": history}).encode()
        assert progress.script_file(path, body, float(last), begins=True)
    assert (progress.state().where(), progress.state().figures()) == (
        ["step 8"],
        ["loss 0.125 (Trainer)", "1 steps/s"],
    )
    assert not progress.script_file("checkpoint-1/trainer_state.json", b"}", 9.0, begins=False), "dropped"


def test_long_curve_keeps_its_beginning_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_files, "MAX_POINTS", 100)
    file = written_files.TableFile()
    file.feed(b"step,loss,val\n" + b"".join(b"%d,0.5,\n" % step for step in range(1000)))
    file.feed(b"1000,0.1,\n")
    assert file.losses[1000] == 0.1
    assert len(file.losses) < 100
    assert min(file.losses) == 0
