"""The API server: a cluster's objects over HTTP, checked against the published schemas, and `exec` in its pods.

`with kube_api() as api:` gives an empty cluster; `api.world` adds nodes and KubeRay, and says what images come to.
`api.kubeconfig(path)` writes the file that clients read. Objects are served as a real API server serves them, but for
`watch`, which is refused.
"""

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import RLock, Thread
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.fakes.kube.exec import end, failure, serve_exec
from tests.fakes.kube.requests import Request, answer, read_request
from tests.fakes.kube.store import Document, Refused
from tests.fakes.kube.terminal import serve_terminal
from tests.fakes.kube.world import World

TOKEN = "a-token-of-the-tests"

GOING_AWAY = b"\x88\x02\x03\xe9"
"""A WebSocket's close frame, 1001."""


@dataclass(kw_only=True)
class Pod:
    """A pod: how its commands are started here."""

    argv: tuple[str, ...] = ()
    """In front of each command."""
    env: Mapping[str, str] = field(default_factory=dict)
    phase: str = "Running"


def here(pod: Document) -> Pod:
    """Return a pod whose commands run as plain processes of this machine."""
    return Pod(env=os.environ)


@dataclass(kw_only=True)
class KubeApi:
    """A server on loopback, and its cluster."""

    world: World = field(default_factory=World)
    pods: dict[str, Pod] = field(default_factory=dict)
    """By `namespace/name`: pods added by tests."""
    runtime: Callable[[Document], Pod] = here
    """How commands are started in all other pods."""
    denied: set[tuple[str, str]] = field(default_factory=set)
    """Actions that the user may not take: `("create", "rayclusters.ray.io")`, `("create", "pods/exec")`, `("*",
    "nodes")`."""
    knows: Callable[[str], bool] = TOKEN.__eq__
    """Check of a token."""
    version: str = "v1.33.1"
    faults: dict[int, Literal["before", "after"]] = field(default_factory=dict)
    """By the number of a writing call, from 0: whether its connection breaks before it is carried out, or after."""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """All writing calls: method and path."""
    lock: RLock = field(default_factory=RLock)
    port: int = 0
    running: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    links: list[Any] = field(default_factory=list)

    def kubeconfig(self, path: Path, *, token: str = TOKEN, user: Document | None = None) -> Path:
        """Write a file with one context, `test`; `user`: how it logs in, where that is not by a token."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "me", "user": user or {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me"}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def objects(self, plural: str, namespace: str | None = None) -> list[Document]:
        """Return the existing objects of a kind."""
        with self.lock:
            self.world.settle()
            return self.world.store.listed(plural, namespace)

    def break_links(self, *, closing: bool = False) -> None:
        """Break every connection of `exec`, as a network does, or `closing` them, as a server that is replaced."""
        for link in self.links:
            with suppress(OSError):
                if closing:
                    link.sendall(GOING_AWAY)
                link.shutdown(socket.SHUT_RDWR)

    def pod(self, namespace: str, name: str) -> Pod:
        """Return the runtime that starts commands in a pod. Raises Refused."""
        document = self.world.store.get("pods", namespace, name)
        return self.pods.get(f"{namespace}/{name}") or self.runtime(document)

    def _put(self, pods: Mapping[str, Pod]) -> None:
        for where, pod in pods.items():
            namespace, _, name = where.partition("/")
            if ("namespaces", None, namespace) not in self.world.store.objects:
                home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
                self.world.add(home)
            document = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"containers": [{"name": "ray", "image": "an-image"}]},
                "status": {"phase": pod.phase},
            }
            self.world.fixed.add(self.world.add(document)["metadata"]["uid"])
            self.pods[where] = pod


@contextmanager
def kube_api(pods: Mapping[str, Pod] | None = None) -> Iterator[KubeApi]:
    """Serve until the body ends; then end all started processes."""
    api = KubeApi()
    for name in ("default", "kube-system"):
        api.world.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    api._put(pods or {})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

        def _serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size)
            if not api.knows(self.headers.get("Authorization", "").removeprefix("Bearer ")):
                return self._answer(401, failure(401, "Unauthorized", "Unauthorized"))
            path = urlsplit(self.path)
            kind = self.headers.get("Content-Type", "").partition(";")[0]
            broken = self._fault()
            if broken == "before":
                return self._hang_up()
            try:
                request = read_request(self.command, path.path, parse_qs(path.query), body, kind)
                with api.lock:
                    api.world.settle()
                    document = answer(api, request)
                    api.world.settle()
                if request.subresource == "exec":
                    return self._exec(request)
            except Refused as error:
                return self._answer(error.code, failure(error.code, error.message, error.reason))
            if broken == "after":
                return self._hang_up()
            return self._answer(201 if self.command == "POST" else 200, document)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

        def _fault(self) -> str | None:
            if self.command == "GET":
                return None
            with api.lock:
                api.calls.append((self.command, urlsplit(self.path).path))
                return api.faults.get(len(api.calls) - 1)

        def _hang_up(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _exec(self, request: Request) -> None:
            query = request.query
            assert query["stdin"] == query["stdout"] == ["true"]
            terminal = query.get("tty") == ["true"]
            assert terminal != (query.get("stderr") == ["true"]), "a terminal has one stream"
            assert request.namespace is not None
            assert request.name is not None
            with api.lock:
                pod = api.pod(request.namespace, request.name)
            api.links.append(self.connection)
            serve = serve_terminal if terminal else serve_exec
            serve(self, [*pod.argv, *query["command"]], pod.env, api.running)

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
        end(api.running)
