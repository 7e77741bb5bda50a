"""A cloud is one folder and one line: with the toy cloud's, every command knows it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import clean_env

from tests.fakes.hosts import end_hosts

ROOT = Path(__file__).parents[2]
SSH_PORT = 22022
PROGRAM = """
import contextlib, io, json, sys
import tests.fakes.toy_cloud
from gpuctl.command_line import cli

for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(json.loads(line))
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
"""
SPEC = {
    "shape": "toy.1",
    "count": 2,
    "ssh_cidr": "127.0.0.1/32",
    "ttl": "4h",
    "python": sys.executable,
    "network": {"ssh_port": SSH_PORT},
}


@pytest.fixture
def gpuctl(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Runs commands in one process, which holds the toy cloud's account; returns the document of each."""
    (tmp_path / "gpus.yaml").write_text(yaml.safe_dump(SPEC))
    env = {
        **clean_env(),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "GPUCTL_HOME": str(tmp_path / "home"),
        "TOY_CLOUD_HOME": str(tmp_path / "machines"),
        "TOY_CLOUD_SSH_PORT": str(SSH_PORT),
    }
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def run(*words: str) -> Any:
            process.stdin.write(json.dumps(["--json", *words]) + "\n")
            process.stdin.flush()
            status, out, err = json.loads(process.stdout.readline())
            assert status == 0, err
            return json.loads(out)

        try:
            yield run
        finally:
            end_hosts(tmp_path / "machines")


@pytest.mark.slow
def test_a_folder_and_a_line_are_a_cloud(gpuctl: Callable[..., Any]) -> None:
    listed = gpuctl("shapes", "--provider", "toy")["shapes"]
    assert [(shape["name"], shape["usd_per_hour"]) for shape in listed] == [("toy.1", 0.5), ("toy.2", 1.0)]

    plan = gpuctl("up", "-f", "gpus.yaml", "--dry-run")
    operations = [request["operation"] for request in plan["requests"]]
    assert operations == ["MakeNetwork", "MakeFirewall", "MakeMachine", "MakeMachine"]
    assert plan["total_usd"] == pytest.approx(4 * (2 * 0.5 + 2 * 20 * 0.01 / 730), abs=0.001)

    up = gpuctl("up", "-f", "gpus.yaml", "--boot-timeout", "60s", "--yes")
    assert (up["provider"], up["region"]) == ("toy", "toyland-north")
    assert [machine["state"] for machine in up["machines"]] == ["running", "running"]
    assert {node["exit_code"] for node in gpuctl("exec", "--", "true")["nodes"]} == {0}
    assert [machine["state"] for machine in gpuctl("status")["machines"]] == ["running", "running"]
    assert gpuctl("clusters")["clusters"][0]["hourly_usd"] == up["hourly_usd"]
    assert gpuctl("doctor", "--shape", "toy.2")

    (result,) = gpuctl("reap", "--provider", "toy", "--dry-run")["clusters"]
    assert (result["cluster"], len(result["machines"])) == ("default", 2)
    assert gpuctl("down", "--yes")["leftovers"] == []
    assert gpuctl("reap", "--provider", "toy", "--yes")["clusters"] == []
