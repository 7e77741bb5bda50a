"""The hardware of the node, as the kernel shows it under /sys: the machine's owner, its RDMA devices."""

import os
from pathlib import Path
from typing import AbstractSet, Any, Dict, List, Optional

from remote.node.network import ipv4_addresses

DMI = Path("/sys/class/dmi/id")
INFINIBAND = Path("/sys/class/infiniband")

CLOUDS = (
    ("chassis_asset_tag", "OracleCloud.com", "oci"),
    ("sys_vendor", "Amazon EC2", "aws"),
    ("sys_vendor", "Google", "gcp"),
)
"""File of the firmware's table, its first characters, the owner of such machines."""


def cloud(dmi: Path = DMI) -> Optional[str]:
    """Return the cloud that rents the machine out. `None`: another cloud, or no cloud."""
    for name, start, cloud_name in CLOUDS:
        try:
            text = (dmi / name).read_text()
        except OSError:
            continue
        if text.startswith(start):
            return cloud_name
    return None


def rdma_devices(infiniband: Path = INFINIBAND) -> List[Dict[str, Any]]:
    """Return name, driver and network interfaces of each RDMA device; empty if the kernel has no such subsystem."""
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
        interfaces = []  # EFA has no network interface
    driver = os.path.basename(os.path.realpath(str(path / "device" / "driver")))
    return {
        "name": path.name,
        "driver": driver,
        "interfaces": interfaces,
        "addressed": not addressed.isdisjoint(interfaces),
    }
