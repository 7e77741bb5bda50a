"""Test that every conversation with an endlessly talking node ends in time and within the memory limit."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import paramiko
import pytest
from clocks import StepClock
from node_here import NodeHere

from inventories.disk.store import ClusterFolder
from remote.checks.readiness import wait_for_cloud_init
from remote.errors import BadAnswer, ConnectionLost, RemoteError
from remote.files.pull import receive
from remote.files.receive import FileReceiver
from remote.runs.monitor import LAST_WORDS
from remote.sessions.limits import SLOWEST_BYTES_PER_S, BoundedStream, Bounds, Endless, buffered
from remote.sessions.session import Node
from remote.shared import frames
from remote.shared.greeting import READY
from remote.transport.fabric_connection import PinnedConnection
from remote.transport.ssh import SshTransport

FRAME = frames.encode({"t": "beat"})


class Says:
    """A channel that delivers `at_once` bytes every `every_s` seconds, without end."""

    def __init__(self, clock: StepClock, said: bytes, *, at_once: int, every_s: float) -> None:
        self.clock = clock
        self.said = said
        self.at_once = at_once
        self.every_s = every_s
        self.position = 0
        self.timeout_s: float | None = None

    def settimeout(self, timeout: float | None, /) -> None:
        self.timeout_s = timeout

    def recv(self, nbytes: int, /) -> bytes:
        if self.timeout_s is not None and self.every_s > self.timeout_s:
            self.clock.sleep(self.timeout_s)
            raise TimeoutError
        self.clock.sleep(self.every_s)
        begin = self.position % len(self.said)
        data = self.said[begin : begin + min(self.at_once, nbytes)]
        self.position += len(data)
        return data


def heard(says: Says, bounds: Bounds, *, silence_s: float = 10.0) -> int:
    """Return the number of frames before the end; raise the error that ends it."""
    stream = BoundedStream(says, bounds, silence_s=silence_s, now=says.clock.now)
    reader, count = buffered(stream), 0
    for _ in frames.decode(reader.readline, reader.read):
        count += 1
        stream.next_frame()
        assert says.clock.now() < 100_000
    return count


def test_stream_of_endless_frames_ends_by_time_and_bytes() -> None:
    clock = StepClock()
    with pytest.raises(Endless, match="went on for 30 s"):
        heard(Says(clock, FRAME, at_once=100, every_s=1.0), Bounds(total_s=30))
    assert 30 <= clock.time < 40
    with pytest.raises(Endless, match="more than 0 MB"):
        heard(Says(StepClock(), FRAME * 1000, at_once=5000, every_s=0.001), Bounds(max_bytes=200_000))


def test_stream_times_out_on_a_frame_sent_byte_by_byte() -> None:
    clock = StepClock()
    with pytest.raises(TimeoutError, match="a message did not end"):
        heard(Says(clock, b"x" * 1000, at_once=1, every_s=9.0), Bounds(max_bytes=None))
    assert clock.time < 30


def test_stream_reports_silence() -> None:
    clock = StepClock()
    with pytest.raises(TimeoutError, match="nothing was heard for 10 s"):
        heard(Says(clock, FRAME, at_once=1, every_s=11.0), Bounds(total_s=10))
    assert clock.time == 10


def test_stream_does_not_count_time_that_this_process_did_not_see() -> None:
    """The clock stands while the process is stopped; the wait for data has then ended all the same."""
    clock = StepClock()
    says = Says(clock, FRAME, at_once=100, every_s=1.0)
    stopped, receive = [True, True], says.recv

    def recv(nbytes: int, /) -> bytes:
        if stopped:
            stopped.pop()
            raise TimeoutError
        return receive(nbytes)

    says.recv = recv  # type: ignore[method-assign]
    assert buffered(BoundedStream(says, Bounds(), silence_s=10, now=clock.now)).read(4) == FRAME[:4]
    assert not stopped


def test_stream_allows_more_time_for_large_frames() -> None:
    body = b"b" * 1_000_000
    large = frames.encode({"t": "file"}, body)
    says = Says(StepClock(), large, at_once=int(2 * SLOWEST_BYTES_PER_S), every_s=1.0)
    stream = BoundedStream(says, Bounds(total_s=20, grows=True), silence_s=10, now=says.clock.now)
    reader = buffered(stream)
    assert next(frames.decode(reader.readline, reader.read))[1] == body
    assert says.clock.time > 100


def test_stop_bound_allows_a_log_backlog_over_a_slow_link() -> None:
    much = frames.encode({"t": "file"}, b"b" * 1_000_000)
    says = Says(StepClock(), much, at_once=int(1.2 * SLOWEST_BYTES_PER_S), every_s=1.0)
    stream = BoundedStream(says, LAST_WORDS, silence_s=15, now=says.clock.now)
    reader = buffered(stream)
    for _, _ in zip(range(4), frames.decode(reader.readline, reader.read), strict=False):
        stream.next_frame()
    assert LAST_WORDS.total_s is not None
    assert says.clock.time > LAST_WORDS.total_s


def test_bounded_stream_works_with_python_buffered_readers() -> None:
    clock = StepClock()
    says = Says(clock, b"ab\ncd\n", at_once=4, every_s=0)
    reader = buffered(BoundedStream(says, Bounds(), silence_s=1, now=clock.now))
    assert (reader.readline(), reader.read(7)) == (b"ab\n", b"cd\nab\nc")


# A node's names.


def test_intake_refuses_too_many_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.files.receive.MAX_NAMES", 100)
    intake = FileReceiver(tmp_path / "in", max_bytes=1000)
    with pytest.raises(BadAnswer, match="more than 100 files"):
        for number in range(200):
            intake.chunk(f"file-{number}", 0, b"")
    assert len(list((tmp_path / "in").iterdir())) <= 64
    intake.close()
    assert list((tmp_path / "in").iterdir()) == []


# A server that accepts a command and never confirms it.


class Mute(paramiko.ServerInterface):
    """Lets everybody in, and never answers a request to run a command."""

    def __init__(self) -> None:
        self.over = Event()

    def check_auth_password(self, username: str, password: str) -> int:
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.over.wait(60)
        return False


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr("remote.transport.ssh.OPEN_TIMEOUT_S", 0.5)
    ours, theirs = socket.socketpair()
    server, interface = paramiko.Transport(theirs), Mute()
    server.add_server_key(paramiko.ECDSAKey.generate())
    server.start_server(server=interface, event=Event())
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.MissingHostKeyPolicy())
    client.connect("mute", username="me", password="open", sock=ours, look_for_keys=False, allow_agent=False)  # type: ignore[arg-type]
    machine = NodeHere(Path()).machine
    connection = PinnedConnection(machine, ClusterFolder(Path("nowhere")))
    connection.client, connection.transport = client, client.get_transport()
    yield Node(machine, SshTransport(connection))
    interface.over.set()
    client.close()
    server.close()


def test_ask_times_out_when_the_server_takes_no_command(mute: Node) -> None:
    ended: list[Exception] = []

    def ask() -> None:
        try:
            mute.call("facts", {})
        except ConnectionLost as error:
            ended.append(error)

    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(20)
    [error] = ended
    assert str(error).startswith("gpu-0: the connection broke: the command was not taken within 0 s. ")
    assert "lower this computer's MTU" in str(error)


# A real one.


@pytest.fixture
def node(node: Node) -> Iterator[Node]:
    """Close the node after 60 s, so that a faulty test fails and does not hang."""
    late = Timer(60, node.close)
    late.start()
    yield node
    late.cancel()


def hostile(node: Node, folder: Path, code: str, *, silent: bool = False) -> Node:
    """Replace the node's interpreter by `code`; unless `silent`, it first prints the greeting."""
    path = folder / "python"
    path.write_text(
        f"#!/bin/sh\n{code}\n" if silent else f"#!/bin/sh\nprintf '%s0\\n' '{READY.decode()}'\n{code}\n"
    )
    path.chmod(0o755)
    node.python = str(path)
    return node


FLOOD = """yes '{"t":"beat"}'"""
DRIPS = """printf '{'; while sleep 0.2; do printf ' '; done"""
BEATS = """while sleep 0.2; do echo '{"t":"beat"}'; done"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        (FLOOD, BadAnswer, "expected one answer to facts, got more"),
        (BEATS, BadAnswer, "expected one answer to facts, got more"),
        (DRIPS, ConnectionLost, "a message did not end|went on for"),
        ("tr '\\0' x </dev/zero", BadAnswer, "does not end: it sent more than 4 MB"),
        ("echo '{}'; yes >&2", RemoteError, "."),
    ],
    ids=["flood", "beats", "drips", "one-line", "stderr"],
)
def test_ask_refuses_endless_or_multiple_answers(
    node: Node, tmp_path: Path, code: str, error: type[Exception], says: str
) -> None:
    began = time.monotonic()
    with pytest.raises((error, BadAnswer), match=says):
        hostile(node, tmp_path, code).call("facts", {}, timeout_s=3)
    assert time.monotonic() - began < 40, "long before the node of the test is closed"


@pytest.mark.slow
def test_printing_without_end_before_the_greeting_is_refused(node: Node, tmp_path: Path) -> None:
    with pytest.raises(BadAnswer, match="prints without end"):
        hostile(node, tmp_path, "yes", silent=True).call("facts", {}, timeout_s=30)


@pytest.mark.slow
def test_readiness_wait_and_receive_end_on_an_endless_node(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cloud-init that outlasts its own deadline, and a folder without end."""
    monkeypatch.setattr("remote.checks.readiness.SLACK_S", 1.0)
    with pytest.raises(BadAnswer, match="ready does not end: it went on for"):
        wait_for_cloud_init(hostile(node, tmp_path, BEATS), deadline_s=1, say=lambda _: None)
    monkeypatch.setattr("remote.sessions.limits.BRING_S", 1.0)
    monkeypatch.setattr("remote.sessions.limits.HEADERS_BYTES", 1_000_000)
    chunk: dict[str, Any] = {"t": "chunk", "path": "a", "offset": 0}
    again = frames.encode(chunk).decode().strip()
    with pytest.raises(BadAnswer, match="send does not end: it sent more than 2 MB"):
        receive(
            hostile(node, tmp_path, f"yes '{again}'"),
            "there",
            FileReceiver(tmp_path / "in", max_bytes=1_000_000),
        )
    assert not any(path.is_file() for path in (tmp_path / "in").rglob("*"))
