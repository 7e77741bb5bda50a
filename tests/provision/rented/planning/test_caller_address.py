"""The caller's address, asked of real web servers on loopback."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from inventories.errors import InvalidInput
from provision.rented.planning import caller_address
from provision.rented.planning.caller_address import caller_cidrs


@pytest.fixture
def service():
    """Starts a service that answers with the given text, and returns its address."""
    servers = []

    def start(text: str | bytes, status: int = 200, hang: threading.Event | None = None) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if hang is not None:
                    hang.wait(20)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode() if isinstance(text, str) else text)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_address[1]}/"

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def refusal(url: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        caller_cidrs(None, url=url)
    assert str(caught.value).endswith(
        "Say who may reach SSH with --ssh-cidr, as in --ssh-cidr 203.0.113.7/32."
    )
    return str(caught.value)


def test_caller_cidrs_times_out_on_an_answer_sent_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_address, "IN_ALL_S", 0.3)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            existing, _ = listener.accept()
            with existing:
                existing.sendall(b"HTTP/1.0 200 OK\r\n")
                while not over.wait(0.05):
                    existing.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            output = refusal(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        finally:
            over.set()
            thread.join()
    assert "did not answer within 0 s" in output


@pytest.mark.parametrize("cidr", ["0.0.0.0/0", "10.0.0.0/8", "2001:db8::/32"])
def test_caller_cidrs_returns_the_given_cidr_unchanged(cidr):
    assert caller_cidrs(cidr, url="http://127.0.0.1:1/") == (cidr,)


@pytest.mark.parametrize(
    ("answer", "cidr"), [("203.0.113.7\n", "203.0.113.7/32"), ("2001:db8::7", "2001:db8::7/128")]
)
def test_caller_cidrs_returns_the_address_the_service_reports(service, answer, cidr, monkeypatch):
    url = service(answer)
    assert caller_cidrs(None, url=url) == (cidr,)
    monkeypatch.setenv("GPUCTL_ADDRESS_URL", url)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1/")
    assert caller_cidrs(None) == (cidr,)


@pytest.mark.parametrize(
    "answer", ["", "0.0.0.0", "0.0.0.0/0", "10.0.0.0/8", "<html>hello", "224.0.0.1", b"\xff\xfe", "1" * 9999]
)
def test_caller_cidrs_refuses_an_answer_that_is_no_public_address(service, answer):
    refusal(service(answer))


def test_caller_cidrs_reports_why_the_address_service_failed(service):
    assert "does not tell (Forbidden)" in refusal(service("203.0.113.7", status=403))
    assert "Connection refused" in refusal("http://127.0.0.1:1/")
    assert "it is no web address" in refusal("file:///etc/hostname")


def test_caller_cidrs_times_out_on_a_silent_service(service, monkeypatch):
    monkeypatch.setattr(caller_address, "ASK_TIMEOUT_S", 0.2)
    go = threading.Event()
    url = service("203.0.113.7", hang=go)
    try:
        assert "timed out" in refusal(url)
    finally:
        go.set()


def test_doctor_finds_the_address_or_how_to_name_it(service, monkeypatch):
    monkeypatch.setenv("GPUCTL_ADDRESS_URL", service('"203.0.113.7"'))
    assert caller_address.check(None).detail == "`up` would let in SSH from 203.0.113.7/32"
    monkeypatch.setenv("GPUCTL_ADDRESS_URL", "http://127.0.0.1:1/")
    finding = caller_address.check(None)
    assert (finding.ok, "does not tell" in finding.detail) == (False, True)
    assert "--ssh-cidr 203.0.113.7/32" in finding.fix
    assert caller_address.check("10.0.0.0/8").ok
