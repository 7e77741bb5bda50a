"""Addresses, interfaces and free ports of this machine."""

import array
import errno
import fcntl
import random
import re
import socket
import struct
import subprocess
import sys
from typing import List, Optional, Sequence, Tuple

from remote.shared.constants import RENDEZVOUS_PORTS

MOST_PORTS_TRIED = 50


def address_of(name: str) -> Optional[str]:
    """The IPv4 address that a name resolves to here, an address to itself; `None` where it does not resolve."""
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


def route_interface(peer: str) -> Optional[str]:
    """The interface that packets to `peer` leave by: the kernel is asked by connecting a UDP socket."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, 9))
            address = probe.getsockname()[0]
    except OSError:
        return None
    return interface_of(address)


def interface_of(address: str) -> Optional[str]:
    """The interface that carries an IPv4 address of this machine; loopback's for 127.x."""
    if address.startswith("127."):
        return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if sys.platform != "linux":
        shown = subprocess.run(["/sbin/ifconfig"], stdout=subprocess.PIPE, check=False).stdout.decode()
        for block in re.split(r"\n(?=\S)", shown):
            if re.search(r"\binet {}\b".format(re.escape(address)), block):
                return block.partition(":")[0]
        return None
    return next((name for name, carried in ipv4_addresses() if carried == address), None)


def free_port(address: str, ports: Sequence[int] = RENDEZVOUS_PORTS) -> Tuple[Optional[int], Optional[str]]:
    """A port that can be listened on at this address now; and why nothing can listen there, where that is so.

    Neither: all ports that were tried are taken.
    """
    for port in random.sample(ports, min(MOST_PORTS_TRIED, len(ports))):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                return None, error.strerror or str(error)
            return port, None
    return None, None


def ipv4_addresses() -> List[Tuple[str, str]]:
    """Interface and address of every IPv4 address of this machine (Linux), also an interface's second and third."""
    siocgifconf, most_bytes = 0x8912, 1 << 20
    buffer = array.array("B", bytes(most_bytes))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("iP", most_bytes, buffer.buffer_info()[0])
        used_bytes = struct.unpack("iP", fcntl.ioctl(probe.fileno(), siocgifconf, request))[0]
    # struct ifreq: 16 bytes of name, then a union: a sockaddr_in in 16 bytes, or a larger struct ifmap.
    size = 16 + struct.calcsize("LLHBBB0L")
    data = buffer.tobytes()[:used_bytes]
    entries = [data[at : at + size] for at in range(0, used_bytes, size)]
    return [
        # `ens3:1` is a label of an address of ens3.
        (entry[:16].partition(b"\0")[0].decode().partition(":")[0], socket.inet_ntoa(entry[20:24]))
        for entry in entries
    ]
