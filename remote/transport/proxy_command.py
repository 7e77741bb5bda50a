"""A program whose input and output are the connection to a machine's SSH port: OpenSSH's ProxyCommand.

A bastion that is itself reached over another host is such a program, too: the system's `ssh -W`.
"""

import shlex
import socket
import subprocess
import tempfile
from contextlib import suppress
from threading import Lock

from inventories.bastion import Bastion
from inventories.clocks import awake_s
from inventories.machine import Machine
from inventories.user_ssh import ssh_argv
from remote.errors import Unreachable

END_S = 5.0
"""For a program to exit after it has closed its output, or after SIGTERM."""
SHOWN = 300


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
        self._where = f"{name}: ProxyCommand `{command}`"
        self._socket, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        with theirs:
            # In a session of its own: Ctrl-C here ends no connection.
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )
        self._closing = Lock()
        self._closed = self._ended = False
        self._failure: Unreachable | None = None

    def settimeout(self, timeout_s: float | None) -> None:
        """Set how long to wait for data."""
        self._socket.settimeout(timeout_s)

    def recv(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""
        try:
            data = self._socket.recv(size)
        except ConnectionError:
            data = b""  # it ended without reading all that was sent
        self._ended = self._ended or not data
        return self.note(data)

    def send(self, data: bytes) -> int:
        """Send some of it; how many bytes."""
        try:
            return self._socket.send(data)
        except ConnectionError:
            self._ended = True
            raise

    def close(self) -> None:
        """Close it, and end the program. Again: nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._socket.close()
            if self._ended:
                with suppress(subprocess.TimeoutExpired):
                    self._failure = self._reason(self._process.wait(END_S))
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
            self._stderr.close()

    def failure(self) -> Unreachable | None:
        """Close the stream. Returns the error of a program that had ended before; None: the program ran."""
        self.close()
        return self._failure

    def _reason(self, status: int) -> Unreachable:
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        printed = f"'{lines[-1][:SHOWN]}'" if lines else f"nothing, and its exit status was {status}"
        return Unreachable(f"{self._where} ended before SSH answered. It printed {printed}.")


def failure_of(stream: object) -> Unreachable | None:
    """Return the error of a stream whose program has ended. None: it runs, or the stream has no program."""
    return stream.failure() if isinstance(stream, ProxyStream) else None


def over(bastion: Bastion, machine: Machine) -> str:
    """Return the program that reaches a machine over a bastion as the user's own ssh does.

    As in gpuctl's own connections, the bastion's host key has to be known.
    """
    target = f"[{machine.host}]:{machine.port}" if ":" in machine.host else f"{machine.host}:{machine.port}"
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-W", target]
    user = ["-l", bastion.user] if bastion.user else []
    port = ["-p", str(bastion.port)] if bastion.port else []
    return shlex.join([*ssh_argv(), *options, *user, *port, "--", bastion.host])
