"""A program whose input and output are the connection to a machine's SSH port: OpenSSH's ProxyCommand.

A bastion that is itself reached over another host is such a program, too: the system's `ssh -W`.
"""

import re
import shlex
import signal
import socket
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from threading import Lock

from inventories.address import Address
from inventories.clocks import awake_s
from inventories.machine import Machine
from inventories.user_programs import last_line, signal_group, without_secrets
from inventories.user_ssh import login_words, ssh_argv
from remote.errors import Unreachable
from remote.transport.paramiko_errors import HungUp

END_S = 5.0
"""For a program to exit after it has closed its output, or after SIGTERM."""
NOT_STARTED = (126, 127)
"""Exit statuses of a shell for a program that can't be started."""
LASTING = re.compile(
    "permission denied|verification failed|could not resolve|not known|refused|no route|unreachable|timed out"
    "|open failed|bad configuration|too many authentication|no such|not found|unknown option|usage:",
    re.IGNORECASE,
)
"""Printed reasons with which a program would fail again at once."""


class WatchedStream:
    """A stream that remembers when something came."""

    def __init__(self) -> None:
        self._heard_at = awake_s()

    def silent_s(self) -> float:
        """Seconds since something came."""
        return awake_s() - self._heard_at

    def note(self, data: bytes) -> bytes:
        """Note what came, and return it."""
        if data:
            self._heard_at = awake_s()
        return data

    def close(self) -> None:
        """Close it."""
        raise NotImplementedError


class ProxyStream(WatchedStream):
    """A stream over a program, with the methods of a socket that paramiko calls."""

    def __init__(self, name: str, command: str) -> None:
        super().__init__()
        self._where = f"{name}: ProxyCommand `{without_secrets(command)}`"
        try:
            # Nothing stays open after an error.
            with ExitStack() as opened:
                self._socket, theirs = socket.socketpair()
                opened.callback(self._socket.close)
                with theirs:
                    self._stderr = opened.enter_context(tempfile.TemporaryFile())
                    # In a session of its own: Ctrl-C here ends no connection, and its children end with it.
                    self._process = subprocess.Popen(
                        ["/bin/sh", "-c", f"exec {command}"],
                        stdin=theirs.fileno(),
                        stdout=theirs.fileno(),
                        stderr=self._stderr,
                        start_new_session=True,
                    )
                opened.pop_all()
        except OSError as error:
            raise Unreachable(
                f"{self._where} can't be started: {error.strerror}. This computer may have too many open files or "
                "processes: see `ulimit -n` and `ulimit -u`."
            ) from error
        self._closing = Lock()
        self._closed = self._ended = False
        self.answered = False
        """Whether anything has come."""
        self._failure: Unreachable | None = None

    def settimeout(self, timeout_s: float | None) -> None:
        """Set how long to wait for data."""
        self._socket.settimeout(timeout_s)

    def recv(self, size: int) -> bytes:
        """Receive at most `size` bytes; empty at the end."""
        try:
            data = self._socket.recv(size)
        except ConnectionError:
            data = b""  # it ended without reading all that was sent
        self._ended = self._ended or not data
        self.answered = self.answered or bool(data)
        return self.note(data)

    def send(self, data: bytes) -> int:
        """Send a part of the data; returns its size."""
        try:
            return self._socket.send(data)
        except ConnectionError:
            self._ended = True
            raise

    def close(self) -> None:
        """Close it, and end the program with its children. Again: nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._socket.close()
            if self._ended:
                with suppress(subprocess.TimeoutExpired):
                    status = self._process.wait(END_S)
                    self._stderr.seek(0)
                    text = self._stderr.read().decode(errors="replace")
                    last = last_line(text)
                    printed = f"'{last}'" if last else f"nothing, and its exit status was {status}"
                    lasting = status in NOT_STARTED or LASTING.search(text)
                    self._failure = (Unreachable if lasting else HungUp)(
                        f"{self._where} ended before SSH answered. It printed {printed}."
                    )
            signal_group(self._process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
            signal_group(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._stderr.close()

    def failure(self) -> Unreachable | None:
        """Close the stream. Returns the error of a program that had ended before; `None`: the program ran."""
        self.close()
        return self._failure


def failure_of(stream: object, error: Unreachable) -> Unreachable:
    """Return the error of a connection over a stream, with the reason of its program where that has ended.

    HungUp: before the server's banner, for a reason that may pass.
    """
    if not isinstance(stream, ProxyStream) or (failure := stream.failure()) is None:
        return error
    # paramiko has another error where the program ended before paramiko's own banner was sent.
    return failure if isinstance(error, HungUp) or not stream.answered else Unreachable(str(failure))


def command_over_bastion(bastion: Address, machine: Machine) -> str:
    """Return the program that reaches a machine over a bastion as the user's own ssh does.

    As in gpuctl's own connections, the bastion's host key has to be known.
    """
    target = f"[{machine.host}]:{machine.port}" if ":" in machine.host else f"{machine.host}:{machine.port}"
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-W", target]
    return shlex.join([*ssh_argv(), *options, *login_words(bastion.user, bastion.port), "--", bastion.host])
