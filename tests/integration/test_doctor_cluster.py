"""`gpuctl doctor --cluster` over local hosts."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from support import Gpuctl, interrupt, processes_with, wait_for

from tests.fakes.vms import lacking, vms

pytestmark = pytest.mark.slow

SLEEPS = "import time\nprint('begins', flush=True)\ntime.sleep(120)\n"


def test_doctor_measures_healthy_cluster_without_recording_a_run(cluster: Gpuctl) -> None:
    runs = cluster.ok("runs", "--json").json
    document = cluster.ok("doctor", "--cluster", "--json").json
    assert document["ok"]
    assert document["cluster"] == "default"
    result = {row["what"]: row for row in document["findings"]}
    assert result["ssh"]["detail"].startswith("2 of 2 nodes answered")
    assert result["network"]["detail"].startswith("5 of 5 connections between 2 nodes")
    assert result["all-reduce"]["ok"] is True
    assert [line["bytes"] for line in document["allreduce"]] == [64_000, 4_000_000, 64_000_000]
    assert all(line["bus_gb_s"] > 0 for line in document["allreduce"])
    assert cluster.ok("runs", "--json").json == runs, "a check is no run"


def test_doctor_does_not_measure_during_a_run(two_hosts: Gpuctl) -> None:
    two_hosts.script("sleeps.py", SLEEPS)
    run = two_hosts.ok("train", "--detach", "--json", "sleeps.py").json["run"]
    done = two_hosts("doctor", "--cluster", "default")
    assert done.status == 1
    assert f"the run {run} is still active" in done.err
    assert f"gpuctl stop {run}" in done.err
    assert "? all-reduce: not measured" in done.err
    two_hosts.ok("stop", run)


def test_doctor_names_processes_left_by_killed_runner(two_hosts: Gpuctl) -> None:
    two_hosts.script("sleeps.py", SLEEPS)
    run = two_hosts.ok("train", "--detach", "--json", "sleeps.py").json["run"]

    def rank_0() -> psutil.Process | None:
        result = [psutil.Process(pid) for pid in processes_with("sleeps.py", str(two_hosts.home))]
        return next((p for p in result if "-u" in p.cmdline() and p.environ().get("RANK") == "0"), None)

    rank = wait_for(rank_0, what="rank 0 at work")
    # Without its runner no process ends a rank.
    (record,) = two_hosts.home.rglob(f"runs/{run}/default-0/runner.json")
    runner = psutil.Process(json.loads(record.read_text())["pid"])
    runner.kill()
    psutil.wait_procs([runner], timeout=10)
    done = two_hosts("doctor", "--cluster", "--json")
    stale = [row for row in done.json["findings"] if "which is over, is left" in row["detail"]]
    assert {row["what"] for row in stale} == {"default-0"}
    assert any(f"(pid {rank.pid})" in row["detail"] for row in stale)
    assert all(row["fix"].startswith(f"gpuctl stop {run}; ") for row in stale)
    two_hosts("stop", run)
    wait_for(
        lambda: not processes_with("sleeps.py", str(two_hosts.home)),
        what="the end of what was left",
        deadline_s=20,
    )


def test_doctor_names_lost_node_and_checks_the_others(two_hosts: Gpuctl) -> None:
    server = next((two_hosts.home / "clusters").glob("*/local/default-1/server.json"))
    for pid in processes_with(str(server)):
        os.kill(pid, signal.SIGKILL)
    done = two_hosts("doctor", "--cluster", "--json")
    assert done.status == 1
    rows = {row["what"]: row for row in done.json["findings"]}
    assert rows["default-1"]["ok"] is False
    assert "gpuctl up" in rows["default-1"]["fix"]
    assert rows["network"]["ok"] is True
    assert rows["all-reduce"]["ok"] is None


@pytest.mark.skipif(lacking() is not None, reason=lacking() or "")
def test_doctor_reports_node_with_unreadable_environments(gpuctl: Gpuctl, tmp_path: Path) -> None:
    envs = "/home/ubuntu/.gpuctl-node/envs"
    with vms(tmp_path, count=2) as net:
        hosts_file, known_hosts = net.inventory()
        gpuctl.ok("up", "--hosts", str(hosts_file), "--known-hosts", str(known_hosts))
        assert gpuctl.ok("doctor", "--cluster", "--json").json["ok"], "no environment yet is no fault"
        record = f"{envs}/k/ready.json"
        net.hosts[1].root(
            f"mkdir -p {envs}/k && chown -R ubuntu {envs} && touch {record} && chmod 600 {record}"
        )
        done = gpuctl("doctor", "--cluster", "--json")
        gpuctl.ok("down", "--yes")
    assert done.status == 1
    rows = {row["what"]: row for row in done.json["findings"]}
    assert rows["gpu-1"]["ok"] is False
    assert rows["gpu-1"]["detail"] == "did not tell which environments it has"
    assert "Permission denied" in rows["gpu-1"]["fix"]
    assert rows["network"]["detail"].startswith("5 of 5 connections between 2 nodes"), "the rest is looked at"
    assert "torch" not in rows


def test_doctor_interrupted_leaves_no_process(two_hosts: Gpuctl) -> None:
    process = two_hosts.start("doctor", "--cluster")
    wait_for(lambda: processes_with("train.allreduce", str(two_hosts.home)), what="the all-reduce")
    interrupt(process)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    wait_for(
        lambda: not processes_with("train.allreduce", str(two_hosts.home)),
        what="the end of all ranks",
        deadline_s=20,
    )


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["doctor", "--cluster", "none"], 2, "There is no cluster none"),
        (["doctor", "--cluster", "--shape", "S"], 2, "gpuctl --cluster default doctor --shape"),
        (["--cluster", "none", "doctor"], 0, "cloud: not looked at"),
        (["--cluster", "none", "doctor", "--cluster"], 2, "There is no cluster none"),
        (["doctor"], 0, "Python:"),
    ],
)
def test_doctor_accepts_cluster_option_without_name(
    gpuctl: Gpuctl, words: list[str], status: int, message: str
) -> None:
    done = gpuctl(*words)
    assert (done.status, message in done.err) == (status, True), done.err
