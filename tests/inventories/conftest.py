"""Start child processes that import the package; each is ended by pid after the test."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import inventories

ROOT = Path(inventories.__file__).parent.parent

StartPython = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_python(tmp_path: Path) -> Iterator[StartPython]:
    """Start `python -c CODE ARGS…` with pipes, in an empty folder."""
    children: list[subprocess.Popen[str]] = []

    def start(code: str, *args: object) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, args)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "GPUCTL_HOME": str(tmp_path / "home")},
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate(timeout=30)


@pytest.fixture
def ansible_list(tmp_path: Path) -> Callable[[Path], dict[str, Any]]:
    """Return a function that parses a file with the real `ansible-inventory --list`, without warnings."""

    def run(path: Path) -> dict[str, Any]:
        home = tmp_path / "ansible"
        home.mkdir(exist_ok=True)
        config = home / "ansible.cfg"
        config.touch()
        done = subprocess.run(
            [Path(sys.executable).parent / "ansible-inventory", "-i", path, "--list"],
            env={
                **os.environ,
                "ANSIBLE_HOME": str(home),
                "ANSIBLE_LOCAL_TEMP": str(home / "tmp"),
                "ANSIBLE_CONFIG": str(config),
                "LC_ALL": "C.UTF-8",
                "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1",
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return json.loads(done.stdout)

    return run
