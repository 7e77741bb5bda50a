"""Connecting to a machine that is still booting: tried again until it lets us in, saying how far it is."""

import time
from collections.abc import Callable
from pathlib import Path

from inventories.machine import Machine
from remote.connection import connect
from remote.errors import AuthenticationFailed, Unreachable
from remote.session import Node

TRY_TIMEOUT_S = 10.0
LONGEST_PAUSE_S = 5.0
REFUSED_PAUSE_S = 10.0
"""OpenSSH 9.8 and later locks an address out that is refused too often (PerSourcePenalties)."""
EVERY_S = 30.0
QUIET_S = 10.0
"""A machine that is up by then is not worth a word."""


def connect_booting(
    machine: Machine, known_hosts: Path, *, deadline_s: float, say: Callable[[str], None] | None = None
) -> Node:
    """Open the connection as soon as the machine takes it.

    A refused login is tried again too: cloud-init puts the key there while SSH already answers. A wrong host
    key ends it at once. Raises the last error after the deadline.
    """
    began, pause_s, told, next_s = time.monotonic(), 0.2, "", 0.0
    while True:
        try:
            return connect(machine, known_hosts, timeout_s=TRY_TIMEOUT_S)
        except (Unreachable, AuthenticationFailed) as error:
            if isinstance(error, AuthenticationFailed):
                pause_s = REFUSED_PAUSE_S
            waited_s = time.monotonic() - began
            if waited_s + pause_s > deadline_s:
                minutes = f"It was waited for {waited_s / 60:.0f} minutes while it booted."
                raise type(error)(f"{error} {minutes}") from error
            stage = str(error).split(". ")[0]
            if say is not None and waited_s > QUIET_S and (stage != told or waited_s > next_s):
                told, next_s = stage, waited_s + EVERY_S
                say(f"waiting for {stage} … ({waited_s:.0f} s, at most {deadline_s / 60:.0f} minutes)")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
