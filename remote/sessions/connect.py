"""Connecting to a machine, whatever its transport."""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from inventories.address import read_bastion
from inventories.clocks import awake_s, retry_if_away
from inventories.disk.cluster_files import ClusterFiles
from inventories.machine import Machine
from remote.errors import MachineGone, Unreachable
from remote.fanout import Outcome, fan_out
from remote.sessions.session import Node
from remote.transport import open_transport
from remote.transport.tcp import has_route

Answer = TypeVar("Answer")

CONNECT_TIMEOUT_S = 15.0
MAX_OFFLINE_S = 3600.0


def connect(machine: Machine, cluster: ClusterFiles, *, timeout_s: float = CONNECT_TIMEOUT_S) -> Node:
    """Open the connection to a machine of the cluster.

    Raises Unreachable with the stage that failed, HostKeyRejected before anything was sent, AuthenticationFailed.
    """
    return Node(machine, retry_if_away(lambda: open_transport(machine, cluster, timeout_s), Unreachable))


def connect_all(machines: Iterable[Machine], cluster: ClusterFiles) -> list[Outcome[Node]]:
    """Connect to machines at once; the open connections, to be closed, and the errors, in their order."""
    return fan_out(
        lambda machine: connect(machine, cluster),
        {machine.name: machine for machine in machines},
        discard=Node.close,
    )


def ask_each(
    question: Callable[[Node], Answer],
    machines: Iterable[Machine],
    cluster: ClusterFiles,
    *,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> list[Outcome[Answer]]:
    """Connect to machines at once, and return each one's answer, or the error, in their order."""

    def ask(machine: Machine) -> Answer:
        with connect(machine, cluster, timeout_s=timeout_s) as node:
            return question(node)

    return fan_out(ask, {machine.name: machine for machine in machines})


def reconnect(
    machine: Machine,
    cluster: ClusterFiles,
    *,
    deadline_s: float,
    wanted: Callable[[], bool] = lambda: True,
) -> Node:
    """Connect again to a machine that was reachable a moment ago, with a growing pause between attempts.

    A wrong host key, a refused login or a machine that is gone ends it at once. Raises the last Unreachable after
    the deadline, or where it is not `wanted` any more. The deadline begins again while this computer has no route to
    the machine, for at most MAX_OFFLINE_S.
    """
    limit, pause_s = awake_s() + deadline_s, 0.5
    offline_limit = awake_s() + MAX_OFFLINE_S
    while True:
        try:
            return connect(machine, cluster, timeout_s=min(10.0, max(1.0, limit - awake_s())))
        except MachineGone:
            raise
        except Unreachable:
            if awake_s() < offline_limit and _is_offline(machine):
                limit = awake_s() + deadline_s
            if awake_s() + pause_s > limit or not wanted():
                raise
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 5.0)


def _is_offline(machine: Machine) -> bool:
    """Return whether this computer has no route to the machine, or to its bastion. False: a program connects."""
    if not machine.has_ssh or machine.proxy_command is not None:
        return False
    return not has_route(machine.host if machine.bastion is None else read_bastion(machine.bastion).host)
