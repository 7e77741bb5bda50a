"""A Python for nodes that lets the requests of gpuctl through up to a chosen one: then a test kills gpuctl.

`gate_of(folder)` makes it, for `--python` of `up`. It runs as `gated_python.py FOLDER ARGUMENTS`, with the arguments
of Python; a connection that breaks ends what is held, as the host's SSH server sends SIGHUP.
"""

import fcntl
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CUT_BYTES = 1_000_000
"""Bytes that a cut request gets."""


class Gate:
    """The gate as a test sees it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.python = folder / "python"
        words = shlex.join([sys.executable, "-IS", __file__, str(folder)])
        self.python.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        self.python.chmod(0o755)

    def close_at(self, request: str, nth: int = 1, *, cut: bool = False) -> None:
        """Hold the n-th request of that name, or `cut` its input, and hold all that come after it."""
        self.open()
        (self._folder / "stop").write_text(f"{request} {nth} {'cut' if cut else 'hold'}")

    @property
    def closed(self) -> bool:
        """Return whether the chosen request is held, or has got all that it gets."""
        return (self._folder / "closed").exists()

    def open(self) -> None:
        """Let everything through."""
        for name in ("stop", "requests", "closing", "closed"):
            (self._folder / name).unlink(missing_ok=True)


def main(folder: Path, words: Sequence[str]) -> None:
    """Become Python with these arguments, once the gate lets them through."""
    if words[1:2] == ["-c"] or words[2:3] == ["greet"]:
        way = pass_gate(folder, words[-1])
        if way == "hold":
            signal.pause()
        if way == "cut":
            feed_part(folder, words)
    os.execv(sys.executable, [sys.executable, *words])


def pass_gate(folder: Path, request: str) -> str:
    """Return `go`, `hold` or `cut` for a request; the chosen one closes the gate."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (folder / "requests").open("a+") as log:
            log.write(f"{request}\n")
            log.seek(0)
            nth = log.read().split().count(request)
        if (folder / "closing").exists():
            return "hold"
        if not (folder / "stop").exists():
            return "go"
        name, number, way = (folder / "stop").read_text().split()
        if (name, int(number)) != (request, nth):
            return "go"
        (folder / "closing").touch()
        if way == "hold":
            (folder / "closed").touch()
        return way


def feed_part(folder: Path, words: Sequence[str]) -> None:
    """Run Python with the first bytes of the input, and wait for the end."""
    process = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    left = CUT_BYTES
    while left and (data := os.read(0, min(left, 65536))):
        process.stdin.write(data)
        left -= len(data)
    (folder / "closed").touch()
    signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
