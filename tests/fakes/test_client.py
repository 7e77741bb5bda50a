"""The client that tests steer a fake cloud with, against the shared control alone."""

import sys

import psutil
import pytest
from support import wait_for

from tests.fakes.client import run_fake

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
