"""Messages between the nodes of a cluster: each is one line over TCP, signed with a key that only they have."""

import hashlib
import hmac
import json
import socket
import socketserver
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

CONNECT_S = 5.0
Answer = Callable[[Dict[str, Any]], Mapping[str, Any]]


def sealed(document: Mapping[str, Any], key: bytes) -> bytes:
    """Return a document as a line with its signature."""
    body = json.dumps(document).encode()
    return hmac.new(key, body, hashlib.sha256).hexdigest().encode() + b" " + body + b"\n"


def opened(line: bytes, key: bytes) -> Optional[Dict[str, Any]]:
    """Return the document of a line. `None`: its signature is not of this key."""
    signature, _, body = line.rstrip(b"\n").partition(b" ")
    expected = hmac.new(key, body, hashlib.sha256).hexdigest().encode()
    return dict(json.loads(body)) if hmac.compare_digest(signature, expected) else None


def ask(
    address: Tuple[str, int], key: bytes, message: Mapping[str, Any], max_bytes: int
) -> Optional[Dict[str, Any]]:
    """Send a message and return its answer. `None`: the answer has another key. Raises OSError, ValueError."""
    with socket.create_connection(address, timeout=CONNECT_S) as connection:
        connection.sendall(sealed(message, key))
        return opened(connection.makefile("rb").readline(max_bytes), key)


class Server(socketserver.ThreadingTCPServer):
    """Answers each message that has the key."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: Tuple[str, int], key: bytes, answer: Answer, max_bytes: int) -> None:
        """`max_bytes`: of a message."""
        super().__init__(address, _Connection)
        self.key = key
        self.answer = answer
        self.max_bytes = max_bytes


class _Connection(socketserver.StreamRequestHandler):
    timeout = CONNECT_S
    server: Server

    def handle(self) -> None:
        """Answer a message."""
        message = opened(self.rfile.readline(self.server.max_bytes), self.server.key)
        if message is not None:
            self.wfile.write(sealed(self.server.answer(message), self.server.key))
