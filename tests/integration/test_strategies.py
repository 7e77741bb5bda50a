"""Test failing ranks of the built-in job on real hosts, and the reports on them."""

import json
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Gpuctl, processes_with, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

JOB = (
    *(
        "--dataset",
        "synthetic",
        "--synthetic",
        "336,3,12,12,4",
        "--model",
        "cnn",
        "--global-batch-size",
        "64",
    ),
    *("--precision", "fp64", "--log-every", "1", "--threads", "1", "--no-tensorboard", "--wrap", "size:500"),
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a cluster of two local hosts, on which Ray is kept."""
    command = Gpuctl(home=tmp_path_factory.mktemp("home"), cwd=tmp_path_factory.mktemp("start"))
    command.ok("up", "--provider", "local", "--count", "2")
    yield command.home
    command.ok("down", "--yes")
    assert not processes_with(str(command.home)), "processes were left behind"


@pytest.fixture
def hosts(home: Path, tmp_path: Path) -> Gpuctl:
    """gpuctl with that cluster, in an empty project."""
    return Gpuctl(home=home, cwd=tmp_path)


def start_job(gpuctl: Gpuctl, ranks: int, *words: str) -> "tuple[subprocess.Popen[str], str]":
    """`gpuctl train` of a job without end on two hosts, once all ranks take steps; with the run's id."""
    endless = ("--epochs", "100000", "--checkpoint-every", "0", "--no-save", *words)
    process = gpuctl.start("train", "--json", "--nproc-per-node", str(ranks // 2), "--", *JOB, *endless)
    before = {folder.name for folder in (gpuctl.home / "runs").glob("*")}

    def at_work() -> str | None:
        assert process.poll() is None, process.communicate()
        for folder in (gpuctl.home / "runs").glob("*"):
            files = [folder / "metrics" / f"rank-{rank}.jsonl" for rank in range(ranks)]
            if folder.name not in before and all(
                file.exists() and '"step"' in file.read_text() for file in files
            ):
                return folder.name
        return None

    return process, wait_for(at_work, what="steps of all ranks", deadline_s=150)


def pid_of(gpuctl: Gpuctl, run: str, rank: int) -> int:
    return int(json.loads((gpuctl.run_folder(run) / "ranks" / f"rank-{rank}.json").read_text())["pid"])


def test_rank_of_a_middle_stage_is_named_with_its_stage(hosts: Gpuctl) -> None:
    """Stopped first and then killed: its neighbour stages only lose a peer."""
    process, run = start_job(hosts, 4, "--strategy", "pp", "--pp", "4")
    pid = pid_of(hosts, run, 1)
    os.kill(pid, signal.SIGSTOP)
    hang = hosts("why", "--json", run).json
    assert hang["sentence"].startswith(
        "The run hangs: rank 1 on default-0 (stage 2 of 4) is stopped (state T"
    )
    assert [(item["rank"], item["place"]) for item in hang["culprits"]] == [(1, "stage 2 of 4")]
    os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    error = json.loads(out)["first_error"]
    assert (error["rank"], error["reason"], error["place"]) == (1, "signal", "stage 2 of 4")
    shown = hosts.ok("results", run).out
    assert "rank 1 on default-0 (stage 2 of 4) failed first: killed by SIGKILL" in shown
    assert not processes_with(str(hosts.home / "runs" / run))


def test_rank_without_memory_is_named_with_what_helps(hosts: Gpuctl) -> None:
    large = ("--synthetic", "512,3,64,64,4", "--global-batch-size", "256", "--precision", "fp32")
    process, run = start_job(hosts, 2, *large)
    # The rank keeps its present memory, but further requests to the kernel fail.
    resource.prlimit(pid_of(hosts, run, 1), resource.RLIMIT_AS, (1 << 29, 1 << 29))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    error = json.loads(out)["first_error"]
    assert (error["rank"], error["node"], error["reason"]) == (1, "default-1", "out_of_memory"), error
    assert "DefaultCPUAllocator: can't allocate memory" in error["message"]
    shown = " ".join(hosts.ok("results", run).out.split())
    assert (
        "More --gradient-accumulation-steps compute the same batch in smaller parts; with --strategy fsdp"
        in shown
    )


CGROUPS = Path("/sys/fs/cgroup")
MEMORY = CGROUPS / "memory" if (CGROUPS / "memory").is_dir() else CGROUPS
LIMIT_BYTES = 700_000_000


@pytest.fixture
def small_host(hosts: Gpuctl) -> Iterator[None]:
    """Limit the second host's memory as in a container: its processes run in a separate cgroup."""
    group = MEMORY / f"gpuctl-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs control groups that can be made in {MEMORY}: {error.strerror}")
    limits = [group / name for name in ("memory.max", "memory.limit_in_bytes") if (group / name).exists()]
    if not limits:
        group.rmdir()
        pytest.skip(f"needs the memory controller in {MEMORY}")
    limits[0].write_text(str(LIMIT_BYTES))
    pids = processes_with(str(hosts.home / "clusters" / "default" / "local" / "default-1"))
    before = {pid: group_of(pid) for pid in pids}
    for pid in pids:
        (group / "cgroup.procs").write_text(str(pid))
    yield
    for pid in map(int, (group / "cgroup.procs").read_text().split()):
        (before.get(pid, before[pids[0]]) / "cgroup.procs").write_text(str(pid))
    group.rmdir()


def group_of(pid: int) -> Path:
    """The folder of a process's memory control group."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory" or MEMORY == CGROUPS:
            return MEMORY / path.lstrip("/")
    raise AssertionError(f"process {pid} is in no group")


@pytest.mark.usefixtures("small_host")
@pytest.mark.parametrize(
    ("strategy", "place", "helps"),
    [
        (
            "pp",
            "stage 2 of 2",
            "with more machines, and a larger --pp or --tp, each rank keeps less of the model",
        ),
        ("ddp", None, "with --strategy fsdp each rank keeps a part of the model"),
        ("fsdp", None, "with more machines each rank keeps less of the model"),
    ],
)
def test_rank_that_the_kernel_kills_for_want_of_memory_is_named_with_what_helps(
    hosts: Gpuctl, strategy: str, place: str | None, helps: str
) -> None:
    large = (
        "--synthetic",
        "512,3,64,64,4",
        "--global-batch-size",
        "512",
        "--gradient-accumulation-steps",
        "2",
    )
    done = hosts(
        "train", "--json", "--", *JOB, *large, "--strategy", strategy, "--precision", "fp32", "--no-save"
    )
    assert done.status == 1, done.err
    error = done.json["first_error"]
    assert (error["rank"], error["node"], error["place"]) == (1, "default-1", place), error
    assert (error["reason"], error["cause"]) == ("out_of_memory", "kernel_kill"), error
    assert "as its container or session had reached its memory limit of 700 MB" in error["message"]
    assert "(killed by SIGKILL)" in error["message"]
    shown = " ".join(hosts.ok("results", done.json["run"]).out.split())
    name = f"rank 1 on default-1{f' ({place})' if place else ''}"
    assert f"{name} failed first: out of memory: the kernel killed" in shown
    assert helps in shown


STUCK = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

class Layer(nn.Linear):
    calls = 0

    def forward(self, value):
        Layer.calls += 1
        if dist.get_rank() == 1 and Layer.calls > 20:
            load_batch()
        return super().forward(value)

def load_batch():
    print("stuck", flush=True)
    time.sleep(600)

dist.init_process_group("gloo")
rank = dist.get_rank()
stage = PipelineStage(Layer(4, 4), rank, 2, torch.device("cpu"))
schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
for step in range(100):
    dist.all_reduce(torch.ones(1))
    schedule.step(*([torch.ones(8, 4)] if rank == 0 else []), target=torch.ones(8, 4) if rank else None)
"""


def test_stuck_stage_of_a_script_is_told_from_the_stages_that_wait_for_it(hosts: Gpuctl) -> None:
    hosts.script("stuck.py", STUCK)
    run = str(hosts.ok("train", "--detach", "--json", "stuck.py").json["run"])
    wait_for(lambda: "stuck" in hosts.ok("logs", run).out, what="rank 1 in its hang", deadline_s=90)

    def told() -> str | None:
        sentence = str(hosts("why", "--json", run).json["sentence"])
        return sentence if sentence.startswith("The run hangs: ") else None

    sentence = wait_for(told, what="a hang that is long enough", deadline_s=60)
    hosts.ok("stop", run)
    assert "rank 1 on default-1 is not in batch_isend_irecv (stuck.py:" in sentence
    assert "in which rank 0 waits; it is in load_batch, stuck.py:19" in sentence
