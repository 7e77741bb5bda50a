"""Several runs at once: on chosen nodes, and on parts of one node's GPUs."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support import Gpuctl, processes_with, wait_for
from vm_support import up

from tests.fakes import nvidia_smi
from tests.fakes.vms import Host, lacking, vms

pytestmark = pytest.mark.slow

FOUR_GPUS = "".join(
    f"4, {index}, GPU-{index}0{index}, 50, 1000, 23028, 40, 100, NVIDIA A10\n" for index in range(4)
)
SCRIPT = """
import json, os, pathlib, sys, time
print("sees", os.environ.get("CUDA_VISIBLE_DEVICES"), "of", os.environ["WORLD_SIZE"], flush=True)
import torch
torch.distributed.init_process_group("gloo")
torch.manual_seed(7)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(torch.distributed.get_rank())
pathlib.Path("mine.txt").write_text(sys.argv[1])
for step in range(int(sys.argv[2])):
    samples = torch.randn(32, 16, generator=generator)
    loss = (model(samples) - samples.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open(os.environ["GPUCTL_METRICS"], "a") as file:
        file.write(json.dumps({"step": step + 1, "loss": loss.item()}) + "\\n")
    time.sleep(0.1)
assert pathlib.Path("mine.txt").read_text() == sys.argv[1]
torch.distributed.destroy_process_group()
"""
STEPS, LONG = "200", "3000"


@pytest.fixture
def one_node(gpuctl: Gpuctl, tmp_path: Path) -> Iterator[Gpuctl]:
    """Yield a cluster of one local host with four GPUs, as nvidia-smi reports."""
    folder = nvidia_smi.install(tmp_path / "smi", FOUR_GPUS)
    gpuctl.ok(
        "up",
        "--provider",
        "local",
        "--count",
        "1",
        env={"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
    )
    gpuctl.script("run.py", SCRIPT)
    yield gpuctl


def log(gpuctl: Gpuctl, run: str) -> str:
    """Return the output of the run's first rank as far as it is here."""
    gpuctl("logs", run)
    path = gpuctl.run_folder(run) / "logs" / "rank-0.log"
    return path.read_text() if path.exists() else ""


def losses(gpuctl: Gpuctl, run: str) -> list[float]:
    """Return the losses that the run's first rank wrote."""
    path = gpuctl.run_folder(run) / "metrics" / "rank-0.jsonl"
    return [json.loads(line)["loss"] for line in path.read_text().splitlines()]


def start(gpuctl: Gpuctl, *words: str) -> str:
    """Start a run, leave it alone, and return its id."""
    return str(gpuctl.ok("train", "--detach", "--json", *words).json["run"])


def kill(gpuctl: Gpuctl, run: str) -> None:
    """Kill the ranks of a run, and wait until it has failed."""
    ranks = processes_with("run.py", run)
    assert ranks
    for pid in ranks:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert gpuctl("logs", "-f", run).status == 1


def gpus_of(gpuctl: Gpuctl, run: str) -> set[str]:
    """Return the GPUs that a run sees, of which each has a rank."""
    line = wait_for(lambda: log(gpuctl, run), what="the first line", deadline_s=60).splitlines()[0].split()
    gpus = set(line[1].split(","))
    assert line[3] == str(len(gpus))
    return gpus


def test_runs_share_the_gpus_of_one_node(one_node: Gpuctl) -> None:
    alone = one_node.ok("train", "--gpus", "2", "--json", "run.py", "alone", STEPS).json["run"]
    first = start(one_node, "--gpus", "2", "run.py", "first", LONG)
    second = start(one_node, "--gpus", "2", "run.py", "second", STEPS)
    refused = one_node("train", "--gpus", "1", "run.py", "third", STEPS)
    assert refused.status == 1
    assert "it needs 1 node with 1 free GPU, and none has them." in refused.err
    assert f"default-0: the run {first} is still active" in refused.err
    halves = gpus_of(one_node, first), gpus_of(one_node, second)
    assert sorted(halves[0] | halves[1]) == ["GPU-000", "GPU-101", "GPU-202", "GPU-303"]

    # A supervisor that is killed claims no GPU, and the next run on its GPUs finds none of its ranks there.
    [record] = one_node.home.glob(f"clusters/default/local/*/home/.gpuctl-node/runs/{first}/*/runner.json")
    os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
    third = start(one_node, "--gpus", "2", "run.py", "third", LONG)
    assert gpus_of(one_node, third) == halves[0]
    assert processes_with("run.py", first) == []
    assert "none is idle" in one_node("train", "run.py", "whole", STEPS).err
    kill(one_node, third)
    assert one_node("logs", "-f", second).status == 0
    assert losses(one_node, second) == losses(one_node, alone)


def test_more_gpus_than_a_node_has_are_refused(one_node: Gpuctl) -> None:
    refused = one_node("train", "--gpus", "5", "run.py", "a", "1")
    assert (refused.status, "default-0 has 4 usable GPUs" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--gpus", "1", "--mode", "ray"), "--gpus is for --mode torchrun"),
        (("--gpus", "1", "--device", "cpu"), "--gpus takes GPUs, and the run uses none"),
        (("--gpus", "1", "--env", "CUDA_VISIBLE_DEVICES=0"), "--gpus sets CUDA_VISIBLE_DEVICES"),
        (("--gpus", "1", "--nnodes", "1:2"), "--gpus does not: leave one out"),
        (("--nodes", "0", "--nnodes", "2"), "--nodes names 1 node"),
        (("--nodes", "7"), "no machine of rank or name '7'"),
    ],
)
def test_contradicting_parts_are_refused(cluster: Gpuctl, words: tuple[str, ...], message: str) -> None:
    cluster.script("run.py", SCRIPT)
    refused = cluster("train", *words, "run.py", "a", "1")
    assert refused.status in (1, 2)
    assert message in refused.err


def test_up_with_a_smaller_count_ends_idle_machines(two_hosts: Gpuctl) -> None:
    two_hosts.script("run.py", SCRIPT)
    run = start(two_hosts, "--nodes", "1", "run.py", "busy", LONG)
    busy = two_hosts("up", "--count", "1", "--yes")
    assert busy.status == 2
    assert f"default-1 has the active run {run}. No machine was ended." in busy.err
    two_hosts.ok("stop", run)
    two_hosts.ok("queue", "pause")
    two_hosts.ok("queue", "add", "--nnodes", "1", "run.py", "first", STEPS)
    two_hosts.ok("queue", "add", "run.py", "both", STEPS)
    waiting = two_hosts("up", "--count", "1", "--yes")
    assert waiting.status == 2
    assert "Entries of the queue may need default-1: 2. No machine was ended." in waiting.err
    two_hosts.ok("queue", "rm", "1", "2")

    asked = two_hosts("up", "--count", "1")
    assert asked.status == 2
    assert "End default-1 with the files there (1 in all: free)?" in asked.err
    assert len(two_hosts.ok("status", "--json").json["machines"]) == 2
    active = start(two_hosts, "--nodes", "0", "run.py", "active", STEPS)
    [left] = two_hosts.ok("up", "--count", "1", "--yes", "--json").json["machines"]
    assert left["name"] == "default-0"
    assert two_hosts("logs", "-f", active).status == 0, "a run on a machine that stays goes on"


def test_runs_on_chosen_nodes_are_side_by_side(two_hosts: Gpuctl) -> None:
    two_hosts.script("run.py", SCRIPT)
    alone = two_hosts.ok("train", "--nodes", "0", "--json", "run.py", "alone", STEPS).json["run"]
    first = start(two_hosts, "--nodes", "1", "run.py", "first", LONG)
    second = start(two_hosts, "--nodes", "default-0", "run.py", "second", STEPS)
    refused = two_hosts("train", "--nodes", "0,1", "run.py", "third", STEPS)
    assert refused.status == 1
    assert f"default-1: the run {first} is still active" in refused.err
    wait_for(lambda: log(two_hosts, first), what="the first line", deadline_s=60)
    kill(two_hosts, first)
    assert two_hosts("logs", "-f", second).status == 0
    assert losses(two_hosts, second) == losses(two_hosts, alone)
    ranks = {run: two_hosts.ok("results", "--json", run).json["runs"][0]["ranks"] for run in (first, second)}
    assert [ranks[first][0]["node"], ranks[second][0]["node"]] == ["default-1", "default-0"]


def two_gpus(host: Host) -> None:
    """Install an nvidia-smi on a host that reports two GPUs of its own."""
    rows = FOUR_GPUS.replace("GPU-", f"GPU-{host.name}-").splitlines(keepends=True)[:2]
    program = nvidia_smi.PROGRAM.format(folder="/usr/local/share")
    for path, text in {"share/rows.csv": "".join(rows), "bin/nvidia-smi": program}.items():
        host.root(f"cat > /usr/local/{path} <<'END'\n{text}END\nchmod 755 /usr/local/{path}")


@pytest.mark.skipif(lacking() is not None, reason=lacking() or "")
def test_runs_across_machines_share_one_of_them(gpuctl: Gpuctl, tmp_path: Path) -> None:
    gpuctl.script("run.py", SCRIPT)
    with vms(tmp_path, count=3, firewall="oci") as net:
        for host in net.hosts:
            two_gpus(host)
        up(gpuctl, net)
        words = ("--gpus", "1", "--json", "run.py")
        alone = gpuctl.ok("train", "--nodes", "1,2", *words, "alone", STEPS).json["run"]
        first = start(gpuctl, "--nodes", "0,1", *words, "first", LONG)
        second = start(gpuctl, "--nodes", "1,2", *words, "second", STEPS)
        shared = [
            node["gpus"]
            for run in (first, second)
            for node in json.loads((gpuctl.run_folder(run) / "run.json").read_text())["nodes"]
            if node["name"] == "gpu-1"
        ]
        assert shared == [["GPU-gpu-1-000"], ["GPU-gpu-1-101"]]
        wait_for(lambda: log(gpuctl, first), what="the first line", deadline_s=60)
        kill(gpuctl, first)
        assert gpuctl("logs", "-f", second).status == 0
        assert losses(gpuctl, second) == losses(gpuctl, alone)
