"""Every strategy takes the steps of one process, and goes on from any other's checkpoint."""

import json
import statistics
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

EXACT = "torch.set_default_dtype(torch.float64)"
ARGS = (
    *("--dataset", "synthetic", "--synthetic", "336,3,12,12,4", "--augmentation", "crop", "--model", "cnn"),
    *("--global-batch-size", "64", "--gradient-accumulation-steps", "3", "--max-grad-norm", "0.5"),
    *("--schedule", "cosine", "--epochs", "4", "--log-every", "1", "--device", "cpu", "--threads", "1"),
    "--no-tensorboard",
)
"""24 steps: five of 64 images and a last one of 16 in each epoch, in three parts, with clipped gradients."""
PLAIN = ("ddp", "fsdp", "hsdp", "zero1", "zero2")
PRODUCTS = {
    "tp 2 x ddp 2": ("tp", "--tp", "2"),
    "fsdp 2 x tp 2": ("fsdp", "--tp", "2"),
    "hsdp 2 x tp 2": ("hsdp", "--tp", "2"),
    "pp 2 x ddp 2": ("pp",),
    "fsdp 2 x pp 2": ("fsdp", "--pp", "2"),
    "pp 2 x tp 2": ("pp", "--tp", "2"),
    "ddp 2 x pp 2": ("ddp", "--pp", "2"),
}
"""What `--strategy` is given, by what the result says of it at 4 ranks."""
CASES = [
    *((name, 2, "adamw", (name,)) for name in PLAIN),
    *((name, 4, "sgd", (name,)) for name in PLAIN),
    ("tp 2", 2, "sgd", ("tp",)),
    ("pp 2", 2, "sgd", ("pp",)),
    *((name, 4, "adamw", words) for name, words in PRODUCTS.items()),
]


def losses(run_dir: Path) -> list[float]:
    """The mean loss of all ranks at each step; of steps that were taken twice, the last."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps: dict[int, dict[int, float]] = {}
    for line in lines:
        if "step" in line:
            steps.setdefault(line["step"], {})[line["rank"]] = line["loss"]
    return [statistics.fmean(steps[step].values()) for step in sorted(steps)]


@pytest.fixture(scope="module")
def alone(run, changed, tmp_path_factory):
    """The run of one process, by the optimizer."""
    done = {}
    for optimizer in ("adamw", "sgd"):
        folder = tmp_path_factory.mktemp("alone")
        done[optimizer] = run(*ARGS, "--optimizer", optimizer, script=changed(EXACT), run_dir=folder)
        assert done[optimizer].status == 0, done[optimizer].err
    return done


@pytest.mark.parametrize(("name", "ranks", "optimizer", "words"), CASES)
def test_strategy_has_the_losses_of_one_process(run, changed, tmp_path, alone, name, ranks, optimizer, words):
    args = (*ARGS, "--optimizer", optimizer, "--wrap", "size:500", "--strategy", *words)
    done = run(*args, ranks=ranks, script=changed(EXACT), run_dir=tmp_path)
    assert done.status == 0, done.err
    assert losses(tmp_path) == pytest.approx(losses(alone[optimizer].run_dir), rel=1e-9)
    assert len(losses(tmp_path)) == 24
    ours, theirs = (
        torch.load(folder / "artifacts" / "model.pt", weights_only=True)
        for folder in (tmp_path, alone[optimizer].run_dir)
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], rtol=1e-7, atol=1e-9) for name in theirs)
    start = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert start["strategy"] == name


def test_any_strategy_goes_on_from_any_others_checkpoint(run, changed, tmp_path, alone):
    chain = [("fsdp --tp 2", 4), ("zero1", 2), ("pp", 4), ("hsdp", 2)]
    for epochs, (strategy, ranks) in enumerate(chain, 1):
        stops = f"{EXACT}\nimport train.trainer\nsave = train.trainer.Trainer.save_if_due\n"
        stops += "def end(trainer):\n    save(trainer)\n"
        stops += (
            f"    if trainer.progress.epoch > {epochs}: os._exit(3)\ntrain.trainer.Trainer.save_if_due = end"
        )
        last = epochs == len(chain)
        words = (*ARGS, "--optimizer", "adamw", "--checkpoint-every", "1", "--strategy", *strategy.split())
        done = run(*words, ranks=ranks, script=changed(EXACT if last else stops), run_dir=tmp_path)
        assert (done.status == 0) == last, done.err
        assert ("resuming from step-" in done.out) == (epochs > 1), done.out
    assert losses(tmp_path) == pytest.approx(losses(alone["adamw"].run_dir), rel=1e-9)
    assert len(losses(tmp_path)) == 24


def test_hsdp_refuses_nodes_with_different_numbers_of_ranks_on_all_ranks(run, changed, tmp_path):
    fewer = f"{EXACT}\nif here: os.environ['LOCAL_WORLD_SIZE'] = '1'"
    done = run(*ARGS, "--strategy", "hsdp", ranks=2, script=changed(fewer), run_dir=tmp_path)
    assert done.status != 0
    assert done.err.count("some nodes have 1 ranks, others 2: start as many on each") >= 1
