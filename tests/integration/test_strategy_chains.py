"""A job that is stopped and resumed with other strategies, ranks and launchers, drawn at random, on real hosts.

GPUCTL_TEST_CHAINS="7 8" runs the chains of these seeds.
"""

import itertools
import json
import os
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import pytest
from lanes import commits_so_far
from support import Gpuctl, processes_with, wait_for

from train.command_line import conflict, parse
from train.options import StrategyName
from train.strategies.degrees import refusal

JOB = (
    *(
        "--dataset",
        "synthetic",
        "--synthetic",
        "336,3,32,32,4",
        "--model",
        "cnn",
        "--global-batch-size",
        "64",
    ),
    *("--precision", "fp64", "--log-every", "1", "--threads", "1", "--no-tensorboard", "--wrap", "size:500"),
    *("--checkpoint-every", "0.5"),
)
STEPS_OF_EPOCH = 6
ENDLESS = 100_000
"""Epochs of a run that is stopped."""
LEAST_STEPS = 7
"""Steps of a run before its stop: by then it has begun at least two checkpoints."""
HOSTS = 2
STRATEGIES = get_args(StrategyName)
LAUNCHERS = ("torchrun", "ray", "torchrun", "ray")
"""In an order that is drawn."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A run of a chain."""

    launcher: str
    nnodes: int
    nproc: int
    """On each node."""
    strategy: str

    @property
    def words(self) -> tuple[str, ...]:
        return ("--mode", self.launcher, "--nnodes", str(self.nnodes), "--nproc-per-node", str(self.nproc))

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc


def ways() -> list[tuple[int, int, str]]:
    """Every number of nodes, and of ranks on each, with every strategy that they can have."""
    job = parse(JOB)
    result = []
    for nnodes, nproc in itertools.product(range(1, HOSTS + 1), (1, 2)):
        for strategy, tp, pp in itertools.product(STRATEGIES, (1, 2), (1, 2)):
            options = replace(job, strategy=strategy, tp=tp, pp=pp)
            if conflict(options) is None and refusal(options, [nproc] * nnodes) is None:
                result.append((nnodes, nproc, f"--strategy {strategy} --tp {tp} --pp {pp}"))
    return result


def chain(seed: int) -> list[Link]:
    """Runs, each of which resumes the one before it."""
    draw = random.Random(seed)
    launchers = draw.sample(LAUNCHERS, len(LAUNCHERS))
    drawn = draw.sample(ways(), len(launchers))
    return [
        Link(launcher=launcher, nnodes=nnodes, nproc=nproc, strategy=strategy)
        for launcher, (nnodes, nproc, strategy) in zip(launchers, drawn, strict=True)
    ]


def seeds() -> list[int]:
    """Return the requested seeds, else two seeds that change with each commit."""
    if request := os.environ.get("GPUCTL_TEST_CHAINS"):
        return [int(word) for word in request.split()]
    if os.environ.get("GPUCTL_TEST_SWEEPS") == "all":
        return list(range(12))
    return [2 * commits_so_far(), 2 * commits_so_far() + 1]


def losses(gpuctl: Gpuctl, run: str, world_size: int) -> dict[int, float]:
    """Return the mean loss of all ranks at each step that every rank has reported."""
    steps: dict[int, list[float]] = {}
    for path in (gpuctl.run_folder(run) / "metrics").glob("rank-*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            if "step" in line:
                steps.setdefault(line["step"], []).append(line["loss"])
    return {step: statistics.fmean(report) for step, report in steps.items() if len(report) == world_size}


def stopped(gpuctl: Gpuctl, link: Link, words: Sequence[str], resume: Sequence[str], steps: int) -> str:
    """Start a run, stop it after at least `steps` steps, and return its id."""
    job = (*words, *link.strategy.split(), "--epochs", str(ENDLESS))
    before = {folder.name for folder in (gpuctl.home / "runs").glob("*")}
    process = gpuctl.start("train", "--json", *link.words, *resume, "--", *job)

    def at_work() -> str | None:
        assert process.poll() is None, process.communicate()
        new = [folder.name for folder in (gpuctl.home / "runs").glob("*") if folder.name not in before]
        return next((run for run in new if len(losses(gpuctl, run, link.world_size)) >= steps), None)

    run = str(wait_for(at_work, what=f"step {steps} of all ranks of {link}", deadline_s=120))
    gpuctl.ok("stop", run)
    out, err = process.communicate(timeout=60)
    assert json.loads(out)["status"] == "stopped", err
    return run


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a cluster of local hosts, on which Ray is kept."""
    command = Gpuctl(home=tmp_path_factory.mktemp("home"), cwd=tmp_path_factory.mktemp("start"))
    command.ok("up", "--provider", "local", "--count", str(HOSTS))
    yield command.home
    command.ok("down", "--yes")
    assert not processes_with(str(command.home)), "processes were left behind"


@pytest.fixture
def hosts(home: Path, tmp_path: Path) -> Gpuctl:
    """gpuctl with that cluster, in an empty project."""
    return Gpuctl(home=home, cwd=tmp_path)


def test_many_ways_are_drawn() -> None:
    drawn = [link for seed in range(20) for link in chain(seed)]
    assert {link.world_size for link in drawn} == {1, 2, 4}
    assert {link.strategy.split()[1] for link in drawn} == set(STRATEGIES)
    assert all(set(LAUNCHERS) == {link.launcher for link in chain(seed)} for seed in range(20))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(
    sys.platform != "linux", reason="local hosts have no address of their own for Ray but on Linux"
)
@pytest.mark.parametrize("seed", seeds())
def test_chain_has_the_losses_of_a_run_without_a_stop(hosts: Gpuctl, seed: int) -> None:
    links = chain(seed)
    draw = random.Random(seed)
    print(f"GPUCTL_TEST_CHAINS={seed}", *links, sep="\n")
    calls: list[tuple[str, dict[int, float]]] = []
    for link in links[:-1]:
        resume = ("--resume-from", calls[-1][0]) if calls else ()
        run = stopped(hosts, link, () if calls else JOB, resume, LEAST_STEPS + draw.randrange(6))
        calls.append((run, losses(hosts, run, link.world_size)))
    epochs = str(max(calls[-1][1]) // STEPS_OF_EPOCH + 1)
    last = links[-1]
    result = hosts.ok(
        *("train", "--json", *last.words, "--resume-from", calls[-1][0]),
        *("--", *last.strategy.split(), "--epochs", epochs),
        timeout_s=120,
    ).json
    assert (result["mode"], result["world_size"]) == (last.launcher, last.world_size)
    assert result["resumed_from"] == calls[-1][0]
    hosts.ok("export", result["run"], "-o", "model.pt")
    calls.append((result["run"], losses(hosts, result["run"], last.world_size)))
    alone = ("train", "--json", "--nnodes", "1", "--nproc-per-node", "1", "--", *JOB, "--epochs", epochs)
    whole = losses(hosts, hosts.ok(*alone).json["run"], 1)
    assert list(whole) == list(range(1, int(epochs) * STEPS_OF_EPOCH + 1))
    for link, (run, part) in zip(links, calls, strict=True):
        expected = {step: whole[step] for step in part}
        assert part == pytest.approx(expected, rel=1e-6, abs=1e-9), (link, run)
    assert set().union(*(part for _, part in calls)) == set(whole)
    starts = [min(part) for _, part in calls]
    assert starts == sorted(set(starts)), "each run resumes where the one before it had come to"
