"""DeepSpeed takes the steps of one torch process, and its checkpoints work with any strategy."""

import json
import statistics
from pathlib import Path

import pytest
import torch
from support import frameworks_python

pytestmark = pytest.mark.slow

ARGS = (
    *("--dataset", "synthetic", "--synthetic", "336,3,12,12,4", "--augmentation", "crop", "--model", "cnn"),
    *("--global-batch-size", "64", "--gradient-accumulation-steps", "3", "--max-grad-norm", "0.5"),
    *("--schedule", "cosine", "--epochs", "4", "--log-every", "1", "--device", "cpu", "--threads", "1"),
    *("--weight-decay", "0.1", "--no-tensorboard"),
)
"""24 steps: five of 64 images and a last one of 16 in each epoch, in up to three parts, with clipped gradients."""
STOPS_AFTER_SAVE = """
import train.checkpoints.checkpointer as c
save = c.Checkpointer.save
def end(checkpointer):
    save(checkpointer)
    checkpointer.wait()
    os._exit(3)
c.Checkpointer.save = end
"""


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter that has DeepSpeed."""
    return frameworks_python("deepspeed")


def engine(stage: int, **more: object) -> tuple[str, ...]:
    """The options for a stage of ZeRO that divides small weights, too."""
    zero = {"stage": stage, "stage3_param_persistence_threshold": 500, **more}
    return ("--engine", "deepspeed", "--deepspeed-config", json.dumps({"zero_optimization": zero}))


def losses(run_dir: Path) -> list[float]:
    """The mean loss of all ranks at each step; of steps that were taken twice, the last."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps: dict[int, dict[int, float]] = {}
    for line in lines:
        if "step" in line:
            steps.setdefault(line["step"], {})[line["rank"]] = line["loss"]
    return [statistics.fmean(steps[step].values()) for step in sorted(steps)]


@pytest.fixture(scope="module")
def alone(run, tmp_path_factory):
    """The folder of the run of one process of torch's, by the optimizer."""
    folders = {}
    for optimizer in ("adamw", "sgd"):
        folders[optimizer] = tmp_path_factory.mktemp("alone")
        done = run(*ARGS, "--optimizer", optimizer, run_dir=folders[optimizer])
        assert done.status == 0, done.err
    return folders


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("deepspeed", engine(0)),
        ("deepspeed zero1", engine(1)),
        ("deepspeed zero2", engine(2, offload_optimizer={"device": "cpu"})),
        ("deepspeed zero3", engine(3)),
    ],
)
def test_deepspeed_has_the_losses_of_one_process(run, tmp_path, alone, python, name, words):
    done = run(*ARGS, "--optimizer", "sgd", *words, ranks=2, python=python, run_dir=tmp_path)
    assert done.status == 0, done.err
    assert losses(tmp_path) == pytest.approx(losses(alone["sgd"]), rel=1e-4)
    assert len(losses(tmp_path)) == 24
    ours, theirs = (
        torch.load(folder / "artifacts" / "model.pt", weights_only=True)
        for folder in (tmp_path, alone["sgd"])
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-4) for name in theirs)
    start = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert start["strategy"] == name


def test_deepspeed_and_torch_resume_from_each_others_checkpoints(run, changed, tmp_path, alone, python):
    """Resume also in the middle of an epoch, with another stage and another number of ranks.

    Adam divides by small numbers, which amplifies rounding. A lost state would be amplified even more.
    """
    chain = [
        (engine(3), 2),
        (engine(1), 2),
        (("--strategy", "fsdp"), 2),
        (engine(2), 1),
        ((), 1),
        (engine(3), 2),
    ]
    for number, (words, ranks) in enumerate(chain, 1):
        last = number == len(chain)
        done = run(
            *(*ARGS, "--optimizer", "adamw", "--checkpoint-every", "0.5", *words),
            ranks=ranks,
            script=None if last else changed(STOPS_AFTER_SAVE),
            python=python,
            run_dir=tmp_path,
        )
        assert (done.status == 0) == last, done.err
        assert ("resuming from step-" in done.out) == (number > 1), done.out + done.err
    assert losses(tmp_path) == pytest.approx(losses(alone["adamw"]), rel=2e-3)
    assert len(losses(tmp_path)) == 24


def test_network_with_running_statistics_trains_in_bf16_by_autocast_alone(run, tmp_path):
    python = frameworks_python("deepspeed", "torchvision")
    words = ("--dataset", "synthetic", "--synthetic", "16,3,8,8,4", "--augmentation", "none", "--epochs", "1")
    job = (*words, "--model", "resnet18", "--batch-size", "8", "--device", "cpu", "--no-tensorboard")
    zero = {"zero_optimization": {"stage": 1}}

    def trained(half):
        config = json.dumps({**zero, **half})
        return run(
            *job, "--engine", "deepspeed", "--deepspeed-config", config, python=python, run_dir=tmp_path
        )

    refused = trained({"bf16": {"enabled": True}})
    assert refused.status == 2, refused.err
    assert "resnet18 keeps running statistics, and DeepSpeed computes in bf16 without them" in refused.err
    done = trained({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}})
    assert done.status == 0, done.err
