"""What the node is made of, as the kernel shows it under /sys: whose machine it is, its RDMA devices."""

import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Any, Dict, List, Optional

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
    return [_device(infiniband / name) for name in names]


def _device(path: Path) -> Dict[str, Any]:
    try:
        interfaces = sorted(entry.name for entry in (path / "device" / "net").iterdir())
    except OSError:
        interfaces = []  # EFA has none
    driver = os.path.basename(os.path.realpath(str(path / "device" / "driver")))
    addressed = any(ipv4_of(interface) for interface in interfaces)
    return {"name": path.name, "driver": driver, "interfaces": interfaces, "addressed": addressed}


def ipv4_of(interface: str) -> Optional[str]:
    """The interface's IPv4 address (Linux); None where it has none."""
    siocgifaddr = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), siocgifaddr, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
