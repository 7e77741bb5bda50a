"""The HTTP server: one thread a connection, kept alive, on loopback only."""

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes.control import Dropped
from tests.fakes.oci.service import Answer, Service

MAX_BODY = 1 << 20


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    service: Service

    def _serve(self) -> None:
        length = self.headers.get("content-length") or "0"
        if "transfer-encoding" in self.headers or not length.isdecimal() or int(length) > MAX_BODY:
            self.close_connection = True
            self._send(Answer(status=411 if "transfer-encoding" in self.headers else 413))
            return
        body = self.rfile.read(int(length))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            self._send(self.service.answer(self.command, self.path, headers, body))
        except Dropped:
            self.close_connection = True

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status != 204:
            self.send_header("content-length", str(len(answer.payload)))
        self.end_headers()
        self.wfile.write(answer.payload)
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Log nothing: the control interface has a log of the calls."""


for _verb in ("GET", "POST", "PUT", "DELETE", "PATCH"):
    setattr(_Handler, f"do_{_verb}", _Handler._serve)


class Server(ThreadingHTTPServer):
    """An HTTP server that serves until `shutdown`."""

    request_queue_size = 128
    daemon_threads = True

    def __init__(self, port: int, service: Service) -> None:
        handler = type("Handler", (_Handler,), {"service": service})
        super().__init__(("127.0.0.1", port), handler)

    def server_bind(self) -> None:
        """Bind without the base class's look-up of the host's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def handle_error(self, *_: Any) -> None:
        """Ignore a client that disconnects; errors of the fake itself are answered and printed elsewhere."""

    @property
    def url(self) -> str:
        """Return the server's URL."""
        return f"http://127.0.0.1:{self.server_port}"
