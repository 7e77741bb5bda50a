"""Test that a forked command equals the installed command, except for its imports."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from clouds import KINDS, CloudGpuctl
from forks import Forks, forks_of
from support import clean_env

from tests.fakes.client import FakeCloud


@pytest.fixture
def gpuctl(imported: Forks, tmp_path: Path) -> CloudGpuctl:
    """gpuctl without a cloud."""
    nowhere = FakeCloud(url="", pid=0, env={}, log=tmp_path / "log")
    return CloudGpuctl(home=tmp_path / "home", cwd=tmp_path, cloud=nowhere, kind=KINDS["aws"], forks=imported)


@pytest.mark.parametrize(
    "words",
    [("--version",), ("status",), ("status", "--json"), ("down", "--cluster", "/"), ("stattus",)],
    ids=" ".join,
)
def test_forked_command_answers_like_installed_one(gpuctl: CloudGpuctl, words: tuple[str, ...]) -> None:
    assert gpuctl(*words) == replace(gpuctl, forks=None)(*words)


def test_forked_commands_have_own_folder_and_environment(gpuctl: CloudGpuctl) -> None:
    local = gpuctl.cwd / "here"
    local.mkdir()
    (local / "spec.yaml").write_text("no such key: 1\n")
    assert "no such key" in gpuctl("up", "-f", "spec.yaml", cwd=local).err
    assert "no such key" not in gpuctl("up", "-f", "spec.yaml").err
    assert "/elsewhere" in gpuctl("status", "--json", env={"GPUCTL_HOME": "/dev/null/elsewhere"}).err
    assert "/elsewhere" not in gpuctl("status", "--json").err


def test_forked_command_that_hangs_can_be_killed(gpuctl: CloudGpuctl) -> None:
    os.mkfifo(gpuctl.cwd / "hosts")
    process = gpuctl.fork("up", "--provider", "hosts", "--hosts", "hosts")
    running = psutil.Process(process.pid)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.3)
    assert (process.poll(), running.is_running(), os.getsid(process.pid)) == (None, True, process.pid)
    process.kill()
    assert process.communicate(timeout=10) == ("", "")
    assert (process.poll(), process.returncode) == (-9, -9)
    assert not running.is_running()


def test_fork_server_ends_with_its_context() -> None:
    before = set(psutil.Process().children())
    with forks_of(env=clean_env()):
        (started,) = set(psutil.Process().children()) - before
        assert started.num_threads() == 1
    assert not started.is_running()
