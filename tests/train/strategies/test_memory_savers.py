"""Saving memory does not change the losses, with any strategy.

The same ranks run all ways in turn: starting them takes most of the time.
"""

import json
import statistics

import pytest
import torch

pytestmark = pytest.mark.slow

ARGS = (
    *("--model", "gpt-10m", "--seq-len", "8", "--global-batch-size", "4", "--optimizer", "adamw"),
    *("--max-grad-norm", "0.5", "--epochs", "1", "--validation", "0.2", "--log-every", "1"),
    *("--device", "cpu", "--threads", "1", "--no-tensorboard", "--checkpoint-every", "0"),
)
"""Three steps of four sequences, and one of two."""
EXACT = ("--precision", "fp64")
ALL_WAYS = """
import json, os, sys
from pathlib import Path
from train.command_line import parse
from train.job import run
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
for name, (port, words) in json.loads(Path(sys.argv[1]).read_text()).items():
    folder = Path(sys.argv[1]).parent / name.split("/")[0]
    folder.mkdir(exist_ok=True)
    os.environ |= {"GPUCTL_RUN_DIR": str(folder), "GPUCTL_METRICS": str(folder / "metrics.jsonl")}
    os.environ["MASTER_PORT"] = str(port)
    run(parse(words))
"""
"""A script that runs the job in each of the ways in a file, into a folder next to the file for each: `name/part`.

Each way has its own store, so that no way reads another's entries."""


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """Return a folder for tokens, and a text of 18 sequences of 8 bytes and some more bytes."""
    folder = tmp_path_factory.mktemp("book")
    (folder / "book.txt").write_text(("All ranks read, and every rank waits for the last. " * 3)[:150])
    return {"GPUCTL_DATA_DIR": str(folder / "cache")}, ("--data-dir", str(folder / "book.txt"))


@pytest.fixture(scope="module")
def run_ways(run, free_port, book, tmp_path_factory):
    """Run the job in several ways, and return the folder of each by its name."""

    def ran(ways, ranks=None):
        environ, where = book
        folder = tmp_path_factory.mktemp("ways")
        (folder / "all.py").write_text(ALL_WAYS)
        (folder / "ways.json").write_text(
            json.dumps({name: (free_port(), [*ARGS, *where, *words]) for name, words in ways.items()})
        )
        arguments = (str(folder / "ways.json"),)
        done = run(*arguments, ranks=ranks, script=folder / "all.py", run_dir=folder, **environ)
        assert done.status == 0, done.err
        return {name: folder / name for name in dict.fromkeys(way.split("/")[0] for way in ways)}

    return ran


def losses(run_dir):
    """The mean loss of all ranks at each step."""
    steps = {}
    for line in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines()):
        if "step" in line:
            steps.setdefault(line["step"], []).append(line["loss"])
    return [statistics.fmean(steps[step]) for step in sorted(steps)]


def weights(run_dir):
    return torch.load(run_dir / "artifacts" / "model.pt", weights_only=True)


@pytest.fixture(scope="module")
def alone(run_ways):
    """The folder of one process that saves nothing, after two epochs."""
    return run_ways({"alone": (*EXACT, "--epochs", "2")})["alone"]


AGAIN, HOST, BLOCKS = "--activation-checkpointing", "--cpu-offload", ("--wrap", "transformer")
WAYS = {
    "ddp": (AGAIN,),
    "zero1": (AGAIN, "--strategy", "zero1"),
    "zero2": (AGAIN, "--strategy", "zero2", HOST, "--prefetch", "2", *BLOCKS),
    "fsdp": (AGAIN, "--strategy", "fsdp", "--prefetch", "2", *BLOCKS),
    "fsdp within blocks": (AGAIN, "--strategy", "fsdp", "--gradient-accumulation-steps", "2"),
    "hsdp": (AGAIN, "--strategy", "hsdp", HOST),
    "tp": (AGAIN, "--strategy", "tp"),
    "pp": (AGAIN, "--strategy", "pp", "--gradient-accumulation-steps", "2"),
}
FOUR = {
    "fsdp x pp": ("--strategy", "fsdp", "--pp", "2", AGAIN, HOST, "--prefetch", "1", *BLOCKS),
    "fsdp x tp": ("--strategy", "fsdp", "--tp", "2", AGAIN, HOST),
}
"""With four ranks."""


@pytest.mark.parametrize(("ways", "ranks"), [(WAYS, 2), (FOUR, 4)], ids=["2-ranks", "4-ranks"])
def test_losses_are_those_of_one_process_that_saves_nothing(run_ways, alone, ways, ranks):
    results = run_ways({name: (*EXACT, *words) for name, words in ways.items()}, ranks=ranks)
    for name, folder in results.items():
        assert losses(folder) == pytest.approx(losses(alone)[:4], rel=1e-9), name
        assert weights(folder).keys() == weights(alone).keys(), name


def test_offloaded_run_resumes_with_another_strategy(run_ways, alone):
    [folder] = run_ways(
        {
            "resumed/1": (*EXACT, "--strategy", "fsdp", HOST, "--checkpoint-every", "1", *BLOCKS),
            "resumed/2": (*EXACT, "--strategy", "hsdp", HOST, AGAIN, "--epochs", "2"),
        },
        ranks=2,
    ).values()
    assert losses(folder) == pytest.approx(losses(alone), rel=1e-9)
    ours, theirs = weights(folder), weights(alone)
    assert all(torch.allclose(ours[name], theirs[name], rtol=1e-7, atol=1e-9) for name in theirs)


def test_weights_gathered_in_bf16_have_close_losses(run_ways, alone):
    half = ("--precision", "bf16")
    results = run_ways(
        {
            "ddp": half,
            "fsdp": (*half, "--strategy", "fsdp", AGAIN, *BLOCKS),
            "zero2": (*half, "--strategy", "zero2", HOST, "--gradient-accumulation-steps", "2"),
        },
        ranks=2,
    )
    near = {name: losses(folder) for name, folder in results.items()}
    assert near["fsdp"] != near["ddp"] != near["zero2"]
    for name, ours in near.items():
        assert ours == pytest.approx(losses(alone)[:4], rel=0.01), name
        assert {value.dtype for value in weights(results[name]).values()} == {torch.float32}
