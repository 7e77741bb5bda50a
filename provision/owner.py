"""The maker of a cluster, for people who find it later."""

import getpass
import socket

LONGEST = 100


def owner() -> str:
    """Return `user@host`, of this computer."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:LONGEST]
