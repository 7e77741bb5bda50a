"""Connecting to a machine that is still booting: tried again until it lets us in, saying how far it is."""

import time
from collections.abc import Callable

from inventories.clocks import awake_s
from inventories.disk.cluster_files import ClusterFiles
from inventories.machine import Machine
from remote.errors import AuthenticationFailed, MachineGone, Unreachable
from remote.sessions.connect import connect
from remote.sessions.session import Node

TRY_TIMEOUT_S = 10.0
LEAST_TRY_S = 1.0
LONGEST_PAUSE_S = 5.0
REFUSED_PAUSE_S = 10.0
"""OpenSSH 9.8 and later locks an address out that is refused too often (PerSourcePenalties)."""
EVERY_S = 30.0
QUIET_S = 10.0
"""A machine that is up by then is not worth a word."""


def connect_booting(
    machine: Machine, cluster: ClusterFiles, *, deadline_s: float, say: Callable[[str], None] | None = None
) -> Node:
    """Open the connection as soon as the machine takes it.

    A refused login is tried again too: cloud-init puts the key there while SSH already answers. A wrong host
    key, or a machine that is gone, ends it at once. Raises the last error after the deadline.
    """
    began, pause_s, reported, next_s = awake_s(), 0.2, "", 0.0
    left_s = deadline_s
    while True:
        try:
            return connect(machine, cluster, timeout_s=min(TRY_TIMEOUT_S, max(LEAST_TRY_S, left_s)))
        except MachineGone:
            raise
        except (Unreachable, AuthenticationFailed) as error:
            waited_s = awake_s() - began
            left_s = deadline_s - waited_s
            refused = isinstance(error, AuthenticationFailed)
            pause_s = REFUSED_PAUSE_S if refused else min(pause_s, left_s)
            if left_s <= 0 or pause_s > left_s:
                raise type(error)(f"{error} It was waited for {span(waited_s)} while it booted.") from error
            stage = str(error).split(". ")[0]
            if say is not None and waited_s > QUIET_S and (stage != reported or waited_s > next_s):
                reported, next_s = stage, waited_s + EVERY_S
                say(f"waiting for {stage} … ({waited_s:.0f} s, at most {span(deadline_s)})")
        time.sleep(pause_s)
        left_s = deadline_s - (awake_s() - began)
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)


def span(seconds: float) -> str:
    """`45 s`, `15 minutes`: how long something was waited for."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
