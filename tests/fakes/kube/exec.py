"""`exec` as a container runtime serves it: a command's three streams and its end, over a WebSocket."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from threading import Thread
from typing import Any

from tests.fakes.kube.websocket_server import WebSocketServer

PROTOCOLS = ("v4.channel.k8s.io",)
"""Protocols of a server up to 1.29; newer servers also have version 5, which can close one channel."""
NEWER_PROTOCOLS = ("v5.channel.k8s.io", *PROTOCOLS)
RESIZE, CLOSE_CHANNEL = 4, 255
"""Further channels of a client."""


def serve_exec(
    request: BaseHTTPRequestHandler,
    argv: Sequence[str],
    env: Mapping[str, str],
    running: list["subprocess.Popen[bytes]"],
    protocols: tuple[str, ...] = PROTOCOLS,
) -> None:
    """Answer the handshake, run a command, and report its exit status; it is added to `running`."""
    link = WebSocketServer(request, protocols)
    request.close_connection = True
    try:
        process = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    except OSError as error:
        # A runtime reports a missing program without an exit status.
        link.send(b"\x03" + json.dumps(failure(500, str(error))).encode())
        return
    running.append(process)
    readers = [
        Thread(target=_copy, args=(process.stdout, link, 1)),
        Thread(target=_copy, args=(process.stderr, link, 2)),
    ]
    feeder = Thread(target=_feed, args=(link, process), daemon=True)
    for thread in (*readers, feeder):
        thread.start()
    for thread in readers:
        thread.join()
    with suppress(OSError):
        link.send(b"\x03" + json.dumps(ended(process.wait())).encode())
        link.send(b"\x03\xe8", kind=8)


def end(running: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End all these commands, and wait for their ends."""
    for process in running:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def failure(code: int, message: str, reason: str = "") -> dict[str, Any]:
    """Return the document in which an API server describes an error."""
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return status | {"reason": reason, "code": code}


def _copy(stream: Any, link: WebSocketServer, channel: int) -> None:
    with suppress(OSError, ValueError):
        while data := stream.read(32768):
            link.send(bytes([channel]) + data)


def _feed(link: WebSocketServer, process: "subprocess.Popen[bytes]") -> None:
    """Give the command its input; a runtime closes it with the connection, and ends no command."""
    try:
        while True:
            message = link.receive()
            if message[0] == CLOSE_CHANNEL:
                raise EOFError
            if message[0] == RESIZE:
                continue
            assert message[0] == 0, "a client sends input alone"
            process.stdin.write(message[1:])
    except (EOFError, OSError, ValueError):
        with suppress(OSError):
            process.stdin.close()


def ended(code: int) -> dict[str, Any]:
    """Return the last message of a command: its exit status."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code if code > 0 else 128 - code)}]
    return {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
