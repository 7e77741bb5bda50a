"""Sockets as SSH wants them."""

import socket
from typing import Self

DEAD_PEER_S = 20
"""Unacknowledged data for this long means that the peer is gone (TCP_USER_TIMEOUT)."""


class PromptSocket(socket.socket):
    """Acknowledges at once what comes, where the system lets us ask for that (Linux).

    An SSH server sends some small messages in a row, with Nagle's algorithm: each waits until the one before is
    acknowledged, which a system likes to delay by 40 ms. That is as much as all the rest of a short command.
    """

    @classmethod
    def of(cls, stream: socket.socket) -> Self:
        """The same connection; `stream` is no longer to be used."""
        timeout_s = stream.gettimeout()
        prompt = cls(fileno=stream.detach())
        prompt.settimeout(timeout_s)
        return prompt

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """As every socket's; the system forgets the wish, so it is said each time."""
        if hasattr(socket, "TCP_QUICKACK"):
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return super().recv(size, flags)


def open_tcp(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connected socket that delays nothing and reports a dead peer in `DEAD_PEER_S`. Raises OSError."""
    stream = PromptSocket.of(socket.create_connection((host, port), timeout=timeout_s))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_S * 1000)
    return stream
