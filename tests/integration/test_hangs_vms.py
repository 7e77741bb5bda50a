"""Test hung runs, and runs that only look hung, on VM-like hosts with 2 and 4 ranks.

The watch detects them automatically, names the cause, and stops the run.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from forks import Forks
from support import Gpuctl
from vm_support import begin, end_of, up

from tests.fakes.vms import Net, lacking, vms

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=lacking() or "")]

AFTER = "4s"
HANGS = """
import ctypes, os, signal, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

kind = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
ones = torch.ones(4)

class Slow(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        time.sleep(600)

def load_batch():
    time.sleep(600)

def all_together(seconds, work):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        work()
    dist.all_reduce(ones)

for step in range(3):
    dist.all_reduce(ones)
print("begins", flush=True)
if kind == "is well":
    # All evaluate, then rank 0 alone computes, then it alone prints, while the others wait.
    all_together(7, lambda: time.sleep(0.1))
    all_together(7 if rank == 0 else 0, lambda: sum(range(100_000)))
    all_together(7 if rank == 0 else 0, lambda: (time.sleep(0.5), print("still at it", flush=True)))
elif kind == "link":
    while True:
        dist.all_reduce(ones)
        time.sleep(0.05)
elif rank == 1:
    if kind == "sleeps":
        load_batch()
    elif kind == "is stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "differs":
        dist.broadcast(ones, 0)
    elif kind == "in C":
        ctypes.PyDLL(None).sleep(600)
    elif kind == "data":
        next(iter(DataLoader(Slow(), num_workers=1)))
dist.all_reduce(ones)
os._exit(0)  # a thread of gloo's may still be at work
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, imported: Forks) -> Iterator[tuple[Gpuctl, Net]]:
    """Two hosts that the file's tests use one after the other."""
    folder = tmp_path_factory.mktemp("hangs")
    (folder / "project").mkdir()
    command = Gpuctl(home=folder / "home", cwd=folder / "project", forks=imported)
    command.script("hangs.py", HANGS)
    with vms(folder, count=2) as net:
        up(command, net)
        yield command, net
        command.ok("down", "--yes")


def words(kind: str, nproc: int) -> tuple[str, ...]:
    """The options of a run that is stopped when it hangs."""
    return ("--nproc-per-node", str(nproc), "--hang-after", AFTER, "--on-hang", "stop", "hangs.py", kind)


def hang_of(result: Any, err: str) -> Any:
    """Return the watch's finding, after checking that it was printed before the stop."""
    hang = result["hang"]
    assert hang is not None, err
    assert (result["status"], hang["verdict"]) == ("stopped", "hung")
    assert hang["sentence"].startswith("The run hung (20")
    assert "The run hangs: " in err
    return hang


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "sleeps",
            "never entered all_reduce #4 (hangs.py:50), which {} in; it is in load_batch, hangs.py:19",
        ),
        ("is stopped", "is stopped (state T"),
        ("differs", "in different collectives at number 4: {groups}"),
        ("in C", "it is in C code that was called from hangs.py:47, and holds Python's lock"),
        (
            "data",
            "it waits for its DataLoader's workers in hangs.py:49; a worker is in __getitem__, hangs.py:16",
        ),
    ],
)
def test_hang_is_noticed_and_its_cause_told(
    hosts: tuple[Gpuctl, Net], kind: str, message: str, nproc: int
) -> None:
    done = hosts[0]("train", "--json", *words(kind, nproc))
    hang = hang_of(done.json, done.err)
    name = "rank 0 waits" if nproc == 1 else "the other 3 wait"
    # The few come first.
    groups = (
        "rank 0 on gpu-0 is in all_reduce (hangs.py:50), rank 1 on gpu-1 is in broadcast (hangs.py:45)"
        if nproc == 1
        else "rank 1 on gpu-0 is in broadcast (hangs.py:45), "
        "ranks 0 on gpu-0, 2 on gpu-1 and 3 on gpu-1 are in all_reduce (hangs.py:50)"
    )
    assert message.format(name, groups=groups) in hang["sentence"]
    assert 1 in [culprit["rank"] for culprit in hang["culprits"]]


@pytest.mark.parametrize("nproc", [1, 2])
def test_dropped_link_is_told_where_no_rank_is_missing(hosts: tuple[Gpuctl, Net], nproc: int) -> None:
    command, net = hosts
    process, _ = begin(replace(command, forks=None), net.hosts, *words("link", nproc))
    item, other = net.hosts
    item.drop(other)
    try:
        done = end_of(process)
    finally:
        item.undrop(other)
    hang = hang_of(done.json, done.err)
    assert "what they send does not arrive (a link that was dropped, a firewall)" in hang["sentence"]
    assert hang["culprits"] == []


@pytest.mark.parametrize("nproc", [1, 2])
def test_run_that_evaluates_computes_and_prints_for_long_is_well(
    hosts: tuple[Gpuctl, Net], nproc: int
) -> None:
    done = hosts[0].ok("train", "--json", *words("is well", nproc))
    assert done.json["status"] == "succeeded"
    assert "The run hangs" not in done.err
    assert done.json["hang"] is None
