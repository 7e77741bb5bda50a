"""Runs that hang, on real hosts with real ranks: `why` names the rank that the others wait for, and where it is."""

from typing import Any

import pytest
from support import Gpuctl, wait_for

pytestmark = pytest.mark.slow

HANGS = """
import ctypes, os, signal, sys, threading, time
import torch
import torch.distributed as dist

kind = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
ones = torch.ones(4)

def load_batch():
    time.sleep(600)

for step in range(3):
    dist.all_reduce(ones)
print("begins", flush=True)
if rank == 1:
    if kind == "sleeps":
        load_batch()
    elif kind == "raises":
        threading.Thread(target=time.sleep, args=(600,)).start()
        raise ValueError("label 12 is not below 10")
    elif kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "differs":
        dist.broadcast(ones, 0)
    elif kind == "in C":
        ctypes.PyDLL(None).sleep(600)
dist.all_reduce(ones)
"""


def hanging(cluster: Gpuctl, kind: str, *options: str) -> str:
    """The id of a run in which rank 1 hangs."""
    cluster.script("hangs.py", HANGS)
    run = str(cluster.ok("train", "--detach", "--json", *options, "hangs.py", kind).json["run"])
    ranks = int(options[-1]) * 2 if options else 2

    def begun() -> bool:
        return cluster.ok("logs", run).out.count("begins") == ranks

    wait_for(begun, what="all ranks in their hang", deadline_s=90)
    return run


def why(cluster: Gpuctl, run: str, waiting: int) -> Any:
    """Return the verdict of `why` after the given number of ranks have waited for a while."""

    def told() -> Any:
        hang = cluster("why", "--json", run).json
        return hang if len(hang["waiting"]) == waiting and hang["verdict"] != "fine" else None

    return wait_for(told, what="the others in their collective", deadline_s=60)


def test_sleeping_rank_is_named_with_its_line_among_four(cluster: Gpuctl) -> None:
    run = hanging(cluster, "sleeps", "--nproc-per-node", "2")
    hang = why(cluster, run, 3)
    cluster.ok("stop", run)
    (culprit,) = hang["culprits"]
    assert (culprit["rank"], culprit["file"], culprit["function"]) == (1, "hangs.py", "load_batch")
    assert {(item["rank"], item["collective"], item["sequence"]) for item in hang["waiting"]} == {
        (0, "all_reduce", 4),
        (2, "all_reduce", 4),
        (3, "all_reduce", 4),
    }
    assert "rank 1 on" in hang["sentence"]
    assert "never entered all_reduce #4 (hangs.py:29), which the other 3 wait in" in hang["sentence"]
    stacks = (cluster.run_folder(run) / "stacks" / "rank-1.txt").read_text()
    assert "in load_batch" in stacks
    after = cluster.ok("why", "--json", run).json
    assert after["sentence"].startswith("The run ")
    assert after["sentence"].partition(": ")[2] == hang["sentence"].partition(": ")[2]


@pytest.mark.parametrize(
    ("kind", "waiting", "words"),
    [
        ("stopped", 1, "is stopped (state T"),
        ("differs", 2, "in different collectives at number 4: rank 0 on"),
        ("in C", 1, "in C code that was called from hangs.py:28, and holds Python's lock"),
    ],
)
def test_cause_of_a_hang_is_told(cluster: Gpuctl, kind: str, waiting: int, words: str) -> None:
    run = hanging(cluster, kind)
    hang = why(cluster, run, waiting)
    cluster.ok("stop", run)
    assert words in hang["sentence"]
    assert 1 in [culprit["rank"] for culprit in hang["culprits"]]


def test_watch_tells_of_a_hang_and_stops_the_run(cluster: Gpuctl) -> None:
    cluster.script("hangs.py", HANGS)
    done = cluster("train", "--json", "--hang-after", "5s", "--on-hang", "stop", "hangs.py", "sleeps")
    assert done.status == 1
    assert "The run hangs: rank 1 on default-1 never entered all_reduce #4" in done.err
    assert "load_batch, hangs.py:12" in done.err
    result = done.json
    assert (result["status"], result["hang"]["verdict"]) == ("stopped", "hung")
    assert [culprit["rank"] for culprit in result["hang"]["culprits"]] == [1]


def test_rank_that_raised_and_does_not_end_fails_the_run(cluster: Gpuctl) -> None:
    cluster.script("hangs.py", HANGS)
    done = cluster("train", "--json", "--hang-after", "5s", "--on-hang", "stop", "hangs.py", "raises")
    assert done.status == 1
    error = done.json["first_error"]
    assert (done.json["status"], error["rank"], error["cause"]) == ("failed", 1, "raised")
    assert (
        error["message"]
        == "ValueError: label 12 is not below 10 (hangs.py:22); its process did not end by itself"
    )
    assert (
        "it raised ValueError: label 12 is not below 10 (hangs.py:22), and its process has not ended"
        in done.err
    )


def test_report_of_a_run_that_nobody_watched_is_found_later(cluster: Gpuctl) -> None:
    cluster.script("hangs.py", HANGS)
    run = str(
        cluster.ok("train", "--json", "--detach", "--hang-after", "5s", "hangs.py", "sleeps").json["run"]
    )
    reports = f"clusters/*/local/*/home/.gpuctl-node/runs/{run}/*/hangs/report.json"
    wait_for(lambda: len(list(cluster.home.glob(reports))) == 2, what="both nodes' reports", deadline_s=60)
    cluster.ok("stop", run)
    result = cluster.ok("results", "--json", run).json["runs"][0]
    assert result["hang"]["sentence"].startswith("The run hung (20")
    assert " UTC): rank 1 on default-1 never entered all_reduce #4" in result["hang"]["sentence"]
    assert cluster("why", "--json", run).json["sentence"] == result["hang"]["sentence"]


NEVER_JOINS = """
import os, time
import torch.distributed as dist

def download():
    time.sleep(600)

if os.environ["RANK"] == "1":
    download()
dist.init_process_group("gloo")
"""


def test_rank_that_never_comes_to_the_process_group_is_told_before_any_step(cluster: Gpuctl) -> None:
    cluster.script("joins.py", NEVER_JOINS)
    done = cluster("train", "--json", "--hang-after", "2s", "--on-hang", "stop", "joins.py")
    assert done.json["status"] == "stopped"
    assert (
        "The run hangs: rank 1 on default-1 is not in init_process_group (joins.py:10), in which rank 0 waits; it is "
        "in download, joins.py:6."
    ) in done.err
