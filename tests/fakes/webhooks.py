"""A receiver of notifications over HTTP, which answers as a test says."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Received:
    """A request."""

    path: str
    headers: Mapping[str, str]
    """Name in lower case → value."""
    body: bytes

    @property
    def json(self) -> Any:
        """Return its body's document."""
        return json.loads(self.body)


@dataclass(kw_only=True)
class Receiver:
    """The receiver: its requests so far, and its next answers."""

    url: str
    requests: list[Received] = field(default_factory=list)
    answers: list[int | Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=list)
    """Statuses, or functions that answer a POST. Empty: status 200."""
    other: Callable[[BaseHTTPRequestHandler], None] | None = None
    """Answers GET and PUT. `None`: status 404."""

    def types(self) -> list[str]:
        """Return the type of each notice."""
        return [request.json["type"] for request in self.requests]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Yield a receiver on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            state.requests.append(
                Received(
                    path=self.path,
                    headers={name.lower(): value for name, value in self.headers.items()},
                    body=body,
                )
            )
            answer = state.answers.pop(0) if state.answers else 200
            if callable(answer):
                answer(self)
                return
            self.send_response(answer)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            if state.other is None:
                self.send_error(404)
            else:
                state.other(self)

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Ignore clients that left."""

    with Server(("127.0.0.1", 0), Handler) as server:
        state = Receiver(url=f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield state
        server.shutdown()


def redirect(location: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answer with a redirect."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(307)
        handler.send_header("Location", location)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def after(seconds: float) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answer 200 after this time, with a byte of the status line now and then before it."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 ")
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            time.sleep(0.05)
            handler.wfile.write(b"O")
        handler.wfile.write(b"K\r\nContent-Length: 0\r\n\r\n")

    return answer


def broken(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True
