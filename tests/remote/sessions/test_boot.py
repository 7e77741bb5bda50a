"""Machines that do not let us in: which stage is named, and when it is given up."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import a_machine

from inventories.disk.store import ClusterFolder
from remote.errors import Unreachable
from remote.sessions.connect import CONNECT_TIMEOUT_S
from remote.sessions.wait_for_boot import connect_booting, span


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Yield a port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def connect(tmp_path: Path, port: int, deadline_s: float, said: list[str]) -> None:
    cluster = ClusterFolder(tmp_path)
    cluster.known_hosts_path.touch()
    machine = a_machine(name="a-0", port=port, user="ubuntu", gpus=None)
    connect_booting(machine, cluster, deadline_s=deadline_s, say=said.append).close()


def test_connect_names_a_closed_port_at_the_deadline(tmp_path: Path, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    output: list[str] = []
    began = time.monotonic()
    with pytest.raises(
        Unreachable, match=r"no TCP connection: Connection refused.*It was waited for \d s while it booted\.$"
    ):
        connect(tmp_path, port, 1.0, output)
    assert time.monotonic() - began < 30
    assert output == [], "a wait as short as this is not worth a word"


def test_connect_without_ssh_banner_ends_at_the_deadline(tmp_path: Path, listener: socket.socket) -> None:
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"the port answers, but SSH failed in its banner"):
        connect(tmp_path, listener.getsockname()[1], 1.5, [])
    assert 1 <= time.monotonic() - began < CONNECT_TIMEOUT_S - 1, "it is not waited for as at other times"


@pytest.mark.slow
def test_connect_logs_the_stage_it_waits_for(tmp_path: Path, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    output: list[str] = []
    with pytest.raises(Unreachable):
        connect(tmp_path, port, 18, output)
    (line,) = output
    assert line.startswith(
        f"waiting for a-0 (ubuntu@127.0.0.1:{port}): no TCP connection: Connection refused … ("
    )
    assert line.endswith(" s, at most 18 s)")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (45, "45 s"), (119.4, "119 s"), (120, "2 minutes"), (900, "15 minutes")],
)
def test_span_formats_seconds_and_minutes(seconds: float, text: str) -> None:
    assert span(seconds) == text
