"""Test detached runs and hung nodes: what gpuctl reports is true, or reported as unknown."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support import Gpuctl, interrupt, processes_with, wait_for

pytestmark = pytest.mark.slow

WAITS = """
import os, time
with open(os.environ["GPUCTL_METRICS"], "a") as file:
    file.write("{}\\n")
print("begins", flush=True)
time.sleep(60)
"""


def home_of(gpuctl: Gpuctl, name: str) -> Path:
    return gpuctl.home / "clusters" / "default" / "local" / name / "home"


def at_work(gpuctl: Gpuctl, run: str) -> None:
    def begun() -> bool:
        metrics = [
            home_of(gpuctl, f"default-{rank}").glob(f".gpuctl-node/runs/{run}/*/metrics/rank-{rank}.jsonl")
            for rank in (0, 1)
        ]
        return all(list(metric) for metric in metrics)

    wait_for(begun, what="both ranks at work", deadline_s=40)


def ended(gpuctl: Gpuctl, run: str) -> None:
    exits = f".gpuctl-node/runs/{run}/*/exit.json"
    wait_for(
        lambda: all(list(home_of(gpuctl, f"default-{rank}").glob(exits)) for rank in (0, 1)),
        what="the end of the run",
    )


def detached(gpuctl: Gpuctl) -> str:
    """Start a detached run and return its id once it runs on both nodes."""
    gpuctl.script("waits.py", WAITS)
    run = str(gpuctl.ok("train", "--detach", "--json", "waits.py").json["run"])
    at_work(gpuctl, run)
    return run


def launched(gpuctl: Gpuctl) -> str:
    """Return the id of the run of a newly started `train`, once it runs on both nodes."""
    [record] = wait_for(lambda: list((gpuctl.home / "runs").glob("*/run.json")), what="the run")
    at_work(gpuctl, record.parent.name)
    return str(record.parent.name)


@contextmanager
def hanging(gpuctl: Gpuctl, name: str) -> Iterator[None]:
    """Let the node answer no request inside the context, as with a hung disk; logins work."""
    home = home_of(gpuctl, name)
    (home / "hang").touch()
    runners = {json.loads(path.read_text())["pid"] for path in home.glob(".gpuctl-node/runs/*/*/runner.json")}
    requests = [
        process
        for process in map(psutil.Process, processes_with(str(home)))
        if process.cmdline()[-1].endswith("follow") and process.pid not in runners
    ]
    for process in requests:
        process.suspend()
    try:
        yield
    finally:
        (home / "hang").unlink()
        for process in requests:
            process.kill()


@pytest.fixture
def hosts_that_can_hang(gpuctl: Gpuctl) -> Gpuctl:
    """Return a cluster of two local hosts whose interpreter waits while their home has a file `hang`."""
    python = gpuctl.cwd.parent / "python3"
    python.write_text(
        f'#!/bin/sh\n[ -e "$HOME/hang" ] && exec tail -f /dev/null\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    gpuctl.ok("up", "--provider", "local", "--count", "2", "--python", str(python))
    return gpuctl


def test_train_names_unresponsive_node_within_a_minute(hosts_that_can_hang: Gpuctl) -> None:
    gpuctl = hosts_that_can_hang
    gpuctl.script("waits.py", WAITS)
    process = gpuctl.start("train", "--json", "waits.py")
    launched(gpuctl)
    with hanging(gpuctl, "default-1"):
        began = time.monotonic()
        rest = f"{home_of(gpuctl, 'default-0')}/.gpuctl-node"
        wait_for(lambda: not processes_with(rest), what="the end of the other node's ranks", deadline_s=90)
        assert time.monotonic() - began < 60
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    error = json.loads(out)["first_error"]
    assert error["node"] == "default-1"
    assert "has said nothing for" in error["message"]
    assert gpuctl.ok("stop", "--json").json["first_error"] == error
    assert not processes_with("waits.py", str(hosts_that_can_hang.home))


def test_train_exits_130_after_third_interrupt(hosts_that_can_hang: Gpuctl) -> None:
    gpuctl = hosts_that_can_hang
    gpuctl.script("waits.py", WAITS)
    process = gpuctl.start("train", "waits.py")
    launched(gpuctl)
    assert process.stderr is not None
    with hanging(gpuctl, "default-1"):
        output = ""
        for until in ("default-0: stopped", "killing the ranks", "may go on there: default-1"):
            interrupt(process)
            for line in process.stderr:
                output += line
                if until in line:
                    break
            assert until in output
        assert process.wait(15) == 130
        process.communicate()
    gpuctl.ok("stop")
    assert not processes_with("waits.py", str(hosts_that_can_hang.home))


def test_stop_exits_4_while_run_does_not_stop(two_hosts: Gpuctl) -> None:
    run = detached(two_hosts)
    [path] = home_of(two_hosts, "default-1").glob(f".gpuctl-node/runs/{run}/default-1/runner.json")
    runner = psutil.Process(json.loads(path.read_text())["pid"])
    runner.suspend()
    try:
        stopped = two_hosts("stop", "--json")
        assert stopped.status == 4
        assert stopped.json["status"] == "running"
        assert "default-1: the run was told to stop and goes on" in stopped.err
    finally:
        runner.resume()
    assert two_hosts.ok("stop", "--json").json["status"] == "stopped"
    assert not processes_with("waits.py", str(two_hosts.home))


def test_commands_see_end_of_detached_run(two_hosts: Gpuctl) -> None:
    two_hosts.script("short.py", "print('over')\n")
    ended(two_hosts, two_hosts.ok("train", "--detach", "--json", "short.py").json["run"])
    assert [row["status"] for row in two_hosts.ok("runs", "--json").json["runs"]] == ["succeeded"]

    second = two_hosts.ok("train", "--detach", "--json", "short.py").json["run"]
    assert second in two_hosts.ok("status", "--json").json["runs"], "it has just begun"
    wait_for(
        lambda: two_hosts.ok("status", "--json").json["runs"] == [],
        what="status without a run",
        deadline_s=40,
    )
    third = two_hosts.ok("train", "--detach", "--json", "short.py").json["run"]
    ended(two_hosts, third)
    two_hosts.ok("down")  # nothing to query
    [result] = two_hosts.ok("results", third, "--json").json["runs"]
    assert result["status"] == "succeeded"


def test_results_names_machine_replaced_before_end_of_run(two_hosts: Gpuctl) -> None:
    run = detached(two_hosts)
    two_hosts.kill_host("default-1")
    [row] = two_hosts.ok("runs", "--json").json["runs"]
    assert row["status"] == "running", "the other node says so"
    two_hosts.ok("up", "--provider", "local", "--count", "2")
    two_hosts.ok("stop")
    [result] = two_hosts.ok("results", run, "--json").json["runs"]
    assert "was removed or replaced before the run's end" in json.dumps(result["first_error"])
    assert not processes_with("waits.py", str(two_hosts.home))


def test_runs_reports_run_unknown_to_nodes_as_running(two_hosts: Gpuctl) -> None:
    """Such is the state during a launch."""
    run = detached(two_hosts)
    two_hosts.ok("stop")
    folder = two_hosts.run_folder(run)
    for path in (folder / "result.json", *folder.glob("nodes/*")):
        path.unlink()
    for rank in (0, 1):
        known = home_of(two_hosts, f"default-{rank}") / f".gpuctl-node/runs/{run}"
        known.rename(known.with_name("away"))
    assert two_hosts.ok("runs", "--json").json["runs"][0]["status"] == "running"
    assert two_hosts.ok("status", "--json").json["unheard"] == {run: ["default-0", "default-1"]}
    assert not list(folder.glob("nodes/*"))


def test_commands_tolerate_unreadable_run_record(two_hosts: Gpuctl) -> None:
    two_hosts.script("short.py", "print('over')\n")
    first = two_hosts.ok("train", "--json", "short.py").json["run"]
    torn = two_hosts.home / "runs" / "29991231-235959-ffff"
    torn.mkdir()
    (torn / "run.json").write_text('{"format": 1, "run"')
    rows = two_hosts.ok("runs", "--json").json["runs"]
    assert [(row["run"], row["status"]) for row in rows] == [(first, "succeeded"), (torn.name, "unreadable")]
    assert torn.name in two_hosts.ok("runs").out
    shown = two_hosts.ok("results", "--json")
    assert [result["run"] for result in shown.json["runs"]] == [first]
    assert f"{torn.name}/run.json' can't be used" in shown.err
    down = two_hosts.ok("down")
    assert f"whether run {torn.name} goes on is not known" in down.err


def test_down_works_with_damaged_host_record(two_hosts: Gpuctl) -> None:
    record = two_hosts.home / "clusters" / "default" / "local" / "default-1" / "host.json"
    record.write_text(record.read_text()[:40])
    assert two_hosts("status").status == 2
    two_hosts.ok("down")
    assert not processes_with(str(two_hosts.home))


def test_down_of_kept_machines_refuses_while_run_may_go_on(two_hosts: Gpuctl, gpuctl: Gpuctl) -> None:
    """The hosts of one cluster are existing machines of another cluster."""
    inventory = two_hosts.home / "clusters" / "default" / "inventory.yaml"
    known_hosts = two_hosts.home / "clusters" / "default" / "known_hosts"
    brought = Gpuctl(home=gpuctl.home.parent / "other", cwd=gpuctl.cwd)
    brought.ok("up", "--hosts", str(inventory), "--known-hosts", str(known_hosts))
    brought.script("waits.py", WAITS)
    run = brought.ok("train", "--detach", "--json", "waits.py").json["run"]
    at_work(two_hosts, run)
    [path] = home_of(two_hosts, "default-1").glob(f".gpuctl-node/runs/{run}/default-1/runner.json")
    runner = psutil.Process(json.loads(path.read_text())["pid"])
    runner.suspend()
    try:
        refused = brought("down", "--yes", "--json")
        assert refused.status == 4, refused.err
        [left] = refused.json["leftovers"]
        assert (left["kind"], left["id"]) == ("run", run)
        assert "default-1" in left["reason"]
    finally:
        runner.send_signal(signal.SIGCONT)
    brought.ok("down", "--yes")
    [result] = brought.ok("results", run, "--json").json["runs"]
    assert result["status"] == "stopped"
    assert not processes_with("waits.py", str(two_hosts.home))


def test_down_of_kept_machines_requires_readable_inventory(two_hosts: Gpuctl, gpuctl: Gpuctl) -> None:
    known = two_hosts.home / "clusters" / "default"
    brought = Gpuctl(home=gpuctl.home.parent / "other", cwd=gpuctl.cwd)
    brought.ok("up", "--hosts", str(known / "inventory.yaml"), "--known-hosts", str(known / "known_hosts"))
    inventory = brought.home / "clusters" / "default" / "inventory.yaml"
    inventory.write_text(inventory.read_text()[:60])
    refused = brought("down", "--yes", "--json")
    assert refused.status == 4, "what runs there is not known"
    assert [left["kind"] for left in refused.json["leftovers"]] == ["inventory"]
    brought.ok("down", "--yes", "--forget")
    assert not inventory.exists()
