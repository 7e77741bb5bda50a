"""Run a child process on a pseudo-terminal, and return the screen that a person would see."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[1]


class Terminal:
    """A Python program on a terminal of 80 columns. A context manager; the child is ended with it."""

    def __init__(self, code: str, *words: str, stdout: int | None = None, **environment: str) -> None:
        env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
        env |= {
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm-256color",
            "COLUMNS": "80",
            "PYTHONIOENCODING": "utf-8",
        }
        self._end, child = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stdin=child,
            stdout=child if stdout is None else stdout,
            stderr=child,
            env=env | environment,
            start_new_session=True,
        )
        os.close(child)
        self.seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._end)

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def wait_for(self, text: str, *, timeout_s: float = 30.0) -> None:
        """Read until the text was written."""
        deadline = time.monotonic() + timeout_s
        while text not in self.seen:
            if not self._read(deadline):
                raise AssertionError(f"{text!r} did not appear in {self.seen!r}")

    def wait(self, *, timeout_s: float = 30.0) -> int:
        """Read until the program ended; its exit status."""
        deadline = time.monotonic() + timeout_s
        while self._read(deadline):
            pass
        return self.process.wait(timeout=max(deadline - time.monotonic(), 0.1))

    def _read(self, deadline: float) -> bool:
        """Read once; False at the end of the program's output. Fails at the deadline."""
        ready, _, _ = select.select([self._end], [], [], max(deadline - time.monotonic(), 0))
        assert ready, f"the terminal is silent after {self.seen!r}"
        try:
            data = os.read(self._end, 65536)
        except OSError:  # Linux: the other side is closed
            return False
        self.seen += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)


def python(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the code in Python without a terminal."""
    return run([sys.executable, "-c", code, *words], **environment)


def run(command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    env |= {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
