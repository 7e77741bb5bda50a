"""Test ranks that die silently on real hosts: the first line of the failure names the cause."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from support import Gpuctl

from gpuctl.run_results.failures.log_errors import read

pytestmark = pytest.mark.slow

CGROUPS = Path("/sys/fs/cgroup")
MEMORY = CGROUPS / "memory" if (CGROUPS / "memory").is_dir() else CGROUPS
LIMIT_BYTES = 200_000_000

DIES = """
import ctypes, os, sys, time

kind = sys.argv[1]

def load_batch():
    ctypes.string_at(0)

print("epoch 3", flush=True)
if os.environ["RANK"] != "1":
    time.sleep(600)
elif kind == "crash":
    load_batch()
elif kind == "exit":
    os._exit(3)
elif kind == "memory":
    with open(sys.argv[2] + "/cgroup.procs", "w") as group:
        group.write(str(os.getpid()))
    kept = [bytearray(os.urandom(1 << 20)) for _ in range(4096)]
elif kind == "address space":
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    bytearray(3 << 30)
elif kind == "nccl":
    import torch.distributed
    torch.distributed.init_process_group("nccl")
elif kind == "launcher":
    import subprocess
    with open("inner.py", "w") as inner:
        inner.write("def encode():\\n    raise ValueError('vocabulary has 7 words')\\nencode()\\n")
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "inner.py"]
    subprocess.run(agent, check=True)
elif kind == "shared memory":
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x20000) == 0, os.strerror(ctypes.get_errno())
    assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # what follows is seen by this process alone
    assert libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=4m") == 0, os.strerror(ctypes.get_errno())
    time.sleep(5)  # a node looks at its ranks every two seconds; a container has its /dev/shm from the beginning
    import torch
    from torch.utils.data import DataLoader
    for _ in DataLoader([torch.ones(1 << 20)] * 64, batch_size=8, num_workers=1):
        pass
"""


def first_line(cluster: Gpuctl, kind: str, *words: str) -> Any:
    """Return the reported first failure."""
    cluster.script("dies.py", DIES)
    done = cluster("train", "--json", "dies.py", kind, *words)
    assert done.status == 1, done.err
    error = done.json["first_error"]
    assert error["rank"] == 1
    return error


def test_crash_names_the_line_in_the_script(cluster: Gpuctl) -> None:
    error = first_line(cluster, "crash")
    assert error["message"] == "killed by SIGSEGV in C code that was called from load_batch, dies.py:7"


def test_silent_end_is_said_to_be_one(cluster: Gpuctl) -> None:
    error = first_line(cluster, "exit")
    assert error["message"] == "exit status 3 without a traceback; its log ends with: epoch 3"
    assert (error["reason"], error["cause"]) == ("exit_code", "silent")


def test_limit_of_the_address_space_is_told(cluster: Gpuctl) -> None:
    error = first_line(cluster, "address space")
    assert error["reason"] == "out_of_memory"
    assert error["message"] == (
        "exit status 1: MemoryError (dies.py:23); the address space of the process is limited to 2.1 GB (ulimit -v), "
        "by the script or by the node's /etc/security/limits.conf"
    )


def test_launcher_that_the_script_starts_is_not_the_cause(cluster: Gpuctl) -> None:
    error = first_line(cluster, "launcher")
    assert error["message"] == "exit status 1: ValueError: vocabulary has 7 words (inner.py:2)"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a /dev/shm of its own")
def test_full_shared_memory_is_named_with_its_size(cluster: Gpuctl) -> None:
    error = first_line(cluster, "shared memory")
    assert error["reason"] == "shared_memory_full"
    assert "the shared memory in /dev/shm, 4 MB, was full: use fewer DataLoader workers" in error["message"]


@pytest.mark.skipif(not os.access(MEMORY, os.W_OK), reason="needs control groups that can be made")
def test_kill_by_the_kernel_is_told_with_the_limit(cluster: Gpuctl) -> None:
    group = MEMORY / f"gpuctl-test-{os.getpid()}"
    group.mkdir()
    try:
        limits = [group / name for name in ("memory.max", "memory.limit_in_bytes") if (group / name).exists()]
        if not limits:
            pytest.skip("the memory controller is not there")
        limits[0].write_text(str(LIMIT_BYTES))
        error = first_line(cluster, "memory", str(group))
    finally:
        group.rmdir()
    assert (error["reason"], error["cause"]) == ("out_of_memory", "kernel_kill")
    assert "its container or session had reached its memory limit of 200 MB" in error["message"]


WITHOUT_GPU = """
import os, traceback
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
os.environ["LOCAL_RANK"] = "0"
net = torch.nn.Linear(1, 1)
kinds = {
    "no_backend": [lambda name=name: dist.new_group(backend=name) for name in ("nccl", "xccl", "hccl")],
    "unknown_backend": [lambda name=name: dist.new_group(backend=name) for name in ("mpi", "ucc", "ncll")],
    "cpu_build": [
        net.cuda,
        lambda: net.to("cuda"),
        lambda: torch.ones(1, device="cuda:0"),
        lambda: torch.cuda.set_device(0),
        lambda: init_device_mesh("cuda", (1,)),
        lambda: torch.cuda.get_device_name(0),
        torch.cuda.synchronize,
        torch.cuda.Stream,
        torch.cuda.Event,
        torch.cuda.reset_peak_memory_stats,
    ],
    "no_gpu": [
        lambda: torch.ones(1).to(0),
        lambda: torch.ones(1, device="xpu"),
        lambda: torch.ones(1, device="mps"),
    ],
    "cpu_model": [lambda: DistributedDataParallel(net, device_ids=[0])],
}
for kind, failures in kinds.items():
    for fails in failures:
        try:
            fails()
        except Exception:
            print(kind, traceback.format_exc(), sep="\\0", end="\\1")
dist.destroy_process_group()
try:
    dist.init_process_group("gloo", device_id=torch.device("cuda:0"), store=dist.HashStore(), rank=0, world_size=1)
except Exception:
    print("no_gpu", traceback.format_exc(), sep="\\0", end="\\1", flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not version("torch").endswith("+cpu"), reason="torch is a build for GPUs")
def test_causes_of_torch_without_gpu_fit_the_words_of_the_installed_torch() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", WITHOUT_GPU], capture_output=True, text=True, timeout=200, check=True
    ).stdout
    logs = [log.split("\0") for log in printed.split("\1")[:-1]]
    assert len(logs) == 21
    assert [(cause, log) for cause, log in logs if read(log).cause != cause] == []


def test_backend_without_gpu_is_told_with_the_way_to_choose_one(cluster: Gpuctl) -> None:
    error = first_line(cluster, "nccl")
    assert "doesn't have NCCL built in (dies.py:" in error["message"]
    use = (
        'use gloo where there is no GPU: init_process_group("nccl" if torch.cuda.is_available() else "gloo")'
    )
    assert use in error["message"]
