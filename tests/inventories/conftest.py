"""Children that import the package, ended by pid whatever the test does."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

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
