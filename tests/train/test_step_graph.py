"""Steps as graphs, on CPUs: a stand-in repeats the recorded function, as a GPU repeats a recorded graph."""

import inspect
import json
import weakref
from functools import partial

import pytest
import torch

from train import trainer as trainer_module
from train.data.load import load_dataset
from train.distributed.environment import DistributedEnvironment
from train.models.gpt_sizes import GPT_SIZES, GPTSize
from train.options import Options
from train.reporting.report import Report
from train.reporting.time_parts import TimeParts
from train.step_graph import MEASURED_EVERY, WARM_UP, allows_graphs, recorder_of
from train.strategies.ddp import DataParallel
from train.strategies.strategy import Strategy
from train.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread():
    """Small operations on several threads mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


IMAGES = 70
"""Seventeen batches of four, and one of two."""


class Playback:
    """Runs a recorded function at each replay, and writes into the same outputs, as a CUDA graph does."""

    def __init__(self, fails=False):
        self.fails = fails
        self.recorded = self.replayed = self.unpacked = 0
        self.alive = weakref.WeakSet()

    def record(self, step):
        if self.fails:
            with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, self.unpack):
                step()
        self.recorded += 1
        outputs = []

        def replay():
            self.replayed += 1
            values = step()
            if not outputs:
                outputs.extend(None if value is None else torch.empty_like(value) for value in values)
            for output, value in zip(outputs, values, strict=True):
                if output is not None:
                    output.copy_(value)
            return tuple(outputs)

        self.alive.add(replay)
        return replay

    def unpack(self, tensor):
        """End the backward pass, when it reads what the forward pass left for the second time."""
        self.unpacked += 1
        if self.unpacked > 1:
            raise RuntimeError("operation not permitted when stream is capturing\nCompile with")
        return tensor


def options_of(**changed):
    return Options(
        **{
            "model": "mlp",
            "dataset": "synthetic",
            "synthetic": (IMAGES, 1, 6, 6, 4),
            "batch_size": 4,
            "epochs": 2,
            "lr": 2**-9,
            "log_every": 1,
            "checkpoint_every": 0,
            "augmentation": "none",
            **changed,
        }
    )


def losses(folder, options, monkeypatch, recorder=None, epochs=None):
    """Train in this process, and return the loss of each step by its number."""
    monkeypatch.setattr(trainer_module, "recorder_of", lambda _device: recorder)
    env = DistributedEnvironment()
    path = folder / "metrics.jsonl"
    with Report(path=path, env=env, options=options) as report:
        load = partial(load_dataset, options, env)
        trainer = Trainer(options, env, CPU, report, folder / "checkpoints", TimeParts(), load)
        trainer.start()
        while trainer.progress.epoch <= (epochs or options.epochs):
            trainer.train_epoch()
            trainer.save_if_due()
        trainer.finish()
    assert recorder is None or not recorder.alive, "NCCL waits for graphs at the end"
    lines = map(json.loads, path.read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "step" in line}


def both(tmp_path, monkeypatch, **changed):
    """Return a recorder, and the losses with graphs and without."""
    recorder = Playback()
    graphs = losses(tmp_path / "auto", options_of(**changed), monkeypatch, recorder)
    plain = losses(tmp_path / "off", options_of(**changed, graphs="off"), monkeypatch, recorder)
    return recorder, graphs, plain


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"optimizer": "sgd", "schedule": "cosine", "warmup_epochs": 0.5, "max_grad_norm": 0.5},
        {"optimizer": "adamw", "weight_decay": 0.1, "gradient_accumulation_steps": 3},
        {"model": "cnn", "precision": "bf16", "label_smoothing": 0.1},
    ],
    ids=["adam", "sgd", "adamw", "bf16"],
)
def test_steps_as_graphs_have_the_losses_of_steps_without(tmp_path, monkeypatch, changed):
    recorder, graphs, plain = both(tmp_path, monkeypatch, **changed)
    assert (recorder.recorded, recorder.replayed) == (1, 2 * 17 - WARM_UP)
    assert list(graphs) == list(range(1, 37))
    # The learning rate of a graph is in single precision.
    assert list(graphs.values()) == pytest.approx(list(plain.values()), rel=1e-5)
    assert "schedule" in changed or graphs == plain


def test_larger_batches_are_recorded_anew(tmp_path, monkeypatch):
    """The learning rate is so small that no loss is better than the first one's."""
    changed = {"schedule": "plateau", "grow_batch": True, "lr": 2**-40, "epochs": 6}
    recorder, graphs, plain = both(tmp_path, monkeypatch, **changed)
    assert len(graphs) == 4 * 18 + 2 * 9
    assert (recorder.recorded, recorder.replayed) == (2, 4 * 17 - WARM_UP + 2 * 8 - WARM_UP)
    assert graphs == plain


@pytest.mark.parametrize("resumed_with", ["auto", "off"])
def test_resumed_steps_are_recorded_anew(tmp_path, monkeypatch, resumed_with):
    changed = {"checkpoint_every": 1, "epochs": 4, "optimizer": "adamw"}
    whole = losses(tmp_path / "whole", options_of(**changed, graphs="off"), monkeypatch)
    losses(tmp_path / "parts", options_of(**changed), monkeypatch, Playback(), epochs=2)
    recorder = Playback()
    options = options_of(**changed, graphs=resumed_with)
    assert losses(tmp_path / "parts", options, monkeypatch, recorder) == whole
    assert recorder.recorded == (resumed_with == "auto")


def test_loaded_state_is_recorded_anew(tmp_path, monkeypatch):
    """A graph writes the state that the optimizer had when it was recorded."""
    recorder = Playback()
    monkeypatch.setattr(trainer_module, "recorder_of", lambda _device: recorder)
    env, options = DistributedEnvironment(), options_of()
    report, load = Report(path=None, env=env, options=options), partial(load_dataset, options, env)
    trainer = Trainer(options, env, CPU, report, tmp_path, TimeParts(), load)
    trainer.train_epoch()
    state = trainer.state_dict()
    trainer.load_state_dict({**state, "rng": state["rng"]})
    trainer.train_epoch()
    assert (recorder.recorded, recorder.replayed) == (2, 2 * (17 - WARM_UP))


def test_step_that_cannot_be_recorded_runs_without(tmp_path, monkeypatch, capsys):
    recorder = Playback(fails=True)
    changed = {"optimizer": "sgd", "max_grad_norm": 0.5}
    graphs = losses(tmp_path / "auto", options_of(**changed), monkeypatch, recorder)
    lines = [line for line in capsys.readouterr().out.splitlines() if "CUDA graph" in line]
    assert lines == [
        "the step can't be recorded as a CUDA graph: operation not permitted when stream is capturing. The run "
        "continues without graphs; with --graphs off it does not try."
    ]
    assert (recorder.recorded, recorder.replayed) == (0, 0)
    assert graphs == losses(tmp_path / "off", options_of(**changed, graphs="off"), monkeypatch)


def test_text_steps_as_graphs_keep_no_logits(tmp_path, monkeypatch):
    monkeypatch.setitem(GPT_SIZES, "gpt-10m", GPTSize(layers=1, width=8, heads=2, context=1024, lr=1e-3))
    (tmp_path / "book.txt").write_text("one by one " * 100)
    text = {"model": "gpt-10m", "dataset": "text", "data_dir": str(tmp_path / "book.txt"), "seq_len": 8}
    recorder, graphs, plain = both(tmp_path, monkeypatch, **text, synthetic=Options().synthetic)
    assert recorder.replayed > WARM_UP
    assert graphs == plain


@pytest.mark.parametrize(
    ("changed", "kind", "allowed"),
    [
        ({}, Strategy, True),
        ({"precision": "bf16", "gradient_accumulation_steps": 2}, Strategy, True),
        ({}, DataParallel, True),
        ({"graphs": "off"}, Strategy, False),
        ({"loop": "plain"}, Strategy, False),
        ({"precision": "fp16"}, Strategy, False),
        ({"compile": True}, Strategy, False),
        ({"activation_checkpointing": True}, Strategy, False),
        ({"compression": "half"}, DataParallel, False),
        ({"compression": "powersgd"}, DataParallel, False),
        ({}, type("Zero1", (DataParallel,), {}), False),
    ],
)
def test_graphs_are_for_what_they_are_proven_with(changed, kind, allowed):
    options = Options(**changed)
    assert allows_graphs(options, kind(options, DistributedEnvironment(), CPU)) is allowed


def test_double_precision_and_cpus_have_no_graphs(monkeypatch):
    options = Options(precision="fp64")
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float64)
    assert not allows_graphs(options, Strategy(options, DistributedEnvironment(), CPU))
    assert recorder_of(CPU) is None


TWO_RANKS = (
    *("--dataset", "synthetic", "--synthetic", "1090,1,6,6,4", "--model", "mlp", "--batch-size", "4"),
    *("--augmentation", "none", "--epochs", "1", "--lr", "0.001953125", "--checkpoint-every", "0"),
    *("--log-every", "1", "--device", "cpu", "--threads", "1", "--no-tensorboard", "--no-save"),
)


def of_rank(run_dir, rank):
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["rank"] == rank and "step" in line]


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["False", "here"], ids=["recorded", "fails-on-one-rank"])
def test_averaged_steps_as_graphs_have_the_same_losses(run, changed, tmp_path, fails):
    script = changed(
        f"import weakref\n{inspect.getsource(Playback)}\nimport train.trainer\n"
        f"train.trainer.recorder_of = lambda device: Playback(fails={fails})"
    )
    graphs, plain = (
        run(*TWO_RANKS, "--graphs", word, ranks=2, script=script, run_dir=tmp_path / word)
        for word in ("auto", "off")
    )
    assert (graphs.status, plain.status) == (0, 0), graphs.err + plain.err
    assert ("as a CUDA graph: another rank can't record it." in graphs.out) == (fails == "here")
    for rank in (0, 1):
        ours, theirs = (of_rank(done.run_dir, rank) for done in (graphs, plain))
        assert [line["loss"] for line in ours] == [line["loss"] for line in theirs]
        known = [line["step"] for line in ours if line["communication_ms"] is not None]
        measured = [*range(1, WARM_UP + 1), MEASURED_EVERY, len(ours)]
        assert known == (measured if fails == "False" else list(range(1, len(ours) + 1)))
    lines = [json.loads(line) for line in (graphs.run_dir / "metrics.jsonl").read_text().splitlines()]
    [start] = [line for line in lines if line.get("event") == "start" and line["rank"] == 0]
    [end] = [line for line in lines if line.get("event") == "end" and line["rank"] == 0]
    assert start["graphs"] is True
    assert sum(end["share"].values()) == pytest.approx(1)


def on_gpu(folder, options, monkeypatch, hook=None):
    """Train two epochs on the first GPU, where no step of the second may wait. Returns the step and all losses."""
    env, device = DistributedEnvironment(), torch.device("cuda", 0)
    path = folder / f"{options.graphs}.jsonl"
    with Report(path=path, env=env, options=options) as report:
        load = partial(load_dataset, options, env)
        trainer = Trainer(options, env, device, report, folder, TimeParts(), load)
        if hook:
            trainer.model.register_forward_hook(hook)
        trainer.train_epoch()
        step = type(trainer._step).__call__

        def strict(self, *batch):
            torch.cuda.set_sync_debug_mode("error")
            try:
                return step(self, *batch)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        monkeypatch.setattr(type(trainer._step), "__call__", strict)
        trainer.train_epoch()
        monkeypatch.undo()
        in_graph = sum(taken.in_graph for taken in trainer.timer.steps())
        trainer.finish()
    lines = map(json.loads, path.read_text().splitlines())
    return in_graph, [line["loss"] for line in lines if "step" in line]


WITH_DROPOUT = {
    "model": "vgg11",
    "optimizer": "sgd",
    "lr": 2**-13,
    "schedule": "cosine",
    "max_grad_norm": 1.0,
    "synthetic": (IMAGES, 3, 32, 32, 4),
    "augmentation": "crop",
}
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no GPU whose steps could be recorded"
)


@needs_gpu
@pytest.mark.parametrize(
    ("changed", "tolerance"),
    [
        ({}, 1e-3),
        ({"model": "resnet18", "optimizer": "sgd", "lr": 2**-13}, 1e-3),
        ({"precision": "bf16"}, 1e-2),
    ],
    ids=["dropout", "resnet18", "bf16"],
)
def test_steps_on_a_gpu_have_the_same_losses_and_wait_for_nothing(tmp_path, monkeypatch, changed, tolerance):
    in_graph, graphs = on_gpu(tmp_path, options_of(**WITH_DROPOUT | changed), monkeypatch)
    assert in_graph == 2 * 17 - WARM_UP
    plain = on_gpu(tmp_path, options_of(**WITH_DROPOUT | changed, graphs="off"), monkeypatch)
    assert plain == (0, pytest.approx(graphs, rel=tolerance))


@needs_gpu
def test_step_that_a_gpu_cannot_record_runs_without(tmp_path, monkeypatch, capsys):
    """Dropout still draws the same numbers."""

    def wait(_module, _inputs, outputs):
        if torch.cuda.is_current_stream_capturing():
            outputs.sum().item()

    in_graph, graphs = on_gpu(tmp_path, options_of(**WITH_DROPOUT), monkeypatch, hook=wait)
    assert (in_graph, capsys.readouterr().out.count("can't be recorded as a CUDA graph")) == (0, 1)
    plain = on_gpu(tmp_path, options_of(**WITH_DROPOUT, graphs="off"), monkeypatch)
    assert plain == (0, pytest.approx(graphs, rel=1e-3))
