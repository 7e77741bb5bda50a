"""The meaning of paramiko's errors that only their words tell apart, and the retry after a server's hang-up.

sshd hangs up on some of many that connect at once (MaxStartups 10:30:100, counted for all of its clients).
"""

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import TypeVar

from inventories.clocks import awake_s
from remote.errors import Unreachable

# paramiko's threads print tracebacks of their own; what matters reaches us as an exception.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 3.0
ALGORITHMS: Mapping[str, tuple[str, str]] = {
    "kex algorithm": ("KexAlgorithms", "curve25519-sha256@libssh.org"),
    "ciphers": ("Ciphers", "aes256-gcm@openssh.com"),
    "macs": ("MACs", "hmac-sha2-256-etm@openssh.com"),
    "host key": ("HostKeyAlgorithms", "ssh-ed25519"),
}
"""Word of paramiko's for what both sides have to share, the keyword of `sshd_config`, and a strong algorithm that
paramiko and OpenSSH both have."""

Value = TypeVar("Value")


class HungUp(Unreachable):
    """The server closed the connection before its banner."""


def incompatible(error: Exception) -> str | None:
    """Return the sentence on a server that shares no algorithm with gpuctl, or `None` for another error."""
    for word, (keyword, algorithm) in ALGORITHMS.items():
        if f"no acceptable {word}" in str(error):
            return (
                f"the host's SSH server allows no {keyword} that gpuctl has. Add {algorithm} to the line {keyword} "
                "of its /etc/ssh/sshd_config, and restart it there (systemctl restart ssh, or sshd). If it is "
                "too old to have that, update it."
            )
    return None


def no_pinned_key(error: Exception) -> bool:
    """Return whether the server's host key is missing in the given files."""
    return "not found in known_hosts" in str(error)


def channel_timed_out(error: Exception) -> bool:
    """Return whether the server did not confirm a channel in time."""
    return "Timeout" in str(error)


def hung_up(error: Exception) -> bool:
    """Return whether the server closed the connection before its banner: the end of the stream is the cause."""
    return "banner" in str(error) and isinstance(error.__context__, (EOFError, ConnectionError))


def retry_hang_ups(connect: Callable[[], Value], *, deadline_s: float) -> Value:
    """Call `connect` again while it raises HungUp; after the deadline, raise Unreachable."""
    limit = awake_s() + deadline_s
    for attempt, pause_s in enumerate(pauses(), start=1):
        try:
            return connect()
        except HungUp as error:
            if awake_s() + pause_s > limit:
                raise Unreachable(
                    f"{error} It was tried {attempt} times in {deadline_s:.0f} s. Too many connect to it at once "
                    "(MaxStartups in its sshd_config), or it locks this computer out for a while (fail2ban, "
                    "PerSourcePenalties): wait a minute, and try again."
                ) from error
        time.sleep(pause_s)
    raise AssertionError("the pauses never end")


def pauses(spread: Callable[[float, float], float] = random.uniform) -> Iterator[float]:
    """Yield the pause after each attempt: growing, and different for two clients with the same failure."""
    for attempt in count():
        longest_s = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)
        yield spread(longest_s / 2, longest_s)
