"""Work on a node that must not outlive who asked for it: a lock with a deadline, and uv with its words passed on."""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any, BinaryIO, Dict, Iterator, List, Tuple

from remote.node import process
from remote.shared import frames
from remote.shared.addresses import without_logins

BEAT_S = 5.0
POLL_S = 0.2
TAIL_LINES = 15
NOISE = ("Activate with:", "Using Python ", "Creating virtual environment", "+ ")
"""Beginnings of uv's lines that say nothing to somebody who did not type the command."""
ERROR = re.compile(r"\s*error:", re.IGNORECASE)
"""How uv, pip and conda's programs begin to say why they fail."""

LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
"""Loaded ahead: between fork and exec no time is left for it."""
PR_SET_PDEATHSIG = 1


class Caller:
    """The other side: gets reports; gone when its stream has ended, or the SSH server says so by a signal.

    Waits and work end then. To be made in the main thread of a process that does nothing else.
    """

    def __init__(self, output: BinaryIO, incoming: Iterator[object], deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._output = output
        self._limit = time.monotonic() + deadline_s
        self._caller_left = Event()
        self._reported_at = time.monotonic()
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: self._caller_left.set())
        Thread(target=self._listen, args=(incoming,), daemon=True).start()

    def _listen(self, incoming: Iterator[object]) -> None:
        try:
            for _ in incoming:
                continue
        finally:
            self._caller_left.set()

    def progress(self, text: str) -> None:
        """Report the current step."""
        self.tell({"t": frames.PROGRESS, "text": text})

    def tell(self, header: Dict[str, Any]) -> None:
        """Send a frame."""
        frames.write(self._output, header)
        self._reported_at = time.monotonic()

    def check(self, work: str) -> None:
        """Send a beat where it has been quiet, as a sign of life for the other side.

        Raises BrokenPipeError if the other side has disconnected, TimeoutError after the deadline.
        """
        if self._caller_left.is_set():
            raise BrokenPipeError(errno.EPIPE, "the connection ended")
        if time.monotonic() > self._limit:
            raise TimeoutError("{} took longer than {:.0f} minutes".format(work, self.deadline_s / 60))
        if time.monotonic() - self._reported_at > BEAT_S:
            self.tell({"t": frames.BEAT})


@contextlib.contextmanager
def alone(path: Path, caller: Caller) -> Iterator[None]:
    """Hold a lock among all processes of this node, and of nodes that share its home; wait for it, with a message.

    The lock ends with its process, however that ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(str(path), "a+b") as file:
        waiting = False
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError):
                if not waiting:
                    holder = path.read_text(errors="replace").strip() or "another process"
                    caller.progress("waiting for the same build by {}".format(holder))
                    waiting = True
                caller.check("waiting for the same build")
                time.sleep(POLL_S)
        file.truncate(0)
        file.write("{}, pid {}".format(socket.gethostname(), os.getpid()).encode())
        file.flush()
        yield


def run(
    argv: List[str],
    cwd: Path,
    environment: Dict[str, str],
    caller: Caller,
    *,
    quiet: bool = False,
    keep: int = TAIL_LINES,
) -> Tuple[int, List[str]]:
    """Run a command to its end, its output reported line by line unless `quiet`; its exit status and its last lines.

    `keep`: how many of these. An error and its consequences are reported only for a command that succeeds: the
    outcome of a failure, its caller says.

    It does not outlive this process, however that ends, nor the caller's connection.
    """
    with open(os.devnull, "rb") as nothing:
        started = subprocess.Popen(
            argv,
            cwd=str(cwd),
            env=environment,
            stdin=nothing,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    assert started.stdout is not None
    tail: List[str] = []
    held: List[str] = []
    rest = b""
    try:
        while True:
            ready, _, _ = select.select([started.stdout], [], [], POLL_S)
            caller.check(os.path.basename(argv[0]))
            if not ready:
                continue
            data = os.read(started.stdout.fileno(), 65536)
            *lines, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
            for line in lines if data else [rest]:
                text = without_logins(line.decode(errors="replace").rstrip())
                if text and not text.lstrip().startswith(NOISE):
                    tail = [*tail, text][-keep:]
                    if quiet:
                        continue
                    if held or ERROR.match(text):
                        held.append(text.strip())
                    else:
                        caller.progress(text.strip())
            if not data:
                code = started.wait()
                for text in held if code == 0 else ():
                    caller.progress(text)
                return code, tail
    finally:
        # Also its children: build backends are in its group.
        process.signal_group(started.pid, signal.SIGKILL)
        started.wait()
        started.stdout.close()


def _die_with_parent() -> None:
    """In the child: end when the parent ends, even if that was killed (Linux)."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
