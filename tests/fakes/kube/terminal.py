"""`exec` with a terminal, as a container runtime serves it: one stream back, and sizes."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from threading import Thread

from tests.fakes.kube.exec import PROTOCOLS, ended
from tests.fakes.kube.websocket_server import WebSocketServer


def serve_terminal(
    request: BaseHTTPRequestHandler,
    argv: Sequence[str],
    env: Mapping[str, str],
    running: list["subprocess.Popen[bytes]"],
) -> None:
    """Answer the handshake, run a command on a terminal, and report its exit status; it is added to `running`."""
    link = WebSocketServer(request, PROTOCOLS)
    request.close_connection = True
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        argv, env=dict(env), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    running.append(process)
    Thread(target=_feed, args=(link, ours), daemon=True).start()
    with suppress(OSError):  # as a terminal ends
        while data := os.read(ours, 32768):
            link.send(b"\x01" + data)
    with suppress(OSError):
        link.send(b"\x03" + json.dumps(ended(process.wait())).encode())
        link.send(b"\x03\xe8", kind=8)


def _feed(link: WebSocketServer, terminal: int) -> None:
    with suppress(EOFError, OSError):
        while True:
            message = link.receive()
            if message[0] == 4:
                size = json.loads(message[1:])
                fcntl.ioctl(
                    terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
                )
            else:
                assert message[0] == 0, "keys and sizes alone"
                os.write(terminal, message[1:])
