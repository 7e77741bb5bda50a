"""Chains of strategies and numbers of ranks, drawn at random: whichever resumes which, losses are one process's."""

import itertools
import json
import random
import statistics
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ARGS = (
    *("--dataset", "synthetic", "--synthetic", "336,3,12,12,4", "--augmentation", "crop", "--model", "cnn"),
    *("--global-batch-size", "64", "--gradient-accumulation-steps", "4", "--max-grad-norm", "0.5"),
    *("--optimizer", "adamw", "--schedule", "cosine", "--epochs", "4", "--checkpoint-every", "0.5"),
    *("--wrap", "size:500", "--precision", "fp64", "--log-every", "1", "--device", "cpu", "--threads", "1"),
    "--no-tensorboard",
)
"""24 steps, and eight checkpoints: in the middle of each epoch and at its end."""
ALONE = ("ddp", "dp", "fsdp", "pp", "tp")
PAIRS = ("ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp", "tp", "pp")
FOURS = (
    *PAIRS,
    *("fsdp --tp 2", "fsdp --pp 2", "hsdp --tp 2", "zero2 --pp 2", "ddp --tp 2", "ddp --pp 2", "pp --tp 2"),
    "zero3 --tp 2",
)
LINKS = [
    (f"--strategy {words}", ranks)
    for ranks, strategies in ((1, ALONE), (2, PAIRS), (4, FOURS))
    for words in strategies
]
RUNS = """
import json, os, sys
import train.job, train.__main__ as job
import train.strategies.ddp, train.strategies.pipeline, train.strategies.ddp
from train.checkpoints.checkpointer import Checkpointer
from train.torchvision_import import import_torchvision

import_torchvision()
import torchmetrics

save = Checkpointer.save

def begin(words, saves, environ):
    def ends(checkpointer):
        save(checkpointer)
        checkpointer.wait()
        ends.left -= 1
        if not ends.left:
            os._exit(3)

    ends.left = saves
    Checkpointer.save = ends
    os.environ.update(environ)
    sys.argv[1:] = words
    log = os.open(os.path.join(environ["GPUCTL_RUN_DIR"], "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os._exit(job.main())

def codes(words, saves, ranks):
    pids = []
    for environ in ranks:
        pids.append(os.fork())
        if not pids[-1]:
            begin(words, saves, environ)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]

for line in sys.stdin:
    print(json.dumps([codes(*one) for one in json.loads(line)]), flush=True)
"""
"""Runs the jobs of each line one after the other; their ranks are forked from it. Prints their exit codes."""


def chain(seed: int) -> list[tuple[str, int, int]]:
    """Return strategy, ranks, and the number of checkpoints after which the run is killed; the last one ends
    normally.
    """
    draw = random.Random(seed)
    links = [(*draw.choice(LINKS), draw.randint(1, 2)) for _ in range(3)]
    return [*links, (*draw.choice(LINKS), 0)]


def losses(run_dir: Path) -> list[float]:
    """The mean loss of all ranks at each step."""
    steps: dict[int, list[float]] = {}
    for line in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines()):
        if "step" in line:
            steps.setdefault(line["step"], []).append(line["loss"])
    return [statistics.fmean(steps[step]) for step in sorted(steps)]


@pytest.fixture(scope="module")
def run_chain(start, free_port, tmp_path_factory):
    """Run links one after the other in a folder. Returns what each rank of each ended with."""

    def ran(links, run_dir):
        jobs = []
        for strategy, ranks, saves in links:
            shared = {
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port()),
                "GPUCTL_RUN_DIR": str(run_dir),
                "GPUCTL_METRICS": str(run_dir / "metrics.jsonl"),
            }
            numbers = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
            jobs.append(([*ARGS, *strategy.split()], saves, [{**shared, **number} for number in numbers]))
        process.stdin.write(json.dumps(jobs) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    with start("-c", RUNS, run_dir=tmp_path_factory.mktemp("forks")) as process:
        yield ran


@pytest.fixture(scope="module")
def whole(run_chain, tmp_path_factory):
    """The losses of one process without a break."""
    folder = tmp_path_factory.mktemp("whole")
    assert run_chain([("--strategy ddp", 1, 0)], folder) == [[0]], (folder / "log").read_text()
    return losses(folder)


def test_chains_have_most_strategies_and_other_neighbours():
    drawn = [[(strategy, ranks) for strategy, ranks, _ in chain(seed)] for seed in SEEDS]
    assert len({link for links in drawn for link in links}) >= 16
    assert len({pair for links in drawn for pair in itertools.pairwise(links)}) >= 20


SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_chain_has_the_losses_of_one_process_without_a_break(run_chain, whole, tmp_path, seed):
    links = chain(seed)
    ends = run_chain(links, tmp_path)
    log = f"{links}\n{(tmp_path / 'log').read_text()}"
    assert [set(codes) == {0} for codes in ends] == [False, False, False, True], log
    assert log.count("resuming from step-") == 3, log
    assert len(whole) == 24
    assert losses(tmp_path) == pytest.approx(whole, rel=1e-6), log
