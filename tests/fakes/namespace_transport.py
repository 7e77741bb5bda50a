"""A transport without SSH: commands are started in the namespaces of a VM-like host, which `Machine.id` names by pid.

Imported by a gpuctl, it is there under its name in inventories: `gpuctl_transport: namespace`.
"""

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from remote.errors import Unreachable
from remote.transport import LOOPBACK, NO_STATUS, TRANSPORTS
from tests.fakes.vms import boot
from tests.fakes.vms.host import PATH

TRANSPORTS["namespace"] = __name__

RELAY = """
import os, select, socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    for ready in select.select([0, peer], [], [])[0]:
        if ready == 0:
            data = os.read(0, 65536)
            if not data:
                raise SystemExit
            peer.sendall(data)
        else:
            data = peer.recv(65536)
            if not data:
                raise SystemExit
            os.write(1, data)
"""


def connect(machine: Machine, cluster: ClusterFolder, timeout_s: float) -> "NamespaceTransport":
    """Find the host's first process. Raises Unreachable if the host is off."""
    pid = int(machine.id)
    if not Path(f"/proc/{pid}").exists():
        raise Unreachable(f"{machine.name}: there is no process {pid}, so the host is off.")
    return NamespaceTransport(machine, pid)


class NamespaceTransport:
    """Run commands in a host, by the pid of its first process."""

    ssh_config = None

    def __init__(self, machine: Machine, pid: int) -> None:
        self._machine = machine
        self._pid = pid

    def start(
        self, command: str, *, window_bytes: int | None = None, awaits_input: bool = False
    ) -> "NamespaceProcess":
        """Start a shell command as the machine's user."""
        return NamespaceProcess([*self._enter(), "sh", "-c", f"cd; {command}"])

    def connect_port(self, port: int, host: str = LOOPBACK) -> "NamespaceProcess":
        """Connect to a port by a process there that passes bytes on."""
        return NamespaceProcess([*self._enter(), sys.executable, "-c", RELAY, host, str(port)])

    def is_open(self) -> bool:
        """Return whether the host is on."""
        return Path(f"/proc/{self._pid}").exists()

    def close(self) -> None:
        """Do nothing: a transport holds no resources."""

    def _enter(self) -> list[str]:
        return enter_argv(self._pid, self._machine.user)


def enter_argv(pid: int, user: str) -> list[str]:
    """Return the prefix of a command that runs it in the namespaces of a process, as that user."""
    env = ["env", "-i", f"HOME=/home/{user}", f"USER={user}", f"PATH={PATH}", "LANG=C.UTF-8"]
    return [*boot.enter_argv(pid), "runuser", "-u", user, "--", *env]


class NamespaceProcess:
    """A process in the host, by three pipes."""

    def __init__(self, argv: list[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
        )
        self._timeout_s: float | None = None

    def settimeout(self, timeout_s: float | None, /) -> None:
        """Set how long to wait for the other side."""
        self._timeout_s = timeout_s

    def send(self, data: bytes, /) -> int:
        """Write a part of the data to the standard input, and return its length."""
        stdin = _open(self._process.stdin)
        if not select.select([], [stdin], [], self._timeout_s)[1]:
            raise TimeoutError("timed out")
        return os.write(stdin.fileno(), data[: select.PIPE_BUF])

    def end_input(self) -> None:
        """Close the standard input."""
        _open(self._process.stdin).close()

    def recv(self, size: int, /) -> bytes:
        """Read from the standard output."""
        return self._read(self._process.stdout, size)

    def recv_stderr(self, size: int, /) -> bytes:
        """Read from the standard error."""
        return self._read(self._process.stderr, size)

    def exit_status(self, timeout_s: float) -> int | None:
        """Wait for the exit status."""
        limit = time.monotonic() + timeout_s
        while (status := self._process.poll()) is None and time.monotonic() < limit:
            time.sleep(0.005)
        return NO_STATUS if status is not None and status < 0 else status

    def close(self) -> None:
        """Kill the waiting process on this machine, then close the pipes, as the end of a connection does."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            _open(stream).close()

    def _read(self, stream: "IO[bytes] | None", size: int) -> bytes:
        try:
            if not select.select([_open(stream)], [], [], self._timeout_s)[0]:
                raise TimeoutError("timed out")
            return os.read(_open(stream).fileno(), size)
        except ValueError as error:  # it was closed by another thread
            raise ConnectionResetError("the process is closed") from error


def _open(stream: "IO[bytes] | None") -> "IO[bytes]":
    assert stream is not None
    return stream
