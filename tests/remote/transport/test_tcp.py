"""Test sockets for SSH: no loss of data that was read ahead, and names resolved unchanged."""

import socket
from collections.abc import Iterator

import pytest

from remote.transport.tcp import open_tcp


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = open_tcp("127.0.0.1", server.getsockname()[1], 5)
        theirs, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


def test_tcp_recv_returns_all_bytes_and_the_end(ends):
    ours, theirs = ends
    sent = bytes(range(256)) * 1000
    theirs.sendall(sent)
    theirs.shutdown(socket.SHUT_WR)
    parts = list(iter(lambda: ours.recv(1000), b""))
    assert b"".join(parts) == sent
    assert max(map(len, parts)) <= 1000
    assert ours.recv(1) == b""


def test_tcp_recv_times_out_and_reads_later_data(ends):
    ours, theirs = ends
    ours.settimeout(0.01)
    with pytest.raises(TimeoutError):
        ours.recv(4)
    theirs.sendall(b"late")
    ours.settimeout(5)
    assert ours.recv(2) + ours.recv(2) == b"late"


def test_open_tcp_raises_gaierror_for_an_invalid_name():
    with pytest.raises(socket.gaierror):
        open_tcp("a..b", 22, 1)
