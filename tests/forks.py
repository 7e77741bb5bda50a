"""gpuctl's commands without the cost of their imports: forked from a process that has made them once.

A command is a process of its own, in a session of its own, that is really killed; only its imports are older
than itself. For tests that start hundreds of commands: all others start the installed command.

Run as a program it is that process: it reads requests from the socket that is its standard input.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

END_TIMEOUT_S = 10.0
LONGEST_REQUEST = 128 * 1024


class Forked:
    """A forked command, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, forks: "Forks", words: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        self._forks = forks
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - read at its end
        self._ended, alive = socket.socketpair()
        with alive:
            request = {"words": ["gpuctl", *words], "env": dict(env), "cwd": str(cwd)}
            self.pid = forks.ask(request, self._out, self._err, alive)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status; `None` while the command runs."""
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once the command has ended; raises TimeoutExpired."""
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"gpuctl, forked as {self.pid}", timeout or 0.0)
        return status

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return the command's stdout and stderr once it has ended; raises TimeoutExpired."""
        self.wait(timeout)
        texts = []
        for file in (self._out, self._err):
            with file:
                file.seek(0)
                # As text mode has it: every kind of a line's end is one.
                texts.append(file.read().decode().replace("\r\n", "\n").replace("\r", "\n"))
        return texts[0], texts[1]

    def _status(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout_s)[0]:
            self.returncode = self._forks.ask({"wait": self.pid})
            self._ended.close()
        return self.returncode


class Forks:
    """The process that forks, as tests see it."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lock = threading.Lock()

    def start(self, words: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> Forked:
        """Start a command; the caller ends it."""
        return Forked(self, words, env, cwd)

    def ask(self, request: Mapping[str, Any], *files: Any) -> int:
        """Send a request; return the answer: a pid, or an exit status."""
        with self._lock:
            socket.send_fds(self._control, [json.dumps(request).encode()], [file.fileno() for file in files])
            answer = self._control.recv(64)
        assert answer, "the process that forks has ended by itself"
        return int(answer)


@contextmanager
def forks_of(*modules: str, env: Mapping[str, str]) -> Iterator[Forks]:
    """Start the process that forks, with gpuctl and these modules imported in that environment, and end it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        # -P: this folder is not for a command to import from.
        words = [sys.executable, "-P", __file__, *modules]
        with its:
            process = subprocess.Popen(
                words, env=env, stdin=its, stdout=subprocess.DEVNULL, start_new_session=True
            )
        try:
            yield Forks(ours)
        finally:
            ours.close()
            try:
                process.wait(END_TIMEOUT_S)
            finally:
                process.kill()
                process.wait()


def serve(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork for each request until tests close their end; in a child, the request and its files."""
    while True:
        message, files, _, _ = socket.recv_fds(control, LONGEST_REQUEST, 3)
        if not message:
            return None
        request = json.loads(message)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                return request, files
        for file in files:
            os.close(file)
        control.send(str(answer).encode())


def become(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Make this process a command as the shell would have started it. The last file says that it lives."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, file in enumerate((nothing, *files[:2])):
        os.dup2(file, target)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[:] = request["words"]


def _main() -> int:
    from gpuctl.__main__ import main

    for module in sys.argv[1:]:
        importlib.import_module(module)
    assert threading.active_count() == 1, "a fork would lose threads"
    gc.freeze()  # a child that collects garbage would copy all pages
    with socket.socket(fileno=os.dup(0)) as control:
        child = serve(control)
    if child is None:
        return 0
    become(*child)
    return main()


if __name__ == "__main__":
    sys.exit(_main())
