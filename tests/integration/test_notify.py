"""Test `--notify` with real runs on local hosts and a real HTTP server: one message for each event."""

import base64
import hashlib
import hmac
import os
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support import Gpuctl, processes_with, wait_for

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

HANGS = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for step in range(3):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(4))
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
    key = base64.b64decode(secret_path.read_text().removeprefix("whsec_"))
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
    assert data["text"].splitlines()[:2] == ["my.py fail", "rank 0: ValueError: label 12 is not below 10"]
    host.ok("results", run)
    assert server.types() == ["run.failed"] * 2


def test_undelivered_notice_is_reported_without_the_secret(host: Gpuctl, server: Receiver) -> None:
    server.answers += [404]
    done = host.ok("train", "--notify", f"{server.url}/s3cret", "my.py")
    line = next(line for line in done.err.splitlines() if "did not reach" in line)
    assert f"did not reach {server.url}/…: HTTP status 404; it is not sent again" in line
    assert "s3cret" not in done.err + done.out


def test_secret_is_in_no_file_command_line_or_output(host: Gpuctl, server: Receiver, tmp_path: Path) -> None:
    server.answers += [500] * 9
    targets = tmp_path / "targets"
    targets.write_text(f"{server.url}/s3cret\nslack:{server.url}/s3cret\ncommand:exit 3 # s3cret\n")
    targets.chmod(0o600)
    done = host.ok("--verbose", "train", "--notify", f"@{targets}", "my.py")
    assert done.err.count("did not reach") == 3
    lines = {path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()}
    assert processes_with(str(host.home)), "the node tries again"
    assert not any(b"s3cret" in line for line in lines)
    assert files_with(host.home, "s3cret") == []
    assert "s3cret" not in done.err + done.out + host.ok("runs").out + host.ok("results", "--json").out


def test_machine_that_is_shut_down_sends_it(host: Gpuctl, server: Receiver) -> None:
    host.script("endless.py", "import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    host.ok("train", "--detach", "--notify", server.url, "endless.py")
    wait_for(lambda: "begun" in host("logs").out, what="the ranks", deadline_s=60)
    for pid in processes_with(str(host.home / "clusters" / "default" / "local" / "default-0")):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    wait_for(lambda: server.requests, what="the notice")
    assert server.types() == ["run.failed"]
    assert server.requests[0].json["data"]["first_error"]["message"] == "its machine was shut down"


def test_status_reports_what_a_node_without_a_route_could_not_send(host: Gpuctl) -> None:
    assert "notices" not in host.ok("status", "--json").json
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        run = host.ok("train", "--json", "--notify", f"{url}/s3cret", "my.py").json["run"]
        done = host.ok("status", "--json")
    (notice,) = done.json["notices"]
    assert (notice["about"], notice["type"], notice["target"]) == (run, "run.succeeded", f"{url}/…")
    assert notice["problem"] == "Connection refused"
    assert notice["next_at"] is not None
    assert f"the notification run.succeeded of {run} did not reach {url}/…: Connection refused" in done.err
    assert "s3cret" not in done.err + done.out


def test_hang_is_sent_once_and_then_the_end(host: Gpuctl, server: Receiver) -> None:
    host.script("hangs.py", HANGS)
    options = ("--detach", "--nproc-per-node", "2", "--hang-after", "3s", "--stop-grace", "1s")
    run = host.ok("train", "--json", *options, "--notify", server.url, "hangs.py").json["run"]
    wait_for(lambda: server.requests, what="the notice of the hang", deadline_s=90)
    host.ok("stop", run)
    wait_for(lambda: len(server.requests) > 1, what="the notice of the end")
    assert server.types() == ["run.hung", "run.stopped"]
    hung = server.requests[0].json["data"]
    assert hung["title"].startswith("hangs.py hangs: no progress for ")
    assert hung["next"] == f"gpuctl why {run}"


def test_stopped_run_is_no_failure(host: Gpuctl, server: Receiver) -> None:
    host.script("endless.py", "import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    run = host.ok("train", "--detach", "--json", "--notify", server.url, "endless.py").json["run"]
    host.ok("stop", run)
    wait_for(lambda: server.requests, what="the notice")
    assert server.types() == ["run.stopped"]


def test_lost_first_node_is_sent_by_the_command(two_hosts: Gpuctl, server: Receiver) -> None:
    two_hosts.script("endless.py", "import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    process = two_hosts.start("train", "--notify", server.url, "endless.py")
    wait_for(lambda: "begun" in two_hosts("logs").out, what="the ranks", deadline_s=60)
    two_hosts.kill_host("default-0")
    process.communicate(timeout=120)
    assert server.types() == ["run.node_lost"]
    assert server.requests[0].json["data"]["node"] == "default-0"


def test_up_and_bench_send_how_they_ended(gpuctl: Gpuctl, server: Receiver) -> None:
    gpuctl.script("spec.yaml", f"provider: local\ncount: 1\nnotify: [{server.url}/up]\n")
    gpuctl.ok("up", "-f", "spec.yaml")
    gpuctl.script("gpuctl.yaml", f"notify: ['{server.url}/bench']\n")
    gpuctl.ok("bench", "--layouts", "1x1", "--", "--epochs", "1", "--model", "mlp", timeout_s=400)
    gpuctl.script("spec.yaml", f"setup: [exit 3]\nnotify: ['{server.url}/up']\n")
    assert gpuctl("up", "-f", "spec.yaml").status == 4
    assert [(request.path, request.json["type"]) for request in server.requests] == [
        ("/up", "command.succeeded"),
        ("/bench", "command.succeeded"),
        ("/up", "command.failed"),
    ]
    up, bench, failed = (request.json["data"]["text"] for request in server.requests)
    assert up == "cluster default: 1 machine"
    assert bench.startswith("1x1: ")
    assert "it exited with status 3" in failed


def test_start_that_fails_is_sent_by_the_command(host: Gpuctl, server: Receiver) -> None:
    host.kill_host("default-0")
    assert host("train", "--notify", server.url, "my.py").status == 1
    assert host("train", "--notify", server.url, "--resume", "other.py").status == 2
    assert server.types() == ["command.failed"]
    assert server.requests[0].json["data"]["title"] == "gpuctl train my.py failed"


def files_with(folder: Path, text: str) -> list[Path]:
    """Return the files below a folder that contain a text."""
    paths = [Path(root) / name for root, _, names in os.walk(folder) for name in names]
    return [path for path in paths if path.is_file() and text.encode() in path.read_bytes()]
