"""The all-reduce that measures the bandwidth: its arithmetic, and the real thing over gloo."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from train import allreduce


@pytest.mark.parametrize(
    ("size", "seconds", "world_size", "algorithm", "bus"),
    [(10**9, 0.5, 2, 2.0, 2.0), (10**9, 0.5, 4, 2.0, 3.0), (64_000_000, 0.001, 8, 64.0, 112.0)],
)
def test_bandwidth_computes_algorithm_and_bus_gb_per_s(size, seconds, world_size, algorithm, bus):
    assert allreduce.bandwidth(size, seconds, world_size) == {
        "algorithm_gb_s": pytest.approx(algorithm),
        "bus_gb_s": pytest.approx(bus),
    }


@pytest.mark.parametrize(("one_s", "count"), [(0.0, 50), (0.1, 20), (1.0, 5), (60.0, 5)])
def test_iterations_are_more_for_a_fast_operation(one_s, count):
    assert allreduce.iterations(one_s) == count


@pytest.mark.parametrize(
    ("size", "took", "left_out"),
    [
        (64_000, [], False),
        (4_000_000, [(64_000, 0.2)], False),  # far apart: of a second, most is latency
        (64_000_000, [(64_000, 0.0052), (4_000_000, 0.32)], True),  # 100 Mbit/s
        (64_000_000, [(64_000, 0.00055), (4_000_000, 0.032)], False),  # 1 Gbit/s
        (64_000_000, [(64_000, 0.2), (4_000_000, 0.24)], False),
        (10**9, [(64_000, 0.0001), (4_000_000, 0.003), (64_000_000, 0.045)], False),
        (10**9, [(64_000, 0.0001), (4_000_000, 0.004), (64_000_000, 0.06)], True),
    ],
)
def test_too_slow_leaves_out_sizes_that_take_too_long(size, took, left_out):
    assert allreduce.too_slow(size, took) is left_out


@pytest.mark.slow
def test_allreduce_on_two_ranks_measures_every_size(start, free_port, tmp_path: Path):
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    with start(
        *launcher, "--master-port", str(free_port()), "-m", "train.allreduce", run_dir=tmp_path
    ) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["bytes"] for line in lines] == list(allreduce.SIZES), "one rank tells, smallest first"
    for line in lines:
        assert (line["event"], line["scope"], line["backend"], line["device"]) == (
            "allreduce",
            "all",
            "gloo",
            "cpu",
        )
        assert line["iterations"] >= allreduce.MIN_ITERATIONS
        assert line["bus_gb_s"] == line["algorithm_gb_s"], "of two ranks"
        assert line["algorithm_gb_s"] == pytest.approx(line["bytes"] / line["seconds"] / 1e9)


@pytest.mark.slow
def test_allreduce_on_two_nodes_also_measures_within_each_node(start, free_port, tmp_path: Path):
    port = str(free_port())
    launcher = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    where = ["--master-addr", "127.0.0.1", "--master-port", port, "-m", "train.allreduce"]
    with (
        start(*launcher, "--node-rank", "0", *where, run_dir=tmp_path) as first,
        start(*launcher, "--node-rank", "1", *where, run_dir=tmp_path) as second,
    ):
        errors = [process.communicate(timeout=90)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), errors
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    scopes = {(line["scope"], line["rank"], line["world_size"]) for line in lines}
    assert scopes == {("all", 0, 4), ("node", 0, 2), ("node", 2, 2)}


def test_allreduce_on_one_rank_exits_silently(node: Path, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "train.allreduce"],
        cwd=node,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
