"""Test the health that a node reports with the probe: listeners, and leftovers of earlier runs."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import wait_for

from remote.node import listening, process
from remote.node.checks import health
from remote.shared.files import write_json

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what it reads is Linux's /proc")

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12345 1 0000000000000000
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 23456 1 0000000000000000
   2: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 34567 1 0000000000000000
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 45678
   1: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 56789
"""  # noqa: E501 - the kernel's lines


@pytest.mark.skipif(
    sys.byteorder != "little", reason="the kernel prints addresses in the machine's byte order"
)
def test_parse_reads_proc_net_tcp_tables() -> None:
    assert listening.parse(TCP) == [("127.0.0.1", 8080, "12345"), ("0.0.0.0", 22, "23456")]
    assert listening.parse(TCP6) == [("::1", 53, "45678"), ("::", 22, "56789")]
    assert listening.parse("") == []


def test_listening_names_port_pid_and_command() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (row,) = [row for row in listening.read() if row["port"] == port]
        assert (row["address"], row["pid"]) == ("127.0.0.1", os.getpid())
        assert "python" in row["command"]
    assert [row for row in listening.read() if row["port"] == port] == []


def test_listening_and_stale_are_empty_without_proc(tmp_path: Path) -> None:
    assert listening.read(tmp_path / "none") == []
    assert health.stale(proc=tmp_path / "none") == []


@contextmanager
def rank(run_dir: Path) -> Iterator[int]:
    """A process as a run leaves it, listening; its pid."""
    code = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "GPUCTL_RUN_ID": "R1", "GPUCTL_RUN_DIR": str(run_dir)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout.readline() == b"\n"
            yield child.pid
        finally:
            child.kill()


def test_rank_whose_runner_died_is_stale(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "R1" / "node"
    run_dir.mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as runner, rank(run_dir) as pid:
        birth = process.birth(runner.pid)
        identity = {"pid": runner.pid, "birth": birth, "boot_id": process.boot_id()}
        write_json(run_dir / "runner.json", identity)
        assert health.stale(home=tmp_path) == [], "the run is going on"
        runner.kill()
        wait_for(lambda: process.birth(runner.pid) is None, what="the runner's end")
        (result,) = health.stale(home=tmp_path)
        assert (result["pid"], result["run"], result["gpu"]) == (pid, "R1", False)
        assert len(result["ports"]) == 1
        assert result["command"].startswith(f"{sys.executable} -c")
        assert health.stale(home=tmp_path / "another") == [], "a run of another node on this machine"
    assert health.stale(home=tmp_path) == []


def test_stale_reports_a_process_that_holds_a_gpu(tmp_path: Path) -> None:
    home, proc = tmp_path / "home", tmp_path / "proc"
    for pid, target in ((7, "/dev/nvidia0"), (8, "/dev/nvidiactl")):
        (proc / str(pid) / "fd").mkdir(parents=True)
        (proc / str(pid) / "fd" / "3").symlink_to(target)
        variables = f"GPUCTL_RUN_ID=R1\0GPUCTL_RUN_DIR={home}/runs/R1/n\0"
        (proc / str(pid) / "environ").write_text(variables)
        (proc / str(pid) / "cmdline").write_text("python3\0train.py\0")
    result = health.stale(home=home, proc=proc)
    assert [(item["pid"], item["command"], item["gpu"]) for item in result] == [
        (7, "python3 train.py", True),
        (8, "python3 train.py", False),
    ]


def test_addresses_of_and_mtu_of_read_name_and_interface() -> None:
    assert health.addresses_of("localhost") == ["127.0.0.1"]
    assert health.addresses_of("no-such-host.invalid") == []
    assert health.mtu_of("lo") == int(Path("/sys/class/net/lo/mtu").read_text())
    assert health.mtu_of("none0") is None


def test_within_returns_none_after_the_time_limit() -> None:
    import threading

    never = threading.Event()
    assert health.within(0.05, lambda: [str(never.wait(5))]) is None
    never.set()
