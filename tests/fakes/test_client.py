"""The client that tests steer a fake cloud with, against the shared control alone."""

import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from support import wait_for

from tests.fakes.client import FakeCloud, run_fake
from tests.fakes.control import Control, Dropped
from tests.fakes.settings import Settings

FAKE = """
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, os.getcwd())
from tests.fakes.hosts import Hosts

hosts = Hosts(Path(sys.argv[1]) / "hosts", 2222)
host = hosts.start("i-1", hosts.address(), b"")
while host.pid is None:
    time.sleep(0.01)
secrets = [name for name in os.environ if name.startswith("AWS_")]
print(json.dumps({"url": "http://127.0.0.1:1", "pid": host.pid, "env": {"secrets": str(secrets)}}), flush=True)
sys.stdin.read()
"""
"""Ends without ending its host."""


@contextmanager
def served(control: Control) -> Iterator[str]:
    """Serve only the control over HTTP."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = control.handle(self.command, self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def control() -> Control:
    return Control()


@pytest.fixture
def cloud(control: Control, tmp_path: Path) -> Iterator[FakeCloud]:
    with served(control) as url:
        yield FakeCloud(url=url, pid=0, env={}, log=tmp_path / "log")


class TestClient:
    def test_client_sets_faults_holds_and_settings(self, control, cloud):
        assert cloud.settings(launch_s=7)["launch_s"] == 7
        cloud.fault(operation="A", kind="hold_before")
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(lambda: control.before(control.begin("A", True)))
            assert cloud.held(wait_s=10) == {"n": 1, "operation": "A", "phase": "before"}
            assert cloud.release() == 1
            with pytest.raises(Dropped):
                held.result(10)
        control.begin("B", False)
        assert cloud.held(wait_s=0) is None
        assert [call["operation"] for call in cloud.calls()] == ["A", "B"]
        assert [call["n"] for call in cloud.calls("B")] == [2]
        assert [call["n"] for call in cloud.calls(mutating=True)] == [1]
        cloud.forget_calls()
        assert cloud.calls() == []
        cloud.fault(times=0)
        cloud.clear_faults()
        control.before(control.begin("C", True))
        cloud.reset()
        assert control.settings == Settings()

    def test_client_lists_live_instances_and_owned_resources(self, control, cloud):
        states = ("RUNNING", "TERMINATING", "TERMINATED", "shutting-down", "pending")
        control.snapshot = lambda: {
            "instances": [{"id": state, "state": state} for state in states],
            "resources": [
                {"id": "ours", "state": "AVAILABLE", "tags": {"gpuctl": "1"}},
                {"id": "removed", "state": "TERMINATED", "tags": {"gpuctl": "1"}},
                {"id": "no state", "state": None, "tags": {"gpuctl": "1"}},
                {"id": "theirs", "state": "AVAILABLE", "tags": {}},
            ],
        }
        assert [entry["id"] for entry in cloud.live_instances()] == ["RUNNING", "pending"]
        owned = ["RUNNING", "TERMINATING", "shutting-down", "pending", "ours", "no state"]
        assert [entry["id"] for entry in cloud.owned()] == owned

    def test_client_raises_on_a_refused_request(self, cloud):
        with pytest.raises(AssertionError, match="knd"):
            cloud.fault(knd="error")


class TestStart:
    def test_run_fake_ends_the_fake_without_leaking_secrets(self, tmp_path, monkeypatch):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
        with run_fake([sys.executable, "-c", FAKE, str(tmp_path)], tmp_path) as cloud:
            assert cloud.env == {"secrets": "[]"}
            server = psutil.Process(cloud.pid)
            assert server.environ()["GPUCTL_LOCAL_CLUSTER"] == str(tmp_path / "hosts")
        assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE

    def test_run_fake_reports_why_a_fake_did_not_start(self, tmp_path):
        failing = run_fake([sys.executable, "-c", "raise SystemExit('no port left')"], tmp_path)
        with pytest.raises(AssertionError, match="no port left"), failing:
            pass

    def test_run_fake_raises_when_the_fake_exits_by_itself(self, tmp_path):
        ready = '{"url": "http://127.0.0.1:1", "pid": os.getpid(), "env": {}}'
        program = f"import json, os; print(json.dumps({ready}), flush=True); raise SystemExit(3)"
        with pytest.raises(AssertionError, match="ended by itself, status 3"):  # noqa: SIM117
            with run_fake([sys.executable, "-c", program], tmp_path) as cloud:
                wait_for(lambda: has_ended(cloud.pid), what="the fake's end", deadline_s=10)


def has_ended(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
