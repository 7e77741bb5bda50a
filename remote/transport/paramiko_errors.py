"""The meaning of paramiko's errors that only their words tell apart: the one place that reads these."""

import logging
from collections.abc import Mapping

# paramiko's threads print tracebacks of their own; what matters reaches us as an exception.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)

ALGORITHMS: Mapping[str, tuple[str, str]] = {
    "kex algorithm": ("KexAlgorithms", "curve25519-sha256@libssh.org"),
    "ciphers": ("Ciphers", "aes256-gcm@openssh.com"),
    "macs": ("MACs", "hmac-sha2-256-etm@openssh.com"),
    "host key": ("HostKeyAlgorithms", "ssh-ed25519"),
}
"""Word of paramiko's for what both sides have to share, the keyword of `sshd_config`, and a strong algorithm that
paramiko and OpenSSH both have."""


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
