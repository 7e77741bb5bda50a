"""NCCL's choices, by its own log: transports and interfaces; and its warnings."""

import re
from typing import List, Tuple

DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
"""What makes NCCL write down the channels that it sets up, and nothing on the way of a step."""
READ_BYTES = 4 * 1024 * 1024
"""The channels of the first communicators are within this; a log may grow with every further one."""

# `NET/IB/0(1)/GDRDMA` is a send that rank 1 does on this rank's behalf (PXN).
_CHANNEL = re.compile(
    rb"NCCL INFO Channel [^\n]* via (?:(NET)/([^/\n]+)/\d+(?:\(\d+\))?(/GDRDMA)?|(P2P|SHM|NVLS))"
)
_NETWORK = re.compile(
    rb"NCCL INFO (?:Using network|Assigned NET plugin) ([A-Za-z][^\n]*?)(?: to comm)?\s*$", re.MULTILINE
)
_INTERFACES = re.compile(rb"NCCL INFO (?:Bootstrap|NET/[A-Za-z]+) ?: Using ([^\n]+)")
_INTERFACE = re.compile(rb"(?:^|\s)(?:\[\d+\])?([\w.-]+:[\da-fA-F.:%\[\]]+|\w+:\d+)(?:<\d+>|/)")
"""`ens5:10.0.0.4<0>`, `[0]mlx5_0:1/RoCE`"""
_WARNING = re.compile(rb"NCCL WARN ([^\n]+)")
MOST_INTERFACES, MOST_WARNING = 8, 300


def transports(log: bytes) -> List[str]:
    """Return the transports in use, sorted: `NET/Socket`, `NET/IB/GDRDMA`, `NET/AWS Libfabric`, `P2P`, `SHM`.

    Channels are the best source. Before channels exist, the plan of NCCL between nodes counts.
    """
    names = set()
    for channel in _CHANNEL.finditer(log):
        network, name, gpu_direct, other = channel.groups(b"")
        names.add(b"/".join([network, name]) + gpu_direct if network else other)
    if not names:
        names = {b"NET/" + name for name in _NETWORK.findall(log)}
    return sorted(word.decode(errors="replace") for word in names)


def _log(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(READ_BYTES)
    except OSError:
        return b""


def read(path: str) -> List[str]:
    """Return the transports in a log file; empty without such a file."""
    return transports(_log(path))


def network(path: str) -> Tuple[List[str], str]:
    """Return NCCL's interfaces by its log file, and its last warning; empty if unknown."""
    log = _log(path)
    interfaces = [name for line in _INTERFACES.findall(log) for name in _INTERFACE.findall(line)]
    names = list(dict.fromkeys(name.decode(errors="replace") for name in interfaces))
    warnings = _WARNING.findall(log)
    return names[:MOST_INTERFACES], warnings[-1].decode(errors="replace")[:MOST_WARNING] if warnings else ""
