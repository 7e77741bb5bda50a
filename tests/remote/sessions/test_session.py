"""Shell commands on a node, whose lines somebody listens to, and the start of the nodes' part."""

import io
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support import BIN, Gpuctl

from remote.errors import ConnectionLost
from remote.sessions.login_shell import Greeting, read_greeting
from remote.sessions.session import Node
from remote.shared.greeting import BEGIN, INSTALLED, READY, RUNS
from remote.transport import Process

FACTS = {"private_ip": "127.0.0.1", "peers": ["127.0.0.1"], "firewall": False}


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


class LosesProgram:
    """A connection to a machine from which the nodes' part is removed right after its greeting."""

    def __init__(self, node: Node, programs: Path) -> None:
        self._transport, self._programs = node.transport, programs
        self.starts = 0

    def start(self, *arguments: Any, **options: Any) -> Process:
        """Start a command, and remove the nodes' part as it begins."""
        process = self._transport.start(*arguments, **options)
        send, self.starts = process.send, self.starts + 1

        def send_after_removal(data: bytes) -> int:
            if data.startswith(BEGIN) and self.starts == 1:
                shutil.rmtree(self._programs)
            return send(data)

        process.send = send_after_removal
        return process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def test_program_removed_after_the_greeting_is_sent_all_the_same(node: Node) -> None:
    home = node.run("echo $HOME").stdout.decode().strip()
    node.call("facts", FACTS)
    again = Node(node.machine, node.transport)
    again.transport = losing = LosesProgram(node, Path(home, ".gpuctl-node", "bin"))
    assert again.call("facts", FACTS)["facts"]["boot_id"]
    assert losing.starts == 2
    assert again.call("facts", FACTS)["facts"]["boot_id"]


def test_greeting_of_a_start_up_file_is_not_believed() -> None:
    greeting = Greeting()
    read_greeting(io.BytesIO(INSTALLED + RUNS + READY), greeting, "gpu-0")
    assert (greeting.installed, greeting.ready) == (False, True)
    read_greeting(io.BytesIO(RUNS + INSTALLED + READY), later := Greeting(), "gpu-0")
    assert later.installed


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
