"""Every strategy takes the steps of one process, and resumes from any other's checkpoint."""

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
"""Options of `--strategy`, by the strategy's name in the result at 4 ranks."""
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


STOPS_AFTER_SAVE = """
import train.checkpoints.checkpointer as c
save = c.Checkpointer.save
def end(checkpointer):
    save(checkpointer)
    checkpointer.wait()
    os._exit(3)
c.Checkpointer.save = end
"""


def test_any_strategy_resumes_from_any_others_checkpoint(run, changed, tmp_path, alone):
    """Also in the middle of an epoch, and with another number of ranks."""
    chain = [("fsdp --tp 2", 4), ("zero1", 2), ("ddp", None), ("pp", 4), ("hsdp", 2), ("zero2", 4)]
    words = (*ARGS, "--optimizer", "adamw", "--checkpoint-every", "0.5", "--wrap", "size:500")
    for strategy, ranks in chain:
        first, last = (strategy, ranks) == chain[0], (strategy, ranks) == chain[-1]
        script = changed(EXACT if last else f"{EXACT}\n{STOPS_AFTER_SAVE}")
        done = run(*words, "--strategy", *strategy.split(), ranks=ranks, script=script, run_dir=tmp_path)
        assert (done.status == 0) == last, done.err
        assert ("resuming from step-" in done.out) != first, done.out + done.err
    assert losses(tmp_path) == pytest.approx(losses(alone["adamw"].run_dir), rel=1e-9)
    assert len(losses(tmp_path)) == 24


DIES_IN_THIRD_SAVE = """
import train.checkpoints.parts as p
write, calls = p._Writer.write_data, []
def dies(writer, *plan):
    calls.append(writer)
    if here and len(calls) == 3:
        os.kill(os.getpid(), 9)
    return write(writer, *plan)
p._Writer.write_data = dies
"""


def test_run_killed_in_a_save_resumes_from_the_last_checkpoint_that_is_whole(run, changed, tmp_path, alone):
    """A checkpoint damaged later, and one without a rank's part, are named and skipped."""
    words = (*ARGS, "--optimizer", "adamw", "--checkpoint-every", "1", "--strategy", "fsdp")
    words = (*words, "--keep-checkpoints", "3")
    script = changed(f"{EXACT}\n{DIES_IN_THIRD_SAVE}")
    killed = run(*words, ranks=2, script=script, run_dir=tmp_path)
    assert killed.status != 0
    folder = tmp_path / "checkpoints"
    assert sorted(path.name for path in folder.glob("*.json")) == ["step-000006.json", "step-000012.json"]
    part = folder / "step-000012" / "__1_0.distcp"
    part.write_bytes(part.read_bytes()[:-1])
    done = run(*words, ranks=2, script=changed(EXACT), run_dir=tmp_path)
    assert done.status == 0, done.err
    assert "resuming from step-000006: the end of epoch 1, step 6" in done.out
    assert "(step-000012/__1_0.distcp is torn, with " in done.out
    assert losses(tmp_path) == pytest.approx(losses(alone["adamw"].run_dir), rel=1e-9)
    assert sorted(path.name for path in folder.glob("*.json")) == [
        "step-000012.json",
        "step-000018.json",
        "step-000024.json",
    ]
    for path in folder.glob("step-*/__0_0.distcp"):
        path.unlink()
    again = run(*words, "--epochs", "1", ranks=2, script=changed(EXACT), run_dir=tmp_path)
    assert again.status == 0, again.err
    assert "step-000024/__0_0.distcp is missing; step-000018/__0_0.distcp is missing; " in again.out
    assert "and there is no other checkpoint: starting from the beginning" in again.out


def test_part_that_can_not_be_written_ends_the_run_with_a_sentence(run, changed, tmp_path):
    full = "import errno\nimport train.checkpoints.parts as p\n"
    full += "def full(*plan): raise OSError(errno.ENOSPC, 'Disk full')\n"
    script = changed(f"{full}if here: p._Writer.write_data = full")
    done = run(
        *ARGS, "--strategy", "fsdp", "--checkpoint-every", "1", ranks=2, script=script, run_dir=tmp_path
    )
    assert done.status != 0
    assert "step-000006 can't be written: rank 1: Disk full. Make room or give access there" in done.err
    assert list(tmp_path.glob("checkpoints/*.json")) == []


def test_hsdp_refuses_nodes_with_different_numbers_of_ranks_on_all_ranks(run, changed, tmp_path):
    fewer = f"{EXACT}\nif here: os.environ['LOCAL_WORLD_SIZE'] = '1'"
    done = run(*ARGS, "--strategy", "hsdp", ranks=2, script=changed(fewer), run_dir=tmp_path)
    assert done.status != 0
    assert done.err.count("one node has 1 rank, another one 2: start as many on each") >= 1
