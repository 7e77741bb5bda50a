"""The probe on the node: real processes that listen on loopback addresses and connect to each other."""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import remote
from inventories.errors import CorruptFile
from remote.checks.probe import Meeting, parse, silence_of
from remote.node.checks import probe as on_node

ROOT = Path(remote.__file__).parent.parent
TOKEN = "f" * 32
START = "from remote.node.__main__ import run; run(['probe'])"

SBIN = f"{os.environ['PATH']}:/usr/sbin:/sbin"

needs_127 = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.x without set-up")


@dataclass
class Probed:
    """A node's probe, spoken to as gpuctl does."""

    name: str
    address: str
    process: "subprocess.Popen[bytes]"
    opened: dict[str, Any] = field(default_factory=dict)

    def hear(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1].decode()
        return json.loads(line)

    def say(self, header: dict[str, Any]) -> None:
        self.process.stdin.write(json.dumps(header).encode() + b"\n")
        self.process.stdin.flush()

    def targets(self, *ports: int) -> list[dict[str, Any]]:
        ports = ports or tuple(self.opened["ports"])
        return [
            {"peer": self.name, "address": self.address, "port": port, "payload": port == ports[-1]}
            for port in ports
        ]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Probed]]:
    """Start a probe that listens at an address, `within` a command that runs it; end all processes afterwards."""
    with ExitStack() as stack:

        def started(
            name: str, address: str, *, rendezvous: int | None = None, within: tuple[str, ...] = ()
        ) -> Probed:
            process = subprocess.Popen(
                [*within, sys.executable, "-c", START],
                cwd=ROOT,
                env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            item = Probed(name, address, process)
            item.say(
                {
                    "name": name,
                    "address": address,
                    "master": address,
                    "token": TOKEN,
                    "rendezvous_port": rendezvous,
                    "high_ports": 2,
                }
            )
            item.opened = item.hear()
            return item

        yield started


def free_port(address: str) -> int:
    with socket.create_server((address, 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def serving(answer: Callable[[socket.socket], None], address: str = "127.0.0.1") -> Iterator[int]:
    """Run a foreign listener and yield its port."""
    server = socket.create_server((address, 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(60)


@needs_127
def test_probe_connects_all_nodes_on_every_port(start: Callable[..., Probed]) -> None:
    rendezvous = free_port("127.0.0.11")
    nodes = [
        start("a", "127.0.0.11", rendezvous=rendezvous),
        start("b", "127.0.0.12"),
        start("c", "127.0.0.13"),
    ]
    assert nodes[0].opened["ports"][0] == rendezvous
    assert [len(node.opened["ports"]) for node in nodes] == [3, 2, 2]
    for node in nodes:
        node.say(
            {"t": "peers", "targets": [t for other in nodes if other is not node for t in other.targets()]}
        )
    output = [node.hear() for node in nodes]
    assert [len(item["attempts"]) for item in output] == [4, 5, 5]
    assert {attempt["outcome"] for item in output for attempt in item["attempts"]} == {"connected"}
    for node, item in zip(nodes, output, strict=True):
        node.say({"t": "close"})
        assert node.process.wait(60) == 0
        answer = parse(node.name, node.opened, item)
        assert answer.health.interface == "lo"
        assert answer.health.stale == ()
    # The ranks listen on the probe's port: no socket of the probe may linger there.
    with socket.socket() as ranks:
        ranks.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ranks.bind(("127.0.0.11", rendezvous))
        ranks.listen()


def outcomes(node: Probed, targets: list[dict[str, Any]]) -> list[str]:
    node.say({"t": "peers", "targets": targets})
    return [attempt["outcome"] for attempt in node.hear()["attempts"]]


def test_probe_does_not_take_another_listener_for_the_peer(start: Callable[..., Probed]) -> None:
    node = start("a", "127.0.0.1")
    other = start("b", "127.0.0.1")

    def echo(connection: socket.socket) -> None:
        connection.sendall(connection.recv(100))

    def silence(connection: socket.socket) -> None:
        connection.recv(100)
        connection.recv(100)  # until the probe gives up

    with serving(echo) as echoes, serving(silence) as silent, serving(lambda _connection: None) as closes:
        targets = [
            *other.targets(echoes),
            *other.targets(silent),
            *other.targets(closes),
            {**other.targets()[0], "peer": "another"},
            *other.targets(free_port("127.0.0.1")),
        ]
        assert outcomes(node, targets) == ["stranger", "silent", "stranger", "stranger", "refused"]


def test_probe_reports_a_path_that_drops_large_packets_as_stalled(start: Callable[..., Probed]) -> None:
    node = start("a", "127.0.0.1")

    def swallow(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"b\n")
        while connection.recv(1 << 16):
            pass

    with serving(swallow) as port:
        target = {"peer": "b", "address": "127.0.0.1", "port": port}
        assert outcomes(node, [{**target, "payload": False}, {**target, "payload": True}]) == [
            "connected",
            "stalled",
        ]


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux")
@pytest.mark.skipif(shutil.which("iptables", path=SBIN) is None, reason="needs iptables")
def test_probe_of_a_closed_network_ends_before_its_silence_limit(
    start: Callable[..., Probed],
) -> None:
    closed = f'PATH={SBIN}; ip link set lo up; iptables -A INPUT -p tcp --syn -j DROP; exec "$@"'
    node = start("a", "127.0.0.1", within=("unshare", "--net", "sh", "-ec", closed, "sh"))
    targets = [
        {"peer": "b", "address": f"127.0.1.{number}", "port": port, "payload": False}
        for number in range(129)
        for port in (20001, 20002)
    ]
    began = time.monotonic()
    assert set(outcomes(node, targets)) == {"timeout"}
    assert time.monotonic() - began < silence_of(130)


def test_silence_of_grows_with_the_number_of_nodes() -> None:
    assert [silence_of(nodes) for nodes in (2, 256, 257, 1000)] == [22, 22, 42, 82]


def test_probe_raises_the_open_file_limit_for_many_peers(start: Callable[..., Probed]) -> None:
    few_files = ("sh", "-c", 'ulimit -Sn 128; exec "$@"', "sh")
    node, other = (start(name, "127.0.0.1", within=few_files) for name in "ab")
    assert set(outcomes(node, other.targets() * 250)) == {"connected"}


def test_probe_names_the_holder_of_a_taken_port(start: Callable[..., Probed]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        node = start("a", "127.0.0.1", rendezvous=port)
        (taken,) = node.opened["taken"]
        assert len(node.opened["ports"]) == 2
        assert (taken["port"], taken["problem"]) == (port, "in use")
        if sys.platform == "linux":
            assert f"(pid {os.getpid()})" in taken["holder"]


def test_probe_reports_an_address_of_another_machine(start: Callable[..., Probed]) -> None:
    node = start("a", "192.0.2.1")
    assert node.opened["ports"] == []
    assert [taken["problem"] for taken in node.opened["taken"]] == ["not ours", "not ours"]


def test_probe_sends_nothing_to_an_unknown_client(start: Callable[..., Probed]) -> None:
    node = start("a", "127.0.0.1")
    with socket.create_connection(("127.0.0.1", node.opened["ports"][0]), timeout=60) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with suppress(ConnectionResetError):
            assert stranger.recv(100) == b""


@pytest.mark.parametrize("say_peers", [False, True])
def test_probe_ends_when_stdin_is_closed(start: Callable[..., Probed], say_peers: bool) -> None:
    node = start("a", "127.0.0.1")
    if say_peers:
        assert outcomes(node, []) == []
    node.process.stdin.close()
    assert node.process.wait(60) == 0


@pytest.mark.parametrize(
    ("error", "seconds", "outcome"),
    [
        (OSError(errno.ECONNREFUSED, "x"), 0.1, "refused"),
        (OSError(errno.EHOSTUNREACH, "x"), 0.1, "rejected"),
        (OSError(errno.EHOSTUNREACH, "x"), 3.0, "no host"),
        (OSError(errno.ENETUNREACH, "x"), 0.0, "no route"),
        (OSError(errno.EPERM, "x"), 0.0, "denied"),
        (OSError(errno.ETIMEDOUT, "x"), 2.0, "timeout"),
        (socket.gaierror(socket.EAI_NONAME, "x"), 0.1, "unresolved"),
        (OSError(errno.EPROTO, "Protocol error"), 0.1, "Protocol error"),
    ],
)
def test_classify_maps_connect_errors_to_outcomes(error: OSError, seconds: float, outcome: str) -> None:
    assert on_node.classify(error, seconds) == outcome


def test_meeting_ends_without_nodes_that_left_or_are_late() -> None:
    meeting: Meeting[int] = Meeting(["a", "b", "c"], deadline_s=60)
    assert meeting.arrive("a", 1)
    meeting.leave("b")
    waiting: list[dict[str, int]] = []
    thread = threading.Thread(target=lambda: waiting.append(meeting.wait()))
    thread.start()
    assert meeting.arrive("c", 3)
    thread.join(10)
    assert waiting == [{"a": 1, "c": 3}]
    assert not meeting.arrive("b", 2)
    assert meeting.wait() == {"a": 1, "c": 3}, "the same for all who wait"

    began = time.monotonic()
    late: Meeting[int] = Meeting(["a", "b"], deadline_s=0.2)
    late.arrive("a", 1)
    assert late.wait() == {"a": 1}
    assert 0.15 < time.monotonic() - began < 10


def test_parse_refuses_a_malformed_probe_answer() -> None:
    with pytest.raises(KeyError):
        parse("a", {"taken": []}, {"attempts": []})
    with pytest.raises(CorruptFile):
        parse(
            "a",
            {"taken": [{"port": 1}]},
            {"attempts": [], "health": {"hostname_addresses": None, "stale": []}},
        )
