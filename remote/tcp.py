"""Sockets as SSH wants them."""

import socket

DEAD_PEER_S = 20
"""Unacknowledged data for this long means that the peer is gone (TCP_USER_TIMEOUT)."""


def open_tcp(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connected socket without Nagle's delay that reports a dead peer in `DEAD_PEER_S`. Raises OSError."""
    stream = socket.create_connection((host, port), timeout=timeout_s)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_S * 1000)
    return stream
