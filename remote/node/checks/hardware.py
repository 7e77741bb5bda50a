"""What the node is made of, as the kernel shows it under /sys: whose machine it is, its RDMA devices."""

import array
import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import AbstractSet, Any, Dict, List, Optional, Tuple

DMI = Path("/sys/class/dmi/id")
INFINIBAND = Path("/sys/class/infiniband")

CLOUDS = (
    ("chassis_asset_tag", "OracleCloud.com", "oci"),
    ("sys_vendor", "Amazon EC2", "aws"),
    ("sys_vendor", "Google", "gcp"),
)
"""File of the firmware's table, what it begins with, whose machine that is."""


def cloud(dmi: Path = DMI) -> Optional[str]:
    """The cloud that the machine is rented from. None: another one, or none."""
    for name, start, found in CLOUDS:
        try:
            text = (dmi / name).read_text()
        except OSError:
            continue
        if text.startswith(start):
            return found
    return None


def rdma_devices(infiniband: Path = INFINIBAND) -> List[Dict[str, Any]]:
    """Name, driver and network interfaces of each RDMA device; none where the kernel has no such subsystem."""
    try:
        names = sorted(path.name for path in infiniband.iterdir())
    except OSError:
        return []
    addressed = {interface for interface, _ in ipv4_addresses()} if names else set()
    return [_device(infiniband / name, addressed) for name in names]


def _device(path: Path, addressed: AbstractSet[str]) -> Dict[str, Any]:
    try:
        interfaces = sorted(entry.name for entry in (path / "device" / "net").iterdir())
    except OSError:
        interfaces = []  # EFA has none
    driver = os.path.basename(os.path.realpath(str(path / "device" / "driver")))
    return {
        "name": path.name,
        "driver": driver,
        "interfaces": interfaces,
        "addressed": not addressed.isdisjoint(interfaces),
    }


def ipv4_addresses() -> List[Tuple[str, str]]:
    """Interface and address of every IPv4 address of this machine (Linux), also an interface's second and third."""
    siocgifconf, most_bytes = 0x8912, 1 << 20
    buffer = array.array("B", bytes(most_bytes))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        asked = struct.pack("iP", most_bytes, buffer.buffer_info()[0])
        used_bytes = struct.unpack("iP", fcntl.ioctl(probe.fileno(), siocgifconf, asked))[0]
    # struct ifreq: 16 bytes of name, then a union: a sockaddr_in in 16 bytes, or what is larger, a struct ifmap.
    size = 16 + struct.calcsize("LLHBBB0L")
    data = buffer.tobytes()[:used_bytes]
    entries = [data[at : at + size] for at in range(0, used_bytes, size)]
    return [
        # `ens3:1` is a label of an address of ens3.
        (entry[:16].partition(b"\0")[0].decode().partition(":")[0], socket.inet_ntoa(entry[20:24]))
        for entry in entries
    ]
