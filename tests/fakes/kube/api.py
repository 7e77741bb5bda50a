"""The API server: pods that are listed here, and `exec` in them."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.fakes.kube.websocket_server import WebSocketServer

TOKEN = "a-token-of-the-tests"
PROTOCOLS = ("v4.channel.k8s.io",)
"""Those of a server of 1.29 and older; newer ones also have a version 5, which can close one channel."""


@dataclass(kw_only=True)
class Pod:
    """A pod: how its commands are started here."""

    argv: tuple[str, ...] = ()
    """In front of each command."""
    env: Mapping[str, str] = field(default_factory=dict)
    phase: str = "Running"


@dataclass(kw_only=True)
class KubeApi:
    """A server on loopback."""

    pods: dict[str, Pod] = field(default_factory=dict)
    """By `namespace/name`."""
    port: int = 0
    running: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    links: list[Any] = field(default_factory=list)

    def kubeconfig(self, path: Path, *, token: str = TOKEN) -> Path:
        """A file with one context, `test`."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me"}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def break_links(self) -> None:
        """Break every connection of `exec`, as a network does."""
        import socket

        for link in self.links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)


@contextmanager
def kube_api(pods: Mapping[str, Pod]) -> Iterator[KubeApi]:
    """Serve, until the body ends; then end what was started."""
    api = KubeApi(pods=dict(pods))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urlsplit(self.path)
            words = path.path.strip("/").split("/")
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._answer(401, _failure(401, "Unauthorized"))
            match words:
                case ["api", "v1", "namespaces", namespace, "pods", name, *rest]:
                    pod = api.pods.get(f"{namespace}/{name}")
                    if pod is None:
                        return self._answer(404, _failure(404, f'pods "{name}" not found'))
                    if rest == ["exec"]:
                        return self._exec(pod, parse_qs(path.query))
                    return self._answer(200, _pod(namespace, name, pod))
            return self._answer(404, _failure(404, "the server could not find the requested resource"))

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _exec(self, pod: Pod, query: dict[str, list[str]]) -> None:
            assert query["stdin"] == query["stdout"] == query["stderr"] == ["true"]
            link = WebSocketServer(self, PROTOCOLS)
            self.close_connection = True
            api.links.append(self.connection)
            try:
                process = subprocess.Popen(
                    [*pod.argv, *query["command"]],
                    env=dict(pod.env),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                )
            except OSError as error:
                # As a runtime says that there is no such program: no exit status.
                link.send(b"\x03" + json.dumps(_failure(500, str(error))).encode())
                return
            api.running.append(process)
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
                link.send(b"\x03" + json.dumps(_ended(process.wait())).encode())
                link.send(b"\x03\xe8", kind=8)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        api.break_links()
        for process in api.running:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                stream.close()


def _copy(stream: Any, link: WebSocketServer, channel: int) -> None:
    with suppress(OSError, ValueError):
        while data := stream.read(32768):
            link.send(bytes([channel]) + data)


def _feed(link: WebSocketServer, process: "subprocess.Popen[bytes]") -> None:
    """Give the command its input; a runtime closes it with the connection, and ends no command."""
    assert process.stdin is not None
    try:
        while True:
            message = link.receive()
            assert message[0] == 0, "a client sends input alone"
            process.stdin.write(message[1:])
    except (EOFError, OSError, ValueError):
        with suppress(OSError):
            process.stdin.close()


def _pod(namespace: str, name: str, pod: Pod) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [{"name": "ray", "image": "an-image"}]},
        "status": {"phase": pod.phase},
    }


def _failure(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}


def _ended(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code if code > 0 else 128 - code)}]
    return {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
