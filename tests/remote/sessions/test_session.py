"""Shell commands on a node, whose lines somebody listens to."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import BIN, Gpuctl

from remote.errors import ConnectionLost
from remote.sessions.session import Node


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("a bug")])
def test_run_raises_the_listeners_error_and_keeps_the_connection(
    node: Node, stream: str, error: Exception
) -> None:
    received: list[tuple[str, bytes]] = []

    def listen(name: str, line: bytes) -> None:
        received.append((name, line))
        if name == stream:
            raise error

    to = " >&2" if stream == "stderr" else ""
    with pytest.raises(type(error)) as caught:
        node.run(f"while echo line{to}; do :; done", listen)
    assert caught.value is error
    assert received == [(stream, b"line")]
    assert node.run("echo fine", lambda *_: None).stdout == b"fine\n"


def test_run_raises_when_listeners_of_both_streams_fail(node: Node) -> None:
    both = threading.Barrier(2)

    def listen(name: str, _: bytes) -> None:
        both.wait(30)
        raise OSError(name)

    with pytest.raises(OSError, match=r"^std(out|err)$"):
        node.run("echo a; echo b >&2; cat /dev/zero", listen)


def test_run_times_out_and_keeps_the_connection(node: Node) -> None:
    with pytest.raises(ConnectionLost, match=r"`exec sleep 60` did not end within 0 s"):
        node.run("exec sleep 60", timeout_s=0.2)
    assert node.run("exit 3", timeout_s=60).exit_code == 3, "the connection is there for the next"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_exec_reports_a_full_local_disk(cluster: Gpuctl) -> None:
    command = [BIN / "gpuctl", "exec", "--rank", "0", "--", "seq 200000; echo ended >&2"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=cluster.env)
    assert (done.returncode, done.stderr) == (1, "error: No space left on device.\n")


@pytest.mark.slow
def test_exec_to_a_closed_pipe_is_no_error(cluster: Gpuctl) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [BIN / "gpuctl", "exec", "--rank", "0", "--", "seq 200000; echo ended >&2"]
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, env=cluster.env)
    assert (done.returncode, done.stderr) == (0, "ended\n")
