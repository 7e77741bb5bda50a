"""Test `top`: one sample as a document or text, a live table that outlives a lost node, and a run's usage log."""

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from support import Gpuctl, processes_with, wait_for
from terminal import Terminal

from tests.fakes import nvidia_smi

pytestmark = pytest.mark.slow

LIVE = "import sys\nfrom gpuctl.__main__ import main\nsys.argv = ['gpuctl', 'top', *sys.argv[1:]]\nsys.exit(main())\n"
NODE = {"node", "rank", "state", "error", "usage"}
USAGE = {
    "cpus", "cpu_utilization", "load_1m", "memory_used_bytes", "memory_total_bytes", "interfaces",
    "received_bytes_per_s", "sent_bytes_per_s", "disk_free_bytes", "gpus",
}  # fmt: skip
GPU = {
    "index", "name", "utilization", "memory_used_bytes", "memory_total_bytes", "temperature_c", "power_w",
}  # fmt: skip
BUSY = """
import time
limit = time.monotonic() + 3
while time.monotonic() < limit:
    sum(range(100_000))
"""


def samplers(gpuctl: Gpuctl, node: str) -> list[psutil.Process]:
    """Return a local host's processes that measure usage."""
    local = f"{gpuctl.home}/clusters/default/local/{node}/"
    result = [psutil.Process(pid) for pid in processes_with(local)]
    return [process for process in result if process.cmdline()[-1] == "usage"]


def server_of(gpuctl: Gpuctl, rank: int) -> psutil.Process:
    port = gpuctl.ok("status", "--json").json["machines"][rank]["port"]
    listening = [
        net_connection
        for net_connection in psutil.net_connections("tcp")
        if net_connection.status == psutil.CONN_LISTEN
    ]
    [pid] = [net_connection.pid for net_connection in listening if net_connection.laddr.port == port]
    return psutil.Process(pid)


def test_top_json_has_one_sample_per_node(cluster: Gpuctl) -> None:
    document = cluster.ok("top", "--json").json
    assert set(document) == {"cluster", "nodes"}
    assert [(node["node"], node["rank"], node["state"], node["error"]) for node in document["nodes"]] == [
        ("default-0", 0, "ok", None),
        ("default-1", 1, "ok", None),
    ]
    for node in document["nodes"]:
        assert set(node) == NODE
        assert set(node["usage"]) == USAGE
        assert node["usage"]["gpus"] == []
        assert node["usage"]["load_1m"] >= 0
        if sys.platform == "linux":
            assert 0 <= node["usage"]["cpu_utilization"] <= 1
            assert 0 < node["usage"]["memory_used_bytes"] < node["usage"]["memory_total_bytes"]
            assert node["usage"]["interfaces"] == ["lo"], "the way to the other host"
            assert node["usage"]["received_bytes_per_s"] >= 0
    assert not samplers(cluster, "default-0")


def test_top_rank_option_prints_one_node_as_text(cluster: Gpuctl) -> None:
    text = cluster.ok("top", "--rank", "1").out
    assert "default-1" in text
    assert "default-0" not in text
    assert "GPU" not in text, "columns that say nothing are left out"
    unknown = cluster("top", "--rank", "7")
    assert (unknown.status, "no machine of rank or name" in unknown.err) == (2, True)


def test_top_updates_live_table_until_interrupt(cluster: Gpuctl) -> None:
    with Terminal(LIVE, "--every", "0.2", GPUCTL_HOME=str(cluster.home)) as terminal:
        terminal.wait_for("GB")
        [sampler] = wait_for(lambda: samplers(cluster, "default-1"), what="one conversation", deadline_s=10)
        for _ in range(3):
            terminal.seen = ""
            terminal.wait_for("disk free")
        assert sampler.is_running(), "one command for all of them"
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.seen
        assert terminal.seen.endswith("\x1b[?25h"), "the cursor is back"
    wait_for(lambda: not samplers(cluster, "default-1"), what="the end of the sampler", deadline_s=10)


def test_top_restarts_killed_sampler(cluster: Gpuctl) -> None:
    with Terminal(LIVE, "--every", "0.2", GPUCTL_HOME=str(cluster.home)) as terminal:
        [sampler] = wait_for(lambda: samplers(cluster, "default-1"), what="a conversation", deadline_s=10)
        terminal.wait_for("GB")
        sampler.kill()
        terminal.wait_for("default-1 is lost")
        wait_for(
            lambda: [item for item in samplers(cluster, "default-1") if item.pid != sampler.pid],
            what="a new conversation",
            deadline_s=15,
        )
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.wait() == 0


def test_top_marks_lost_host_and_keeps_the_other(two_hosts: Gpuctl) -> None:
    with Terminal(LIVE, "--every", "0.2", GPUCTL_HOME=str(two_hosts.home)) as terminal:
        terminal.wait_for("GB")
        server_of(two_hosts, 1).kill()
        terminal.wait_for("default-1 is lost")
        terminal.seen = ""
        # Tables are still drawn, and node 0 is well.
        terminal.wait_for("ok")
        terminal.wait_for("lost")
        assert samplers(two_hosts, "default-0")
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.wait() == 0
    done = two_hosts("top", "--json")
    assert done.status == 1
    zero, item = done.json["nodes"]
    assert zero["state"] == "ok"
    assert (item["state"], item["usage"]) == ("lost", None)
    assert "default-1" in item["error"]
    assert item["error"] in done.err


def test_top_and_results_show_gpu_use(gpuctl: Gpuctl, tmp_path: Path) -> None:
    folder = nvidia_smi.install(tmp_path / "smi")
    path = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    gpuctl.ok("up", "--provider", "local", "--count", "2", env=path)
    nodes = gpuctl.ok("top", "--json").json["nodes"]
    assert [[gpu["utilization"] for gpu in node["usage"]["gpus"]] for node in nodes] == [[0.87], [None]]
    assert all(set(gpu) == GPU for node in nodes for gpu in node["usage"]["gpus"])
    assert "141 W" in gpuctl.ok("top").out

    gpuctl.script("busy.py", BUSY)
    result = gpuctl.ok("train", "--json", "busy.py").json
    usage = result["usage"]
    assert set(usage) == {"gpu_utilization", "cpu_utilization", "nodes", "one_machine"}
    assert usage["gpu_utilization"] == 0.87
    assert [node["node"] for node in usage["nodes"]] == ["default-0", "default-1"]
    [gpu] = usage["nodes"][0]["gpus"]
    assert (gpu["name"], gpu["memory_peak_bytes"]) == ("NVIDIA A10", 20314 * 1024**2)
    assert usage["nodes"][1]["gpus"][0]["utilization"] is None
    if sys.platform == "linux":
        assert usage["nodes"][0]["cpu_utilization"] > 0.1
    assert (gpuctl.run_folder(result["run"]) / "usage" / "default-1.jsonl").exists()
    text = gpuctl.ok("results").out
    assert "default-0  87 % (peak memory 21.3 of 24.1 GB)" in text
    wait_for(
        lambda: not processes_with(str(folder / "nvidia-smi")), what="the end of nvidia-smi", deadline_s=10
    )
    assert gpuctl.ok("results", "--json").json["runs"][0]["usage"] == usage
