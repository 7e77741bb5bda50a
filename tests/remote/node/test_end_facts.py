"""Test a node's facts around a rank's end: control groups, the kernel's log, NCCL's log."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from remote.node.runs import end_facts, nccl_log

LOG = """6,10,900000,-;Killed process 5 (old) total-vm:9kB, anon-rss:1kB, file-rss:0kB
6,11,5000000,-;memory: usage 900kB, limit 900kB, failcnt 7
6,11,5000000,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=77,uid=0
3,12,5000001,-;Memory cgroup out of memory: Killed process 77 (python) total-vm:900kB, anon-rss:800kB, file-rss:0kB
6,13,6000000,-;Out of memory: Killed process 78 (other)
 SUBSYSTEM=memory
"""


def test_killed_process_is_found_in_the_kernels_log() -> None:
    local = end_facts.last_kill(LOG, 77, 4.0)
    assert local == {
        "pid": 77,
        "killed_process": "python",
        "killed_bytes": 800 * 1024,
        "used_up": "group",
        "memory_limit_bytes": 900 * 1024,
    }
    other = end_facts.last_kill(LOG, 99, 4.0)
    assert (other["pid"], other["killed_process"], other["used_up"]) == (78, "other", "node")
    assert end_facts.last_kill(LOG, 5, 4.0)["pid"] == 78, "that was before"
    assert end_facts.last_kill("", 77, 4.0) == {}


@pytest.mark.parametrize("name", ["memory.events", "memory.oom_control"])
def test_kills_are_counted_by_control_group(tmp_path: Path, name: str) -> None:
    assert end_facts.kill_count(tmp_path) is None
    (tmp_path / name).write_text("oom 7\noom_kill 3\noom_group_kill 1\n")
    assert end_facts.kill_count(tmp_path) == 3


def test_limit_is_the_least_of_the_groups_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_facts, "CGROUPS", tmp_path)
    group = tmp_path / "user.slice" / "session.scope"
    group.mkdir(parents=True)
    assert end_facts.memory_limit(group) is None
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("1048576\n")
    assert end_facts.memory_limit(group) == 1048576
    (group.parent / "memory.max").write_text(f"{2**62}\n")
    assert end_facts.memory_limit(group) is None, "it has all of the machine's"


def test_facts_of_a_process_that_ends_are_told(tmp_path: Path) -> None:
    facts = end_facts.EndFacts(os.getpid())
    report = facts.document(str(tmp_path / "none.log"), "ens5")
    assert report["nccl_interfaces"] == ["ens5"]
    assert report["memory_kill_at"] is None
    assert report["memory_bytes"] > 0
    assert 0 < report["shm_least_free_bytes"] <= report["shm_bytes"]


def test_limits_are_read_of_a_process_that_has_just_ended(tmp_path: Path) -> None:
    script = "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as rank:
        facts = end_facts.EndFacts(rank.pid)
        rank.stdout.readline()
        rank.stdin.close()
        os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
        facts.look_at_limits()
        assert facts.document(str(tmp_path / "none.log"), "")["address_space_bytes"] == 3 << 30


def test_interfaces_and_the_last_warning_are_read_from_nccls_log(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    assert nccl_log.network(str(log)) == ([], "")
    log.write_text(
        "h:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ens5\n"
        "h:1:1 [0] NCCL INFO Bootstrap : Using ens5:10.0.0.4<0>\n"
        "h:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB ens5:10.0.0.4<0>\n"
        "h:1:2 [0] misc/socket.cc:483 NCCL WARN first\n"
        "h:1:2 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.5<41> failed : No route\n"
        "h:1:2 [0] NCCL INFO transport.cc:126 -> 2\n"
    )
    assert nccl_log.network(str(log)) == (
        ["ens5:10.0.0.4", "mlx5_0:1", "mlx5_1:1"],
        "socketStartConnect: Connect to 10.0.0.5<41> failed : No route",
    )
    log.write_text(
        "h NCCL INFO Bootstrap: Using eth0:fd00::4<0>\nh NCCL INFO NET/Socket : Using [0]eth0:fd00::4<0>\n"
    )
    assert nccl_log.network(str(log)) == (["eth0:fd00::4"], "")
