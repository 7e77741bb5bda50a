"""Transports, which reach a machine: they start commands and forward ports.

A kind of transport is one module and one line in TRANSPORTS. The module has `connect(machine, cluster, timeout_s)`,
which returns a `Transport`, and raises Unreachable, HostKeyRejected or AuthenticationFailed (remote/errors.py).
"""

from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from inventories.disk.cluster_files import ClusterFiles
from inventories.machine import Machine
from remote.errors import UnknownTransport

LOOPBACK = "127.0.0.1"
NO_STATUS = -1
"""Exit status of a command that a signal ended, or whose connection broke."""

TRANSPORTS = {"ssh": "remote.transport.ssh", "pod": "remote.transport.pods.pod"}
"""Name in the inventory → module."""


class Stream(Protocol):
    """Bytes both ways. A broken connection raises OSError; waiting for longer than was set, TimeoutError."""

    def send(self, data: bytes, /) -> int:
        """Send a part of the data; returns its size. 0: the other side has closed the stream."""

    def recv(self, size: int, /) -> bytes:
        """Receive at most `size` bytes; empty at the end."""

    def end_input(self) -> None:
        """Tell the other side that no more is sent."""

    def settimeout(self, timeout_s: float | None, /) -> None:
        """Set how long to wait for the other side. `None`: without end."""

    def close(self) -> None:
        """Close it. Again: nothing. A `recv` that waits in another thread returns nothing, or raises OSError."""


class Process(Stream, Protocol):
    """A command that was started on a machine: `send` is its standard input, `recv` its standard output."""

    def recv_stderr(self, size: int, /) -> bytes:
        """Receive at most `size` bytes of the standard error; empty at the end."""

    def exit_status(self, timeout_s: float) -> int | None:
        """Wait for the exit status; NO_STATUS if the command has no status. `None`: it did not arrive in time."""


class Transport(Protocol):
    """An open way to a machine. Used from several threads."""

    ssh_config: Path | None
    """A configuration in which the system's ssh finds the machine by its name; `None`: ssh can't get there."""

    def start(self, command: str, *, window_bytes: int | None = None, awaits_input: bool = False) -> Process:
        """Start a shell command. Raises ConnectionLost.

        Args:
            command: The command.
            window_bytes: The maximum of its output in transfer. `None`: as much as is usual.
            awaits_input: It does nothing before its first input, so it may start twice: where this process was away
                while it started, its start is tried again.
        """

    def connect_port(self, port: int, host: str = LOOPBACK) -> Stream:
        """Connect to a port on the machine's loopback, or of a host that the machine reaches.

        Raises ConnectionLost, also where nobody listens there.
        """

    def is_open(self) -> bool:
        """Return whether the connection is not known to be broken."""

    def close(self) -> None:
        """Close the connection; detached processes on the machine continue. Idempotent."""


class Connector(Protocol):
    """The functions of a transport's module."""

    def connect(self, machine: Machine, cluster: ClusterFiles, timeout_s: float) -> Transport:
        """Open a connection to the machine. `cluster`: the folder of trusted keys."""


def open_transport(machine: Machine, cluster: ClusterFiles, timeout_s: float) -> Transport:
    """Open the machine's own kind of transport. Raises UnknownTransport: an inventory may be of a newer gpuctl."""
    if machine.transport not in TRANSPORTS:
        raise UnknownTransport(
            f"{machine.name}: this gpuctl has no transport '{machine.transport}', only {', '.join(TRANSPORTS)}. "
            "Update gpuctl."
        )
    connector = cast(Connector, import_module(TRANSPORTS[machine.transport]))
    return connector.connect(machine, cluster, timeout_s)
