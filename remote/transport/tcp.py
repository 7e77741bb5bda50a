"""Sockets as SSH wants them."""

import errno
import socket
from typing import Self

DEAD_PEER_S = 20
"""Unacknowledged data for this long means that the peer is gone (TCP_USER_TIMEOUT)."""
DEAD_PEER_OPTIONS = (
    ((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_S * 1000),)
    if hasattr(socket, "TCP_USER_TIMEOUT")  # macOS lacks it
    else ()
)
READ_BYTES = 64 * 1024
NO_ROUTE = (errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL)
ANY_HOST = "192.0.2.1"
"""An address of documentation (RFC 5737), to which nothing is sent."""


class PromptSocket(socket.socket):
    """Acknowledges at once what comes, where the system lets us ask for that (Linux), and reads all available bytes.

    An SSH server sends some small messages in a row, with Nagle's algorithm: each waits until the one before is
    acknowledged, which a system likes to delay by 40 ms. That is as much as all the rest of a short command.
    paramiko reads each message in two or three parts; they are taken from the read bytes.
    """

    _read = b""
    _received = 0

    @classmethod
    def of(cls, stream: socket.socket) -> Self:
        """The same connection; `stream` is no longer to be used."""
        timeout_s = stream.gettimeout()
        prompt = cls(fileno=stream.detach())
        prompt.settimeout(timeout_s)
        return prompt

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Receive bytes, like a socket, for one thread."""
        if self._received == len(self._read):
            if hasattr(socket, "TCP_QUICKACK"):  # the system forgets the wish, so it is said each time
                self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            self._read, self._received = super().recv(max(size, READ_BYTES), flags), 0
        data = self._read[self._received : self._received + size]
        self._received += len(data)
        return data


def has_route(host: str) -> bool:
    """Return whether this computer's routing table has a way to a host. No packet is sent to it.

    Without an address for the name, the table is asked for any other host.
    """
    try:
        entries = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        entries = [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (ANY_HOST, 9))]
    for family, kind, protocol, _, address in entries:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
        except OSError as error:
            if error.errno not in NO_ROUTE:
                return True
        else:
            return True
    return False


def open_tcp(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connected socket that delays nothing and reports a dead peer in `DEAD_PEER_S`. Raises OSError."""
    # As bytes a plain name is looked up as it stands, without the tables of all alphabets.
    name = host.encode() if host.isascii() else host
    stream = PromptSocket.of(socket.create_connection((name, port), timeout=timeout_s))  # type: ignore[arg-type]
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for level, option, value in DEAD_PEER_OPTIONS:
        stream.setsockopt(level, option, value)
    return stream
