"""Test `--notify` with real runs on local hosts and a real HTTP server: one message for each event."""

import base64
import hashlib
import hmac
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Gpuctl, wait_for

from tests.fakes.webhooks import Receiver, receiver

pytestmark = pytest.mark.slow

LOSSES = """
import json, os, sys
with open(os.environ["GPUCTL_METRICS"], "a") as file:
    for step in range(40):
        file.write(json.dumps({"step": step, "loss": 2.5 - step / 20, "samples": step * 8}) + "\\n")
if "fail" in sys.argv:
    raise ValueError("label 12 is not below 10")
"""


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as server:
        yield server


@pytest.fixture
def host(gpuctl: Gpuctl) -> Gpuctl:
    """Yield a cluster of one fresh local host."""
    gpuctl.ok("up", "--provider", "local", "--count", "1")
    gpuctl.script("my.py", LOSSES)
    return gpuctl


def test_end_of_a_run_is_sent_once_and_signed(host: Gpuctl, server: Receiver) -> None:
    result = host.ok("train", "--json", "--notify", f"{server.url}/hook/s3cret", "my.py").json
    (request,) = server.requests
    assert request.path == "/hook/s3cret"
    document = request.json
    assert document["type"] == "run.succeeded"
    data = document["data"]
    assert (data["run"], data["status"], data["exit_code"]) == (result["run"], "succeeded", 0)
    assert data["title"].startswith("my.py succeeded after ")
    assert data["loss"][-1] == pytest.approx(0.55)
    assert data["text"].splitlines()[0].startswith("loss █")
    assert data["text"].splitlines()[-1] == f"gpuctl results {result['run']}"
    secret_path = host.home / "notify.secret"
    assert stat.S_IMODE(secret_path.stat().st_mode) == 0o600
    head = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode()
    key = secret_path.read_text().strip().encode()
    expected = base64.b64encode(hmac.new(key, head + request.body, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"
    assert files_with(host.home, "s3cret") == []


def test_failure_names_the_exception_with_the_laptop_away(host: Gpuctl, server: Receiver) -> None:
    server.answers += [500]
    run = host.ok("train", "--detach", "--json", "--notify", server.url, "my.py", "fail").json["run"]
    wait_for(lambda: len(server.requests) == 2, what="the second attempt", deadline_s=60)
    first, second = server.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    data = second.json["data"]
    assert (data["run"], data["status"]) == (run, "failed")
    assert data["first_error"]["message"] == "ValueError: label 12 is not below 10"
    assert data["text"].splitlines()[0] == "rank 0: ValueError: label 12 is not below 10"
    host.ok("results", run)
    assert server.types() == ["run.failed"] * 2


def test_undelivered_notice_is_reported_without_the_secret(host: Gpuctl, server: Receiver) -> None:
    server.answers += [404]
    done = host.ok("train", "--notify", f"{server.url}/s3cret", "my.py")
    line = next(line for line in done.err.splitlines() if "did not reach" in line)
    assert f"did not reach {server.url}/…: HTTP status 404; it is not sent again" in line
    assert "s3cret" not in done.err + done.out


def files_with(folder: Path, text: str) -> list[Path]:
    """Return the files below a folder that contain a text."""
    paths = [Path(root) / name for root, _, names in os.walk(folder) for name in names]
    return [path for path in paths if path.is_file() and text.encode() in path.read_bytes()]
