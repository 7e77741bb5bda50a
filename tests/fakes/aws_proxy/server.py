"""The HTTP side: reads requests, lets the control have its way with them, and writes the answers."""

import json
import socket
import sys
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes.aws_proxy import api, instances, scaling, shapes
from tests.fakes.aws_proxy.errors import ApiError
from tests.fakes.aws_proxy.state import snapshot
from tests.fakes.aws_proxy.world import World, extra_names, extra_settings
from tests.fakes.control import Control, Dropped, Injected
from tests.fakes.hosts import HostsLike
from tests.fakes.vm_hosts import VmHosts

REGION = "us-east-1"


class Fake:
    """The cloud and its control."""

    def __init__(self, control: Control, hosts: HostsLike | None) -> None:
        self.control = control
        self.world = World(self.control, hosts)
        self.control.snapshot = lambda: snapshot(self.world)
        self.control.on_reset = self.world.reset
        self.control.on_advance = self._follow_calendar
        if isinstance(hosts, VmHosts):
            hosts.on_power_off = self._power_off
        shapes.add_volta()
        # The first call takes moto a second.
        self.world.moto.ask(REGION, "DescribeVpcs")

    def answer(self, request: api.Request) -> api.Reply:
        """Answer a request to a service. Raises Dropped if the answer is to be lost."""
        call = self.control.begin(request.operation, request.mutating)
        try:
            self.control.before(call)
            reply = api.perform(self.world, request)
            if call.fault and call.fault.kind == "duplicate":
                self._repeat(request)
            code = None
        except Injected as fault:
            reply, code = api.error(request.service, fault.status, fault.code, fault.message), fault.code
        except ApiError as refusal:
            reply, code = (
                api.error(request.service, refusal.status, refusal.code, refusal.message),
                refusal.code,
            )
        except Dropped:
            raise
        except Exception as bug:  # noqa: BLE001
            traceback.print_exc()
            text = f"The fake failed: {bug!r}"
            reply, code = api.error(request.service, 400, "FakeFailed", text), "FakeFailed"
        self.control.after(call)
        self.control.end(call, reply[0], code)
        return reply

    def _repeat(self, request: api.Request) -> None:
        try:
            api.perform(self.world, request)
        except ApiError as refusal:
            print(f"the second {request.operation} was refused: {refusal}", file=sys.stderr)

    def _follow_calendar(self) -> None:
        with self.world.lock:
            self.world.advance()
            scaling.follow_calendar(self.world)

    def steer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Answer a request to `/_fake/*`."""
        if (method, path) in (("POST", "/_fake/interrupt"), ("POST", "/_fake/shutdown")):
            return self._end_by_itself(path.rpartition("/")[2], json.loads(body))
        if not path.startswith("/_fake/settings"):
            return self.control.handle(method, path, body)
        changes = json.loads(body) if body else {}
        local = {key: changes.pop(key) for key in extra_names() & set(changes)}
        status, answer = self.control.handle(method, path, json.dumps(changes).encode() if body else b"")
        if status != 200:
            return status, answer
        with self.world.lock:
            self.world.change_extra(local)
            if self.world.hosts:
                self.world.hosts.ssh_port = self.control.settings.ssh_port
            return status, answer | extra_settings(self.world)

    def _power_off(self, name: str) -> None:
        self._end_by_itself("shutdown", {"ids": [name]})

    def _end_by_itself(self, how: str, body: dict[str, Any]) -> tuple[int, Any]:
        """`interrupt`: the cloud takes instances back; `shutdown`: their own systems shut down."""
        with self.world.lock:
            self.world.advance()
            for name in body["ids"]:
                instance = self.world.things.get(name)
                if not isinstance(instance, instances.Instance):
                    return 404, {"error": f"there is no instance {name}"}
                if how == "interrupt":
                    instances.terminate(
                        self.world, instance, code=body.get("code", "Server.SpotInstanceTermination")
                    )
                else:
                    instances.shut_down(self.world, instance)
            return 200, {}


class Handler(BaseHTTPRequestHandler):
    """Handle a connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    fake: Fake

    def do_POST(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith("/_fake/"):
            status, answer = self.fake.steer(self.command, self.path, body)
            self._reply(status, "application/json", json.dumps(answer, default=str).encode())
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = api.read(self.command, self.path, headers, body)
        try:
            reply = self.fake.answer(request)
        except Dropped:
            self.close_connection = True
            # Without this, the connection is only closed when nobody holds it any more.
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._reply(*reply)

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: the control has the log."""


class Server(ThreadingHTTPServer):
    """On loopback only."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnected."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def make_server(fake: Fake, port: int) -> Server:
    """Create a listening server that is not running yet."""
    handler = type("FakeHandler", (Handler,), {"fake": fake})
    return Server(("127.0.0.1", port), handler)
