"""Test `gpuctl queue` on local hosts: runs that start without the command that added them."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest
from support import Gpuctl, holders_of, wait_for

from inventories.disk.store import Store

pytestmark = pytest.mark.slow

PYTHON = ("--python", sys.executable)
GATHER = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(sys.argv[1:], "sum", int(total.item()))
if "fail" in sys.argv and dist.get_rank() == 1:
    raise ValueError("label 12 is not below 10")
dist.destroy_process_group()
"""
QUEUES = "*/home/.gpuctl-node/queue/*"
MEET = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / sys.argv[2]).touch()
while not (folder / "go").exists():
    time.sleep(0.1)
print("met", sys.argv[2])
"""
LOSS = """
import json, os, sys
with open(os.environ["GPUCTL_METRICS"], "a") as file:
    file.write(json.dumps({"step": 1, "loss": float(sys.argv[2])}) + "\\n")
"""


@pytest.fixture
def hosts(gpuctl: Gpuctl) -> Iterator[Gpuctl]:
    """Yield a cluster of two fresh local hosts."""
    gpuctl.ok("up", "--provider", "local", "--count", "2")
    gpuctl.script("my.py", GATHER)
    yield gpuctl
    gpuctl.ok("down")


def states(gpuctl: Gpuctl) -> list[str]:
    return [entry["state"] for entry in gpuctl.ok("queue", "ls", "--json").json["entries"]]


def wait_until_empty(gpuctl: Gpuctl, deadline_s: float = 240) -> None:
    """Wait, without a command, until no entry waits on the first host."""
    folder = gpuctl.home / "clusters/default/local/default-0/home/.gpuctl-node/queue"
    wait_for(lambda: not list(folder.glob("*/*.json")), what="the end of the queue", deadline_s=deadline_s)


def test_queue_runs_on_all_nodes_one_after_the_other(hosts: Gpuctl) -> None:
    entry = hosts.ok("queue", "add", "--json", *PYTHON, "my.py", "first").json
    assert (entry["entry"], entry["state"], entry["script"], entry["nnodes"]) == ("1", "waiting", "my.py", 2)
    hosts.ok("queue", "add", *PYTHON, "my.py", "fail")
    hosts.script("my.py", "print('edited')")
    hosts.ok("queue", "add", "--nnodes", "1", *PYTHON, "my.py")
    wait_until_empty(hosts)
    assert states(hosts) == ["succeeded", "failed", "succeeded"]
    runs = hosts.ok("runs", "--json").json["runs"]
    assert [run["status"] for run in runs] == ["succeeded", "failed", "succeeded"]
    assert runs[0]["run"] == entry["run"]
    assert "['first'] sum 2" in hosts.ok("logs", runs[0]["run"]).out
    assert "edited" in hosts.ok("logs", runs[2]["run"]).out
    failed = hosts.ok("results", "--json", runs[1]["run"]).json["runs"][0]
    assert failed["first_error"]["rank"] == 1
    assert "label 12 is not below 10" in failed["first_error"]["message"]


def test_runs_of_one_node_meet_on_two_hosts_though_all_of_the_queue_is_killed(hosts: Gpuctl) -> None:
    hosts.script("meet.py", MEET)
    folder, local = hosts.home / "meeting", hosts.home / "clusters/default/local"
    folder.mkdir()
    adders = [
        hosts.start("queue", "add", "--nnodes", "1", *PYTHON, "meet.py", str(folder), name) for name in "ab"
    ]
    assert [adder.wait(240) for adder in adders] == [0, 0]
    hosts.ok("queue", "add", *PYTHON, "my.py", "all")
    hosts.ok("queue", "add", "--nnodes", "1", *PYTHON, "my.py", "last")
    wait_for(lambda: len(list(folder.iterdir())) == 2, what="both runs at once", deadline_s=120)
    locks = [*local.glob(f"{QUEUES}/.runner"), *local.glob(f"{QUEUES}/.following/.follower")]
    assert len(locks) == 2
    while pids := holders_of(*map(str, locks)):  # a parent may start another child in between
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    asked = hosts.ok("status", "--json")
    assert "note: the queue had stopped, as its process on default-0 had ended: it continues now" in asked.err
    about = asked.json["queue"]
    assert (about["running"], about["waiting"], about["paused"], about["restarted"]) == (2, 2, False, True)
    assert states(hosts) == ["running", "running", "waiting", "waiting"]
    (folder / "go").touch()
    wait_until_empty(hosts)
    entries = hosts.ok("queue", "ls", "--json").json["entries"]
    assert [entry["state"] for entry in entries] == ["succeeded"] * 4
    assert sorted(entry["nodes"] for entry in entries[:2]) == [["default-0"], ["default-1"]]
    assert entries[2]["nodes"] == ["default-0", "default-1"]
    runs = {entry["run"]: entry["nodes"] for entry in entries}
    recorded = {run: [node.name for node in Store(hosts.home).run(run).load_run().nodes] for run in runs}
    assert recorded == runs
    for entry in entries[:2]:
        assert f"met {entry['args'][1]}" in hosts.ok("logs", entry["run"]).out
    wait_for(
        lambda: not list(local.glob(f"{QUEUES}/.following/*.json")),
        what="the removal of parts",
        deadline_s=30,
    )


def test_lost_node_fails_its_run_and_others_start_without_it(hosts: Gpuctl) -> None:
    hosts.script("wait.py", "import time; time.sleep(600)")
    run = hosts.ok("queue", "add", "--json", *PYTHON, "wait.py").json["run"]
    hosts.ok("queue", "add", "--nnodes", "1", *PYTHON, "my.py", "alone")
    wait_for(lambda: ran_on(hosts, "default-1", run), what="both nodes", deadline_s=120)
    [lock] = (hosts.home / "clusters/default/local").glob(f"{QUEUES}/.following/.follower")
    while pids := holders_of(str(lock)):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    wait_until_empty(hosts, deadline_s=360)  # without a command, which would start it again
    lost, alone = hosts.ok("queue", "ls", "--json").json["entries"]
    assert (lost["state"], lost["error"]) == ("failed", "default-1 did not answer the first node for 120 s")
    assert (alone["state"], alone["nodes"]) == ("succeeded", ["default-0"])
    hosts.ok("stop", run)  # what it left on the node that is back


def test_stop_ends_the_active_run_and_the_next_one_starts(hosts: Gpuctl) -> None:
    hosts.script("wait.py", "import time; time.sleep(600)")
    hosts.ok("queue", "add", *PYTHON, "wait.py")
    hosts.ok("queue", "add", *PYTHON, "my.py", "second")
    wait_for(lambda: states(hosts)[0] == "running", what="the first entry", deadline_s=60)
    run = hosts.ok("runs", "--json").json["runs"][0]["run"]
    wait_for(lambda: ran_on(hosts, "default-1", run), what="both nodes", deadline_s=60)
    hosts.ok("stop", run)
    wait_until_empty(hosts)
    assert states(hosts) == ["stopped", "succeeded"]


def ran_on(gpuctl: Gpuctl, node: str, run: str) -> bool:
    home = gpuctl.home / "clusters/default/local" / node / "home"
    return (home / ".gpuctl-node/runs" / run / node / "runner.json").exists()


def test_sweep_is_a_grid_that_results_compare(gpuctl: Gpuctl) -> None:
    gpuctl.ok("up", "--provider", "local", "--count", "1")
    gpuctl.script("my.py", LOSS)
    notices = gpuctl.home / "notices"
    notify = ("--notify", f"command:echo $GPUCTL_NOTIFY_TEXT >> {notices}")
    said = gpuctl.ok("queue", "add", *PYTHON, *notify, "--name", "try", "--sweep", "loss=3,1,2", "my.py").err
    assert "3 entries are added (1 to 3), 1 can run at once" in said
    assert "messages: failures at once, and one when the queue is empty" in said
    added = gpuctl.ok("queue", "ls", "--json").json["entries"]
    assert [entry["name"] for entry in added] == ["try-loss=3", "try-loss=1", "try-loss=2"]
    assert [entry["args"] for entry in added] == [["--loss", "3"], ["--loss", "1"], ["--loss", "2"]]
    wait_until_empty(gpuctl)
    assert "3 succeeded, 0 waiting" in gpuctl.ok("queue", "ls").err
    refused = gpuctl("queue", "rm", "2").err
    assert refused.endswith("error: entry 2 has succeeded: only waiting entries can be removed.\n")
    assert "entry" not in gpuctl.ok("queue", "pause").out
    tag = f"sweep={added[0]['tags']['sweep']}"
    results = gpuctl.ok("results", "--json", "--tag", tag).json["runs"]
    assert [result["train"]["loss"][-1] for result in results] == [3, 1, 2]
    wait_for(notices.exists, what="the notice")
    assert notices.read_text() == f"best: loss 1, try-loss=1 ({added[1]['run']}) gpuctl results --tag {tag}\n"
    gpuctl.ok("down")


def test_two_computers_add_at_once(gpuctl: Gpuctl) -> None:
    gpuctl.ok("up", "--provider", "local", "--count", "1")
    gpuctl.script("my.py", "print(1)")
    assert "The queue is paused: no entry starts" in gpuctl.ok("queue", "pause").err
    adders = [gpuctl.start("queue", "add", *PYTHON, "my.py", str(number)) for number in range(3)]
    assert [adder.wait(120) for adder in adders] == [0, 0, 0]
    entries = gpuctl.ok("queue", "ls", "--json").json["entries"]
    assert [entry["entry"] for entry in entries] == ["1", "2", "3"]
    assert sorted(entry["args"][0] for entry in entries) == ["0", "1", "2"]
    assert "removed entries 1 and 2" in gpuctl.ok("queue", "rm", "1", "2").err
    last = f"ntry 3 (my.py {entries[2]['args'][0]}) of the queue"
    asked = gpuctl("down")
    assert asked.status == 2
    assert f"E{last} would never start. Remove the cluster default?" in asked.err
    assert f"removed e{last}" in gpuctl.ok("down", "--yes").err
