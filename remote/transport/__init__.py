"""Transports, which reach a machine: they start commands and forward ports.

A kind of transport is one module and one line in TRANSPORTS. The module has `connect(machine, cluster, timeout_s)`,
which returns a `Transport`, and raises Unreachable, HostKeyRejected or AuthenticationFailed (remote/errors.py).
"""

from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from inventories.disk.store import ClusterFolder
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
        """Send some of it; how many bytes. 0: the other side has closed it."""
        ...

    def recv(self, size: int, /) -> bytes:
        """Receive at most `size` bytes; none at the end."""
        ...

    def end_input(self) -> None:
        """Tell the other side that no more is sent."""
        ...

    def settimeout(self, timeout_s: float | None, /) -> None:
        """Set how long to wait for the other side. None: without end."""
        ...

    def close(self) -> None:
        """Close it. Again: nothing. A `recv` that waits in another thread returns nothing, or raises OSError."""
        ...


class Process(Stream, Protocol):
    """A command that was started on a machine: `send` is its standard input, `recv` its standard output."""

    def recv_stderr(self, size: int, /) -> bytes:
        """Receive at most `size` bytes of the standard error; none at the end."""
        ...

    def exit_status(self, timeout_s: float) -> int | None:
        """Wait for the exit status; NO_STATUS where it has none. None: it was not told within that time."""
        ...


class Transport(Protocol):
    """An open way to a machine. Used from several threads."""

    ssh_config: Path | None
    """A configuration in which the system's ssh finds the machine by its name; None: ssh can't get there."""

    def start(self, command: str, *, window_bytes: int | None = None, awaits_input: bool = False) -> Process:
        """Start a shell command. Raises ConnectionLost.

        Args:
            command: The command.
            window_bytes: At most so much of its output is on its way at a time. None: as much as is usual.
            awaits_input: It does nothing before its first input, so it may start twice: where this process was away
                while it started, its start is tried again.
        """
        ...

    def connect_port(self, port: int, host: str = LOOPBACK) -> Stream:
        """Connect to a port on the machine's loopback, or of a host that the machine reaches.

        Raises ConnectionLost, also where nobody listens there.
        """
        ...

    def is_open(self) -> bool:
        """Whether nothing is known to have broken it."""
        ...

    def close(self) -> None:
        """Close it; what runs detached on the machine goes on. Again: nothing."""
        ...


class Connector(Protocol):
    """What a transport's module is."""

    def connect(self, machine: Machine, cluster: ClusterFolder, timeout_s: float) -> Transport:
        """Open a way to the machine. `cluster`: where what is trusted is kept."""
        ...


def open_transport(machine: Machine, cluster: ClusterFolder, timeout_s: float) -> Transport:
    """Open the machine's own kind of transport. Raises UnknownTransport: an inventory may be of a newer gpuctl."""
    if machine.transport not in TRANSPORTS:
        raise UnknownTransport(
            f"{machine.name}: this gpuctl has no transport '{machine.transport}', only {', '.join(TRANSPORTS)}. "
            "Update gpuctl."
        )
    connector = cast(Connector, import_module(TRANSPORTS[machine.transport]))
    return connector.connect(machine, cluster, timeout_s)
