"""Steps as graphs, on CPUs: a stand-in repeats the recorded function, as a GPU repeats a recorded graph."""

import inspect
import json
import warnings
import weakref
from contextlib import nullcontext
from functools import partial

import pytest
import torch

from train import trainer as trainer_module
from train.data.load import load_dataset
from train.distributed.environment import DistributedEnvironment
from train.models.gpt_sizes import GPT_SIZES, GPTSize
from train.options import Options
from train.reporting.report import Report
from train.reporting.timing import TimeParts
from train.step_graph import (
    MIN_STEPS_LEFT,
    WARM_UP,
    WATCHED_EVERY,
    CudaRecorder,
    allows_graphs,
    check_memory,
    close_pool,
    recorder_of,
    waiting_line,
)
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

    def __init__(self, fails=False, obstacle=None):
        self.fails = fails
        self.obstacle = obstacle
        self.watched = 0
        self.recorded = self.replayed = self.unpacked = 0
        self.alive = weakref.WeakSet()

    def watch(self, step):
        self.watched += 1
        return step(), self.obstacle

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
        """End the backward pass when it reads the forward pass's values for the second time."""
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
            "graphs": "on",
            **changed,
        }
    )


def losses(folder, options, monkeypatch, recorder=None, epochs=None, hook=None):
    """Train in this process, and return the loss of each step by its number. `hook`: of the forward pass."""
    monkeypatch.setattr(trainer_module, "recorder_of", lambda _device: recorder)
    env = DistributedEnvironment()
    path = folder / "metrics.jsonl"
    with Report(path=path, env=env, options=options) as report:
        load = partial(load_dataset, options, env)
        trainer = Trainer(options, env, CPU, report, folder / "checkpoints", TimeParts(), load)
        trainer.start()
        if hook:
            trainer.model.register_forward_hook(hook)
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
    graphs = losses(tmp_path / "on", options_of(**changed), monkeypatch, recorder)
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


@pytest.mark.parametrize("resumed_with", ["on", "off"])
def test_resumed_steps_are_recorded_anew(tmp_path, monkeypatch, resumed_with):
    changed = {"checkpoint_every": 1, "epochs": 4, "optimizer": "adamw"}
    whole = losses(tmp_path / "whole", options_of(**changed, graphs="off"), monkeypatch)
    losses(tmp_path / "parts", options_of(**changed), monkeypatch, Playback(), epochs=2)
    recorder = Playback()
    options = options_of(**changed, graphs=resumed_with)
    assert losses(tmp_path / "parts", options, monkeypatch, recorder) == whole
    assert recorder.recorded == (resumed_with == "on")


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
    graphs = losses(tmp_path / "on", options_of(**changed), monkeypatch, recorder)
    lines = [line for line in capsys.readouterr().out.splitlines() if "CUDA graph" in line]
    assert lines == [
        "the step can't be recorded as a CUDA graph: operation not permitted when stream is capturing. The run "
        "continues without graphs; with --graphs off it does not try."
    ]
    assert (recorder.recorded, recorder.replayed) == (0, 0)
    assert graphs == losses(tmp_path / "off", options_of(**changed, graphs="off"), monkeypatch)


def test_step_that_waits_for_the_device_is_not_recorded(tmp_path, monkeypatch, capsys):
    recorder = Playback(obstacle="it waits for the GPU in loss.py:7")
    graphs = losses(tmp_path / "on", options_of(), monkeypatch, recorder)
    assert "as a CUDA graph: it waits for the GPU in loss.py:7. The run" in capsys.readouterr().out
    assert (recorder.watched, recorder.recorded) == (1, 0)
    assert graphs == losses(tmp_path / "off", options_of(graphs="off"), monkeypatch)


@pytest.mark.parametrize(("epochs", "recorded"), [(12, 0), (13, 1)])
def test_short_run_records_no_graph_and_prints_the_steps_that_are_left(
    tmp_path, monkeypatch, capsys, epochs, recorded
):
    recorder = Playback()
    losses(tmp_path, options_of(graphs="auto", epochs=epochs), monkeypatch, recorder)
    left = 17 * epochs - WARM_UP
    line = (
        f"graph: {left} of them are left, and it takes longer than it saves with fewer than {MIN_STEPS_LEFT}."
    )
    assert (left >= MIN_STEPS_LEFT) is bool(recorded)
    assert (recorder.recorded, line in capsys.readouterr().out) == (recorded, not recorded)


def out_of_memory_beside_a_graph(recorder):
    """Return a hook of the forward pass that has no memory for the last batch while a graph is there."""

    def hook(module, _inputs, outputs):
        if module.training and len(outputs) == 2 and recorder.alive:
            raise torch.OutOfMemoryError("CUDA out of memory")

    return hook


@pytest.mark.parametrize("model", ["mlp", "resnet18"])
def test_graph_is_deleted_where_the_last_batch_has_no_memory(tmp_path, monkeypatch, capsys, model):
    recorder = Playback()
    hook = out_of_memory_beside_a_graph(recorder)
    graphs = losses(tmp_path / "on", options_of(model=model), monkeypatch, recorder, hook=hook)
    assert (recorder.recorded, recorder.replayed) == (1, 17 - WARM_UP)
    assert "a batch of 2 did not fit into the GPU's memory with the CUDA graph" in capsys.readouterr().out
    assert graphs == losses(tmp_path / "off", options_of(model=model, graphs="off"), monkeypatch)


def test_step_that_may_have_updated_weights_is_not_taken_again(tmp_path, monkeypatch):
    recorder = Playback()

    def update(*_):
        if recorder.replayed and len(recorder.alive) and recorder.replayed == 17 - WARM_UP:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", update)
    with pytest.raises(torch.OutOfMemoryError):
        losses(tmp_path, options_of(max_grad_norm=1.0), monkeypatch, recorder)


@pytest.mark.parametrize(("free_gb", "fits"), [(5.5, True), (5.4, False)])
def test_graph_needs_a_margin_of_memory(free_gb, fits):
    with (
        nullcontext()
        if fits
        else pytest.raises(torch.OutOfMemoryError, match=r"keeps 4\.0 GB, and 5\.4 GB are")
    ):
        check_memory(4_000_000_000, int(free_gb * 1e9))


@pytest.mark.parametrize("state", ["open", "closed by torch", "older torch"])
def test_failed_recording_closes_its_memory_pool_once(monkeypatch, state):
    calls = []

    def end(*arguments):
        calls.append(("end", *arguments))
        if state == "closed by torch":
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    if state == "older torch":
        monkeypatch.delattr(torch._C, "_cuda_endAllocateToPool")
    else:
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *pool: calls.append(("release", *pool)))
    close_pool(0, (0, 7))
    both = [("end", 0, (0, 7)), ("release", 0, (0, 7))]
    assert calls == {"open": both, "closed by torch": both[:1], "older torch": []}[state]


def test_line_that_waits_is_named_and_other_warnings_are_shown():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn_explicit("deprecated", UserWarning, "/a/other.py", 3)
        assert waiting_line([*caught]) is None
        warnings.warn_explicit("called a synchronizing CUDA operation", UserWarning, "/a/loss.py", 7)
    with pytest.warns(UserWarning, match="deprecated"):
        assert waiting_line(caught) == "it waits for the GPU in loss.py:7"


def test_text_steps_as_graphs_keep_no_logits(tmp_path, monkeypatch):
    monkeypatch.setitem(GPT_SIZES, "gpt-10m", GPTSize(layers=1, width=8, heads=2, context=1024, lr=1e-3))
    (tmp_path / "book.txt").write_text("one by one " * 100)
    text = {"model": "gpt-10m", "dataset": "text", "data_dir": str(tmp_path / "book.txt"), "seq_len": 8}
    recorder, graphs, plain = both(tmp_path, monkeypatch, **text, synthetic=Options().synthetic)
    assert recorder.replayed > WARM_UP
    assert graphs == plain


ONE, TWO = DistributedEnvironment(), DistributedEnvironment(world_size=2)


@pytest.mark.parametrize(
    ("changed", "kind", "allowed"),
    [
        ({}, Strategy, True),
        ({"precision": "bf16", "gradient_accumulation_steps": 2}, Strategy, True),
        ({}, DataParallel, True),
        ({"graphs": "off"}, Strategy, False),
        ({"loop": "plain"}, Strategy, False),
        ({"precision": "fp16"}, Strategy, False),
        ({"precision": "fp64"}, Strategy, False),
        ({"compile": True}, Strategy, False),
        ({"activation_checkpointing": True}, Strategy, False),
        ({"compression": "half"}, DataParallel, False),
        ({"compression": "powersgd"}, DataParallel, False),
        ({}, type("Zero1", (DataParallel,), {}), False),
    ],
)
def test_graphs_are_for_what_they_are_proven_with(changed, kind, allowed):
    options = Options(**changed)
    assert allows_graphs(options, kind(options, ONE, CPU)) is allowed
    options = Options(**{"graphs": "on"} | changed)
    assert allows_graphs(options, kind(options, TWO, CPU)) is allowed


def test_several_ranks_have_graphs_on_request_only():
    options = Options()
    assert not allows_graphs(options, DataParallel(options, TWO, CPU))


def test_double_precision_and_cpus_have_no_graphs(monkeypatch):
    options = Options()
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float64)
    assert not allows_graphs(options, Strategy(options, DistributedEnvironment(), CPU))
    assert recorder_of(CPU) is None


TWO_RANKS = (
    *("--dataset", "synthetic", "--synthetic", "450,1,6,6,4", "--model", "mlp", "--batch-size", "4"),
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
        f"train.trainer.recorder_of = lambda device: Playback(fails={fails})\n"
        "import torch.distributed as dist\nall_reduce = dist.all_reduce\n"
        "def counted(tensor, *more, **named):\n"
        "    print('watched', tensor.numel()) if 'async_op' in named and tensor.numel() == 1 else None\n"
        "    return all_reduce(tensor, *more, **named)\n"
        "dist.all_reduce = counted"
    )
    graphs, plain = (
        run(*TWO_RANKS, "--graphs", word, ranks=2, script=script, run_dir=tmp_path / word)
        for word in ("on", "off")
    )
    assert (graphs.status, plain.status) == (0, 0), graphs.err + plain.err
    reason = "as a CUDA graph: on rank 1, operation not permitted when stream is capturing. The run"
    assert (reason in graphs.out) == (fails == "here")
    for rank in (0, 1):
        ours, theirs = (of_rank(done.run_dir, rank) for done in (graphs, plain))
        assert [line["loss"] for line in ours] == [line["loss"] for line in theirs]
        known = [line["step"] for line in ours if line["communication_ms"] is not None]
        steps = list(range(1, len(ours) + 1))
        assert known == ([*steps[:WARM_UP], len(ours)] if fails == "False" else steps)
    whole = len(ours) - 1
    watched = whole // WATCHED_EVERY - WARM_UP // WATCHED_EVERY
    assert (graphs.out + graphs.err).count("watched 1") == (2 * watched if fails == "False" else 0)
    lines = [json.loads(line) for line in (graphs.run_dir / "metrics.jsonl").read_text().splitlines()]
    [end] = [line for line in lines if line.get("event") == "end" and line["rank"] == 0]
    assert end["graphs"] is (fails == "False")
    assert (end["share"]["communication"] is None) == (fails == "False")


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
        taker = type(trainer._graphed or trainer._step)
        step = taker.__call__

        def strict(self, *batch):
            torch.cuda.set_sync_debug_mode("error")
            try:
                return step(self, *batch)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        monkeypatch.setattr(taker, "__call__", strict)
        trainer.train_epoch()
        monkeypatch.undo()
        in_graph = sum(step_time.in_graph for step_time in trainer.timer.steps())
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
    assert CudaRecorder.has_failed
    in_graph, graphs = on_gpu(tmp_path / "again", options_of(**WITH_DROPOUT), monkeypatch)
    assert (in_graph, graphs) == (2 * 17 - WARM_UP, pytest.approx(plain[1], rel=1e-3))
    # With a recording that never ended, the allocator would refuse this.
    torch.cuda.empty_cache()


@needs_gpu
def test_step_that_waits_for_a_gpu_is_named_before_it_is_recorded(tmp_path, monkeypatch, capsys):
    def wait(_module, _inputs, outputs):
        if torch.cuda.get_sync_debug_mode() == 1:
            outputs.sum().item()

    in_graph, _ = on_gpu(tmp_path, options_of(**WITH_DROPOUT), monkeypatch, hook=wait)
    assert (in_graph, "it waits for the GPU in test_step_graph.py:" in capsys.readouterr().out) == (0, True)
