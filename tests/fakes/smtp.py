"""A mail server that keeps what it gets, and answers as a test says."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class MailServer:
    """The server: its mails so far, and its next answers to a whole mail."""

    url: str
    mails: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    """Without one: `250 ok`. An empty one: the connection ends."""
    quit: str = "221 bye"
    """Answer to QUIT."""


@contextmanager
def mail_server() -> Iterator[MailServer]:
    """Yield a server on loopback."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._answer("220 ready")
            while line := self.rfile.readline().decode().strip().upper():
                if line == "DATA":
                    self._answer("354 go")
                    lines = []
                    while (text := self.rfile.readline().decode()) not in (".\r\n", ""):
                        lines.append(text)
                    state.mails.append("".join(lines))
                    answer = state.answers.pop(0) if state.answers else "250 ok"
                    if not answer:
                        return
                    self._answer(answer)
                elif line == "QUIT":
                    self._answer(state.quit)
                    return
                else:
                    self._answer("250 ok")

        def _answer(self, text: str) -> None:
            self.wfile.write(text.encode() + b"\r\n")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        state = MailServer(url=f"smtp://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield state
        server.shutdown()
