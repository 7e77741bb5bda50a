"""Connecting to a machine: one SSH connection, a pinned host key, a socket that notices a dead peer."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from inventories.machine import Machine
from remote.errors import Unreachable
from remote.login import log_in
from remote.patience import patiently
from remote.session import Node
from remote.tcp import open_tcp

if TYPE_CHECKING:
    import socket

    from remote.tunnel import Tunnel

CONNECT_TIMEOUT_S = 15.0


def connect(machine: Machine, known_hosts: Path, *, timeout_s: float = CONNECT_TIMEOUT_S) -> Node:
    """Open the connection to a machine whose host key is pinned in `known_hosts`, over its jump host if it has one.

    A server that hangs up before its banner is tried again for `timeout_s`. Raises Unreachable with the stage that
    failed, HostKeyRejected before anything was sent, AuthenticationFailed.
    """
    return patiently(lambda: _connect(machine, known_hosts, timeout_s), deadline_s=timeout_s)


def _connect(machine: Machine, known_hosts: Path, timeout_s: float) -> Node:
    """As `connect`, once. Raises HungUp, too."""
    stream = _tunnel(machine, timeout_s) if machine.jump else _tcp(machine, timeout_s)
    try:
        return Node(machine, log_in(machine, stream, known_hosts, timeout_s))
    except BaseException:
        stream.close()
        raise


def _tunnel(machine: Machine, timeout_s: float) -> "Tunnel":
    from remote.tunnel import open_tunnel

    return open_tunnel(machine, timeout_s)


def _tcp(machine: Machine, timeout_s: float) -> "socket.socket":
    """A socket that is connected to the machine; what goes wrong becomes one of our errors."""
    where = f"{machine.name} ({machine.user}@{machine.host}:{machine.port})"
    try:
        return open_tcp(machine.host, machine.port, timeout_s)
    except TimeoutError as error:
        raise Unreachable(
            f"{where}: no answer within {timeout_s:.0f} s. A firewall drops the packets, or the machine is off: "
            "see `gpuctl status`."
        ) from error
    except OSError as error:
        raise Unreachable(
            f"{where}: no TCP connection: {error.strerror or error}. See `gpuctl status`; `gpuctl up` replaces "
            "a machine that is gone."
        ) from error


def reconnect(machine: Machine, known_hosts: Path, *, deadline_s: float) -> Node:
    """Connect again to a machine that was reachable a moment ago, with a growing pause between attempts.

    A wrong host key or a refused login ends it at once. Raises the last Unreachable after the deadline.
    """
    limit, pause_s = time.monotonic() + deadline_s, 0.5
    while True:
        try:
            return connect(machine, known_hosts, timeout_s=min(10.0, max(1.0, limit - time.monotonic())))
        except Unreachable:
            if time.monotonic() + pause_s > limit:
                raise
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 5.0)
