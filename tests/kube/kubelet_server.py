"""Serve the kubelet's own API to the API server: `exec` and the containers' logs, over TLS."""

import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

from tests.fakes.kube.exec import NEWER_PROTOCOLS, end, serve_exec
from tests.kube.kubelet import Kubelet


@contextmanager
def kubelet_server(kubelet: Kubelet, home: Path) -> Iterator[int]:
    """Serve on a free port of loopback until the block ends; then end all processes that it started."""
    running: list[subprocess.Popen[bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            query = parse_qs(address.query)
            match address.path.strip("/").split("/"):
                case ["exec", namespace, pod, container]:
                    result = kubelet.containers(namespace, pod)
                    if result is None or not result.run:
                        return self._say(404, f"container {container} not found in pod {pod}")
                    argv = result.argv(result.container(container), query["command"])
                    return serve_exec(self, argv, os.environ, running, NEWER_PROTOCOLS)
                case ["containerLogs", namespace, pod, container]:
                    result = kubelet.containers(namespace, pod)
                    log = result.log / f"{container}.log" if result else None
                    if log is None or not log.exists():
                        return self._say(404, f"container {container} not found in pod {pod}")
                    return self._say(200, log.read_text(errors="replace"))
            return self._say(404, "not found")

        def do_POST(self) -> None:
            self._say(400, "the kubelet of the tests speaks WebSocket, and no SPDY")

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

        def _say(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_certificate(home))
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        end(running)


def _certificate(home: Path) -> tuple[Path, Path]:
    """Create a self-signed certificate and its key: the API server does not verify it."""
    certificate, key = home / "kubelet.crt", home / "kubelet.key"
    subject = ("-subj", "/CN=kubelet", "-addext", "subjectAltName=IP:127.0.0.1")
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*argv, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key
