"""A pod of Kubernetes: commands are started by `exec`, through the API server; the pod needs Python, and no SSH.

A machine's `context` is one of the kubeconfig in the cluster's folder, else of the user's; its `id` is the pod,
`namespace/name`. The API server
ends a command's input with its connection alone, so a small program in the pod stands between: see `pod_relay`.
"""

import json
import ssl
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import urllib3.exceptions
import websocket
from kubernetes import client

from inventories.clocks import retry_if_away
from inventories.disk.cluster_files import ClusterFiles
from inventories.kube_context import (
    UNREADABLE,
    KubeContext,
    api_client,
    headers_of,
    kube_context,
    kubeconfig_files,
)
from inventories.kube_plugin import PluginFailed
from inventories.machine import Machine
from remote.errors import AuthenticationFailed, ConnectionLost, MachineGone, Unreachable
from remote.transport import LOOPBACK, NO_STATUS
from remote.transport.pods import pod_relay
from remote.transport.tcp import DEAD_PEER_OPTIONS

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

STDIN, STDOUT, STDERR, STATUS, RESIZE = range(5)
"""Channels: the first byte of each message."""
PROTOCOL = "v4.channel.k8s.io"
OPEN_TIMEOUT_S = 20.0
LAST_WORDS_S = 2.0
KEPT_BYTES = 2 * 1024 * 1024
"""The maximum of a command's output that is read ahead, both streams together."""
CHUNK_BYTES = 32 * 1024
NOT_FOUND = 127
RAY_WORKER = "ray-worker"
"""The container of a RayCluster's worker."""
NO_PROGRAM = ("executable file not found", "no such file or directory", "No such file or directory")
"""What container runtimes say of a program that is not there."""
OVER = ("ending", "Succeeded", "Failed")
"""States of a pod that runs no more."""
ANOTHER = "KubeRay puts another in its place: `gpuctl up` takes it in, and so does a job that resumes."
BROKEN = (OSError, websocket.WebSocketException)


def connect(machine: Machine, cluster: ClusterFiles, timeout_s: float) -> "PodTransport":
    """Ask the API server for the pod.

    Raises Unreachable where it does not run, MachineGone where it will not any more, AuthenticationFailed.
    """
    cluster_file = cluster.kubeconfig_path if cluster.kubeconfig_path.exists() else None
    context = kube_context(kubeconfig_files(cluster_file), machine.context)
    try:
        api = api_client(context.configuration())
    except PluginFailed as error:
        raise AuthenticationFailed(f"{machine.name}: {error}") from error
    except UNREADABLE as error:
        raise Unreachable(
            f"{machine.name}: the kubeconfig has no usable context {machine.context or 'of its own'}: {error}"
        ) from error
    namespace, _, name = machine.id.partition("/")
    try:
        pod = client.CoreV1Api(api).read_namespaced_pod(name, namespace, _request_timeout=timeout_s)
    except client.ApiException as error:
        raise _refused(machine, error, api.configuration.host, context.failure()) from error
    except urllib3.exceptions.HTTPError as error:
        raise Unreachable(
            f"{machine.name}: the API server {api.configuration.host} does not answer: {error}"
        ) from error
    if pod.status.phase != "Running" or pod.metadata.deletion_timestamp:
        state = "ending" if pod.metadata.deletion_timestamp else pod.status.phase
        problem = f"{machine.name}: the pod {machine.id} is not running, but {state}."
        raise MachineGone(f"{problem} {ANOTHER}") if state in OVER else Unreachable(problem)
    names = [container.name for container in pod.spec.containers]
    # Others may have put a container of theirs before it.
    return PodTransport(machine, api, context, RAY_WORKER if RAY_WORKER in names else names[0])


def _refused(machine: Machine, error: "client.ApiException", server: str, failure: str) -> Exception:
    """Return the error for a refusal. `failure`: why the credential plug-in gave no newer credentials."""
    message = message_of(error)
    if error.status == 401 and failure:
        return AuthenticationFailed(f"{machine.name}: {failure}")
    if error.status in (401, 403):
        return AuthenticationFailed(f"{machine.name}: the API server refuses: {message}")
    if error.status == 404:
        return MachineGone(f"{machine.name}: there is no pod {machine.id} at {server}. {ANOTHER}")
    return Unreachable(f"{machine.name}: the API server answers {error.status}: {message}")


def message_of(error: "client.ApiException") -> str:
    """Return the API server's own sentence."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)


class PodTransport:
    """A pod that runs. Each command has a connection of its own."""

    ssh_config: Path | None = None

    def __init__(self, machine: Machine, api: "ApiClient", context: KubeContext, container: str) -> None:
        self._machine = machine
        self._api = api
        self._container = container
        self._open = True
        self._context = context

    def start(
        self, command: str, *, window_bytes: int | None = None, awaits_input: bool = False
    ) -> "PodProcess":
        """Start a shell command in the home folder of the container's user. Raises ConnectionLost."""
        return self._exec([*self._relay("run"), f"cd; {command}"], window_bytes, retry=awaits_input)

    def connect_port(self, port: int, host: str = LOOPBACK) -> "PodProcess":
        """Connect to a port on the pod's loopback, or of a host that it reaches.

        Raises ConnectionLost, also where nobody listens there.
        """
        stream = self._exec([*self._relay("connect"), host, str(port)], None, retry=True)
        stream.settimeout(OPEN_TIMEOUT_S)
        try:
            if stream.recv(1) == pod_relay.CONNECTED:
                stream.settimeout(None)
                return stream
            why = stream.recv_stderr(CHUNK_BYTES).decode(errors="replace").strip()
        except OSError as error:
            why = str(error)
        stream.close()
        raise ConnectionLost(f"{self._machine.name}: nobody takes connections at its port {port}: {why}")

    def is_open(self) -> bool:
        """Return whether no connection to the pod has broken."""
        return self._open

    def close(self) -> None:
        """Begin nothing more."""
        self._open = False
        self._api.close()

    def _relay(self, action: str) -> list[str]:
        return [self._machine.python or "python3", "-I", "-c", pod_relay.PROGRAM, action]

    def _exec(self, argv: list[str], window_bytes: int | None, *, retry: bool) -> "PodProcess":
        return PodProcess(self.link(argv, retry=retry), self._broke, kept_bytes=window_bytes or KEPT_BYTES)

    def link(self, argv: list[str], *, terminal: bool = False, retry: bool = False) -> "websocket.WebSocket":
        """Start a program, and return its streams. Raises ConnectionLost.

        Args:
            argv: The program.
            terminal: It gets a terminal of its own.
            retry: It may start twice if this process was suspended.
        """
        namespace, _, name = self._machine.id.partition("/")
        try:
            settings = self._context.configuration()
        except PluginFailed as error:
            raise AuthenticationFailed(f"{self._machine.name}: {error}") from error
        except UNREADABLE as error:
            raise ConnectionLost(f"{self._machine.name}: the kubeconfig can't be used: {error}") from error
        # A terminal has one stream of output.
        streams = ("stdin", "stdout", "tty") if terminal else ("stdin", "stdout", "stderr")
        query = [("container", self._container), *((stream, "true") for stream in streams)]
        query += [("command", word) for word in argv]
        address = f"{settings.host}/api/v1/namespaces/{namespace}/pods/{name}/exec?{urlencode(query)}"

        proxy: dict[str, Any] = {}
        if settings.proxy:
            parts = urlsplit(settings.proxy)
            proxy = {
                "http_proxy_host": parts.hostname,
                "http_proxy_port": parts.port,
                "proxy_type": parts.scheme,
            }

        def dial() -> "websocket.WebSocket":
            return websocket.create_connection(
                "ws" + address.removeprefix("http"),
                timeout=OPEN_TIMEOUT_S,
                header=headers_of(settings),
                subprotocols=[PROTOCOL],
                sslopt=_tls(settings),
                sockopt=DEAD_PEER_OPTIONS,
                suppress_origin=True,
                **proxy,
            )

        try:
            return retry_if_away(dial, BROKEN) if retry else dial()
        except websocket.WebSocketBadStatusException as error:
            self._broke()
            refused = AuthenticationFailed if error.status_code in (401, 403) else ConnectionLost
            raise refused(
                f"{self._machine.name}: the API server refuses the command with {error.status_code}."
            ) from error
        except BROKEN as error:
            self._broke()
            raise ConnectionLost(
                f"{self._machine.name}: the connection broke: {error or 'closed'}."
            ) from error

    def _broke(self) -> None:
        self._open = False


def _tls(settings: Any) -> dict[str, Any]:  # noqa: ANN401 - the client's class has no types
    """Return the kubeconfig's TLS settings, as websocket-client takes them."""
    if not settings.verify_ssl:
        return {"cert_reqs": ssl.CERT_NONE, "check_hostname": False}
    named = {
        "ca_certs": settings.ssl_ca_cert,
        "certfile": settings.cert_file,
        "keyfile": settings.key_file,
        "server_hostname": getattr(settings, "tls_server_name", None),
    }
    return {"cert_reqs": ssl.CERT_REQUIRED} | {name: value for name, value in named.items() if value}


class PodProcess:
    """A command in a pod. A thread reads its output, no further ahead than `kept_bytes`."""

    def __init__(self, link: "websocket.WebSocket", broke: Callable[[], None], *, kept_bytes: int) -> None:
        self._link = link
        self._broke = broke
        self._kept_bytes = kept_bytes
        self._timeout_s: float | None = None
        self._changed = Condition()
        self._output: dict[int, deque[bytes]] = {STDOUT: deque(), STDERR: deque()}
        self._size = 0
        self._status: int | None = None
        self._error: OSError | None = None
        self._over = self._closed = False
        link.settimeout(None)
        Thread(target=self._listen, daemon=True).start()

    def settimeout(self, timeout_s: float | None, /) -> None:
        """Set how long to wait for the other side."""
        self._timeout_s = timeout_s

    def send(self, data: bytes, /) -> int:
        """Send a part of the data to the command's standard input; returns its size."""
        part = data[:CHUNK_BYTES]
        self._send(struct.pack(pod_relay.SIZE, len(part)) + part)
        return len(part)

    def end_input(self) -> None:
        """Close the command's standard input; nothing is left to close where it has ended by now."""
        try:
            self._send(struct.pack(pod_relay.SIZE, 0))
        except ConnectionResetError:
            if self._status is None:
                raise

    def recv(self, size: int, /) -> bytes:
        """Receive at most `size` bytes of the standard output; empty at the end."""
        return self._take(STDOUT, size)

    def recv_stderr(self, size: int, /) -> bytes:
        """Receive at most `size` bytes of the standard error; empty at the end."""
        return self._take(STDERR, size)

    def exit_status(self, timeout_s: float) -> int | None:
        """Wait for the exit status."""
        with self._changed:
            self._changed.wait_for(lambda: self._over, timeout_s)
            return (NO_STATUS if self._status is None else self._status) if self._over else None

    def close(self) -> None:
        """Close the connection; what waits for the command here gets nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with suppress(*BROKEN):
            self._link.abort()  # type: ignore[no-untyped-call]  # who listens then ends

    def _send(self, data: bytes) -> None:
        try:
            self._link.send_binary(bytes([STDIN]) + data)
        except BROKEN as error:
            # Why it ended may have come, and nobody has read it yet.
            self.exit_status(LAST_WORDS_S)
            raise ConnectionResetError(f"the connection is closed: {error}") from error

    def _take(self, channel: int, size: int) -> bytes:
        parts = self._output[channel]
        with self._changed:
            if not self._changed.wait_for(lambda: parts or self._over or self._closed, self._timeout_s):
                raise TimeoutError("timed out")
            if not parts:
                if self._error is not None and not self._closed:
                    raise self._error
                return b""
            part = parts.popleft()
            if len(part) > size:
                parts.appendleft(part[size:])
                part = part[:size]
            self._size -= len(part)
            self._changed.notify_all()
            return part

    def _listen(self) -> None:
        """Take what comes, until the command's status has come or the connection breaks."""
        status, error = None, None
        try:
            # A close frame is an empty text.
            while (message := self._link.recv()) and not self._closed:
                data = message.encode() if isinstance(message, str) else message
                if data[0] == STATUS:
                    status, words = end_of(data[1:])
                    self._keep(STDERR, words)
                    break
                self._keep(data[0], data[1:])
        except BROKEN as broken:
            error = ConnectionResetError(f"the connection broke: {broken or 'closed'}")
        with self._changed:
            if status is None and not self._closed:
                self._broke()
                self._error = error or ConnectionResetError(
                    "the connection was closed before the command's end"
                )
            self._status, self._over = status, True
            self._changed.notify_all()
        self._link.shutdown()  # type: ignore[no-untyped-call]

    def _keep(self, channel: int, part: bytes) -> None:
        if not part or channel not in self._output:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._size < self._kept_bytes or self._closed)
            self._output[channel].append(part)
            self._size += len(part)
            self._changed.notify_all()


def end_of(document: bytes) -> tuple[int | None, bytes]:
    """Return the exit status that in the last message of a command, and words for its standard error.

    A command that could not be started has no status there: NOT_FOUND if the program is missing; `None` where the
    container has gone.
    """
    try:
        status = json.loads(document)
        if status["status"] == "Success":
            return 0, b""
        causes = (status.get("details") or {}).get("causes") or ()
        codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
        if codes:
            return codes[0], b""
        words = str(status.get("message", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, b""
    return NOT_FOUND if any(text in words for text in NO_PROGRAM) else None, words.encode()
