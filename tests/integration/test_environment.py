"""Machines that have no torch and no way out: environments built from wheels that are sent there."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Gpuctl

from remote.node.environments.uv_tool import VERSION as UV_VERSION
from remote.python_env.requirements import built_in_requirements
from tests.fakes.vms import Net, lacking, vms

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=lacking() or "")]

SYSTEM_PYTHON = Path("/usr/bin/python3")
"""Python of the hosts, which share this machine's files."""


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Download the wheels of the built-in job for the hosts' Python, and of uv, as pip gets them."""
    folder = tmp_path_factory.mktemp("wheels")
    request = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    local = "{}.{}".format(*sys.version_info[:2])
    if request.stdout.strip() != local:
        pytest.skip(f"needs wheels for the hosts' Python: {SYSTEM_PYTHON} is not of version {local}")
    constraints = Path(__file__).parents[2] / "constraints.txt"
    command = [sys.executable, "-m", "pip", "-q", "download", "--only-binary", ":all:", "-d", str(folder)]
    done = subprocess.run(
        [*command, "-c", str(constraints), f"uv=={UV_VERSION}", *built_in_requirements()],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"needs a package index: {done.stderr.strip()[-300:]}")
    return folder


@pytest.fixture
def bare(gpuctl: Gpuctl, tmp_path: Path) -> Iterator[Net]:
    """A cluster of two hosts whose Python has no torch, behind OCI's firewall, with no way out."""
    with vms(tmp_path, count=2, firewall="oci") as net:
        hosts_file, known_hosts = net.inventory()
        gpuctl.ok("up", "--hosts", str(hosts_file), "--known-hosts", str(known_hosts))
        yield net
        gpuctl.ok("down", "--yes")


@pytest.mark.usefixtures("bare")
def test_train_builds_environment_of_built_in_job_from_wheels(gpuctl: Gpuctl, wheels: Path) -> None:
    without = gpuctl("train")
    assert without.status == 1
    assert "--wheels DIR" in without.err
    assert "gpuctl train brings it once" in gpuctl("doctor", "--cluster").err

    words = ("train", "--json", "--wheels", str(wheels), "--", "--epochs", "1")
    first = gpuctl.ok(*words, timeout_s=300)
    assert first.json["status"] == "succeeded"
    assert first.err.count("environment of the built-in job: built in") == 2
    again = gpuctl.ok(*words)
    assert again.err.count("environment of the built-in job: ready") == 2

    measured = gpuctl.ok("doctor", "--cluster", "--json").json
    assert measured["ok"] is True
    assert {line["world_size"] for line in measured["allreduce"]} == {2}


@pytest.mark.usefixtures("bare")
def test_train_builds_environment_for_requirements_and_pip(gpuctl: Gpuctl, wheels: Path) -> None:
    gpuctl.script("requirements.txt", "torch\n")
    gpuctl.script("where.py", "import sys, torch\nprint('python', sys.prefix, torch.__version__)\n")
    done = gpuctl.ok("train", "--json", "--wheels", str(wheels), "where.py", timeout_s=300)
    log = (gpuctl.run_folder(done.json["run"]) / "logs" / "rank-1.log").read_text()
    assert "python /home/ubuntu/.gpuctl-node/envs/" in log

    gpuctl.script("needs.py", "import filelock, torch\n")
    gpuctl.ok("train", "--wheels", str(wheels), "--pip", "filelock", "needs.py", timeout_s=300)
    result = gpuctl.ok("clean", "--dry-run", "--json").json["items"]
    environments = [
        (item["removes"], item["name"] in log) for item in result if item["kind"] == "environment"
    ]
    assert sorted(environments) == [(False, False)] * 2 + [(True, True)] * 2, (
        "the one that was used last stays"
    )
    assert gpuctl.ok("clean", "--yes", "--json").json["freed_bytes"] > 0
    gpuctl.ok("train", "--wheels", str(wheels), "--pip", "filelock", "needs.py")

    both = gpuctl("train", "--python", "/usr/bin/python3", "--pip", "torch", "where.py")
    assert both.status == 2
    assert "leave it out, or leave out --pip" in both.err
