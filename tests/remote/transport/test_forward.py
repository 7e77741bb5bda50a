"""A port of this computer that leads to a port of a machine's loopback, over SSH."""

import socket
import sys

import pytest

from remote.errors import PortTaken
from remote.sessions.session import Node
from remote.transport.port_forward import forward

UPPER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
for _ in range(2):
    peer, _ = listener.accept()
    said = b""
    while data := peer.recv(65536):
        said += data
    peer.sendall(said.upper())
    peer.close()
"""
"""A server that answers after the end of its input."""


def asked(port: int, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        peer.sendall(text)
        peer.shutdown(socket.SHUT_WR)
        output = b""
        while data := peer.recv(65536):
            output += data
        return output


def test_forward_passes_both_directions_and_their_ends(node: Node) -> None:
    server = node.transport.start(f"exec {sys.executable} -c '{UPPER}'")
    server.settimeout(20)
    existing = int(server.recv(100))
    large = b"abc" * 1_000_000
    with forward(node.transport, existing, None) as local:
        assert asked(local, large) == large.upper()
        assert asked(local, b"again") == b"AGAIN"
    with pytest.raises(OSError, match="refused"):
        asked(local, b"closed")
    assert server.exit_status(20) == 0


def test_forward_closes_a_connection_that_nobody_takes_on_the_machine(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        forward(node.transport, port, None) as local,
        socket.create_connection(("127.0.0.1", local), 20) as peer,
    ):
        assert peer.recv(1) == b""


def test_forward_takes_the_usual_port_else_a_free_one_and_refuses_a_taken_one(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as values:
        port = values.getsockname()[1]
        with forward(node.transport, 1, None, usual=port) as local:
            assert local != port
        with pytest.raises(PortTaken, match=str(port)), forward(node.transport, 1, port):
            pass
    with forward(node.transport, 1, None, usual=port) as local:
        assert local == port
