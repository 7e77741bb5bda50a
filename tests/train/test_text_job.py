"""The job with a text model, and the lines of docs/strategies.md: losses of one process, with less memory."""

import json
import math
import re
import shlex
import statistics
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()
RECIPES = re.findall(r"^    gpuctl train (.*?)-- (--model .*)$", PAGE, re.MULTILINE)
"""Arguments for gpuctl and for the job in each line."""
RESUMED = re.findall(r"^    gpuctl train --resume -- (.*)$", PAGE, re.MULTILINE)
MEMORY = {name: int(memory) for name, memory in re.findall(r"^\| `(.*?)` \| (\d+) MB", PAGE, re.MULTILINE)}
"""Memory of a rank, MB, by recipe in the tables."""
ARGS = (
    *("--model", "gpt-10m", "--seq-len", "8", "--global-batch-size", "8", "--optimizer", "adamw"),
    *("--epochs", "2", "--validation", "0.2", "--precision", "fp64", "--log-every", "1", "--device", "cpu"),
    *("--threads", "1", "--no-tensorboard"),
)
"""Two steps of eight sequences and one of four in each epoch."""


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """Return a folder for tokens, and a text of 25 sequences of 8 bytes and some more bytes."""
    folder = tmp_path_factory.mktemp("book")
    (folder / "book.txt").write_text(("All ranks read, and every rank waits for the last. " * 4)[:203])
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
    assert len(losses(alone.run_dir)) == 6
    assert losses(alone.run_dir)[-1] < losses(alone.run_dir)[0]
    assert "tokens/s" in alone.out


def test_page_has_9_lines_and_a_row_for_each_strategy():
    assert len(RECIPES) == 9
    assert len(MEMORY) == 8
    assert len(RESUMED) == 1


@pytest.mark.parametrize(("gpuctl_words", "words"), [*RECIPES, ("", "--model gpt-10m --strategy tp")])
def test_strategy_has_the_losses_of_one_process(run, book, alone, tmp_path, gpuctl_words, words):
    environ, where = book
    match = re.search(r"--strategy \w+( --tp \d)?", words)
    strategy = match.group() if match else "--strategy ddp"
    ranks = (
        None if strategy.endswith(" dp") else 4 if gpuctl_words.startswith(("--mode ray", "--nproc")) else 2
    )
    args = (*shlex.split(words), *ARGS, *where)
    done = run(*args, ranks=ranks, run_dir=tmp_path, **environ)
    assert done.status == 0, done.err
    assert losses(tmp_path) == pytest.approx(losses(alone.run_dir), rel=1e-9)
    ours, theirs = (
        torch.load(folder / "artifacts" / "model.pt", weights_only=True)
        for folder in (tmp_path, alone.run_dir)
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], rtol=1e-7, atol=1e-9) for name in theirs)
    assert last(tmp_path)["perplexity"] == pytest.approx(last(alone.run_dir)["perplexity"], rel=1e-9)
    part = MEMORY.get(strategy, MEMORY["--strategy pp"]) / MEMORY["--strategy dp"]
    assert last(tmp_path)["memory_gb"] == pytest.approx(part * last(alone.run_dir)["memory_gb"], rel=0.05)
    if "--tp" not in strategy:
        return
    args = (*args, *shlex.split(RESUMED[0]))
    resumed = run(*args, ranks=4, run_dir=tmp_path, **environ)
    assert resumed.status == 0, resumed.err
    assert "resuming from step-000006: the end of epoch 2, step 6" in resumed.out
    assert len(losses(tmp_path)) == 9


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
