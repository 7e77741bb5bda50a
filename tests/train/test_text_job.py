"""The job with a text model: the same losses on one process and on two, and with its weights in parts."""

import json
import math
import statistics

import pytest
import torch

pytestmark = pytest.mark.slow

ARGS = (
    *(
        "--model",
        "gpt-10m",
        "--seq-len",
        "8",
        "--global-batch-size",
        "4",
        "--optimizer",
        "adamw",
        "--epochs",
        "2",
    ),
    *("--validation", "0.2", "--precision", "fp64", "--log-every", "1", "--device", "cpu", "--threads", "1"),
    "--no-tensorboard",
)
"""Three steps of four sequences and one of two in each epoch."""


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """Where tokens are kept, and a text of 18 sequences of 8 bytes and some more bytes."""
    folder = tmp_path_factory.mktemp("book")
    (folder / "book.txt").write_text(("All ranks read, and every rank waits for the last. " * 3)[:150])
    return {"GPUCTL_DATA_DIR": str(folder / "cache")}, ("--data-dir", str(folder / "book.txt"))


@pytest.fixture(scope="module")
def alone(run, book, tmp_path_factory):
    """The run of one process."""
    environ, where = book
    done = run(*ARGS, *where, run_dir=tmp_path_factory.mktemp("alone"), **environ)
    assert done.status == 0, done.err
    return done


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def losses(run_dir):
    """The mean loss of all ranks at each step."""
    steps = {}
    for line in lines(run_dir):
        if "step" in line:
            steps.setdefault(line["step"], []).append(line["loss"])
    return [statistics.fmean(steps[step]) for step in sorted(steps)]


def last(run_dir):
    return next(line for line in lines(run_dir) if line.get("event") == "end" and line["rank"] == 0)


def test_result_has_perplexity_memory_and_tokens_a_second(alone):
    epoch = [line for line in lines(alone.run_dir) if line.get("event") == "epoch"][-1]
    end = last(alone.run_dir)
    assert epoch["training"] == {"loss": epoch["loss"]}
    assert epoch["perplexity"] == end["perplexity"] == pytest.approx(math.exp(epoch["validation"]["loss"]))
    assert (epoch["accuracy"], end["accuracy"], end["mfu"]) == (None, None, None)
    assert end["tokens_per_s"] == pytest.approx(8 * end["samples_per_s"])
    weights = torch.load(alone.run_dir / "artifacts" / "model.pt", weights_only=True)
    numbers = sum(value.numel() for name, value in weights.items() if name != "head.weight")
    assert end["memory_gb"] == pytest.approx(4 * 8 * numbers / 1e9, rel=0.01), (
        "weights, gradients, two of AdamW"
    )
    assert len(losses(alone.run_dir)) == 8
    assert losses(alone.run_dir)[-1] < losses(alone.run_dir)[0]
    assert "tokens/s" in alone.out


@pytest.mark.parametrize(
    ("strategy", "words", "part"),
    [
        ("ddp", (), 1.0),
        ("fsdp", ("--wrap", "transformer"), 0.55),
        ("zero2", (), 0.55),
        ("tp", (), 0.55),
        ("pp", ("--gradient-accumulation-steps", "2"), 0.55),
    ],
)
def test_text_model_has_the_losses_of_one_process(run, book, alone, tmp_path, strategy, words, part):
    environ, where = book
    args = (*ARGS, *where, "--strategy", strategy, *words)
    done = run(*args, ranks=2, run_dir=tmp_path, **environ)
    assert done.status == 0, done.err
    assert losses(tmp_path) == pytest.approx(losses(alone.run_dir), rel=1e-9)
    ours, theirs = (
        torch.load(folder / "artifacts" / "model.pt", weights_only=True)
        for folder in (tmp_path, alone.run_dir)
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], rtol=1e-7, atol=1e-9) for name in theirs)
    assert last(tmp_path)["perplexity"] == pytest.approx(last(alone.run_dir)["perplexity"], rel=1e-9)
    assert last(tmp_path)["memory_gb"] == pytest.approx(part * last(alone.run_dir)["memory_gb"], rel=0.1)


def test_ranks_with_different_texts_are_told_before_the_first_step(run, changed, book, tmp_path):
    environ, _ = book
    for home, text in (("0", "one by one "), ("1", "two by two ")):
        (tmp_path / home).mkdir()
        (tmp_path / home / "book.txt").write_text(text * 14)
    script = changed(f"os.environ['HOME'] = os.path.join({str(tmp_path)!r}, os.environ['RANK'])")
    done = run(*ARGS, "--data-dir", "~/book.txt", ranks=2, script=script, run_dir=tmp_path / "run", **environ)
    assert done.status == 1
    assert "The data of rank 1 is not that of rank 0: rank 1 has as many samples with another" in done.err
    assert losses(tmp_path / "run") == []
