"""Which transports NCCL chose, as its own log tells: over the network, between GPUs, through shared memory."""

import re
from typing import List

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


def transports(log: bytes) -> List[str]:
    """`NET/Socket`, `NET/IB/GDRDMA`, `NET/AWS Libfabric`, `P2P`, `SHM`: those in use, in order of the alphabet.

    Channels tell it best. Before there are any, what NCCL means to use between nodes counts.
    """
    found = set()
    for channel in _CHANNEL.finditer(log):
        network, name, gpu_direct, other = channel.groups(b"")
        found.add(b"/".join([network, name]) + gpu_direct if network else other)
    if not found:
        found = {b"NET/" + name for name in _NETWORK.findall(log)}
    return sorted(word.decode(errors="replace") for word in found)


def read(path: str) -> List[str]:
    """The transports in a log file; none where there is no such file."""
    try:
        with open(path, "rb") as file:
            return transports(file.read(READ_BYTES))
    except FileNotFoundError:
        return []
