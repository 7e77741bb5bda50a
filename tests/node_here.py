"""A node whose part runs on this computer, without a connection in between."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support import a_machine

from remote.sessions.session import Node
from remote.shared import frames

ROOT = Path(__file__).parents[1]


def node_part(home: Path, command: str, **variables: str) -> "subprocess.Popen[bytes]":
    """Start the node's part, as a process with a home of its own."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from remote.node.__main__ import run; run([{command!r}])"
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-I", "-c", code],
        env={"HOME": str(home), **variables},
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )


class NodeHere(Node):
    """Asks a node's part that has a home of its own, and answers at once."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.variables: dict[str, str] = {}
        """Of the next sessions."""
        self.machine = a_machine()

    @contextmanager
    def stream(self, command: str, request: dict[str, Any], **_: Any) -> Iterator[Any]:  # type: ignore[override]
        """Ask the node's part, which answers at once."""
        with node_part(self.home, command, **self.variables) as part:
            assert part.stdin is not None
            assert part.stdout is not None
            assert part.stderr is not None
            stdin, stdout = part.stdin, part.stdout

            def send_bytes(body: bytes) -> None:
                stdin.write(body)
                stdin.flush()

            def send(header: dict[str, Any], body: bytes = b"") -> None:
                send_bytes(frames.encode(header, body))

            send_bytes(json.dumps(request).encode() + b"\n")
            yield SimpleNamespace(
                frames=lambda: frames.decode(stdout.readline, stdout.read), send=send, send_bytes=send_bytes
            )
            stdin.close()
            assert part.wait(30) == 0, part.stderr.read()
