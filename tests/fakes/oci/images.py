"""The images that the region offers: platform images of several dates and kinds, and one of the marketplace.

As in reality, lists also show images for other processors and minimal images, which differ from the others only by
their names.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

from tests.fakes.oci.account import REGION
from tests.fakes.oci.shapes import Shape

MIN_BOOT_VOLUME_GB = 50
MAX_BOOT_VOLUME_GB = 32768
UBUNTU = "Canonical Ubuntu"
ORACLE = "Oracle Linux"


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image; `size_gb` is the boot volume of a launch that does not set a size."""

    name: str
    system: str
    version: str
    created: str
    size_gb: int = 47
    listing_version: str | None = None
    """Of the marketplace: usable after a subscription only, and in no list of images."""
    listing: str = ""
    """Title of its listing there."""

    @property
    def id(self) -> str:
        """Return the OCID, always the same."""
        unique = hashlib.sha256(self.name.encode()).hexdigest()[:52]
        return f"ocid1.image.oc1.{REGION}.aaaaaaaa{unique}"

    @property
    def arch(self) -> str:
        """Return the processor architecture."""
        return "aarch64" if "aarch64" in self.name else "x86_64"

    def fits(self, shape: Shape) -> bool:
        """Return whether machines of a shape can be launched from the image."""
        gpu_only = "GPU" in self.name
        if "OFED" in self.name and not shape.rdma_ports:
            return False
        return self.arch == shape.arch and (shape.gpus > 0 or not gpu_only)

    @property
    def view(self) -> dict[str, Any]:
        """Return the view of ListImages; a platform image has no compartment."""
        return {
            "id": self.id,
            "createImageAllowed": self.listing_version is None,
            "displayName": self.name,
            "lifecycleState": "AVAILABLE",
            "launchMode": "NATIVE",
            "launchOptions": {
                "bootVolumeType": "PARAVIRTUALIZED",
                "firmware": "UEFI_64",
                "networkType": "PARAVIRTUALIZED",
                "remoteDataVolumeType": "PARAVIRTUALIZED",
                "isPvEncryptionInTransitEnabled": False,
                "isConsistentVolumeNamingEnabled": True,
            },
            "agentFeatures": {"isMonitoringSupported": True, "isManagementSupported": True},
            "listingType": "NONE",
            "operatingSystem": self.system,
            "operatingSystemVersion": self.version,
            "sizeInMBs": self.size_gb * 1024,
            "billableSizeInGBs": 5,
            "timeCreated": self.created,
        }


def _platform(system: str, version: str, date: str, kind: str = "") -> Image:
    words = (system.replace(" ", "-"), version.split()[0], kind, date, "0")
    return Image(
        name="-".join(word for word in words if word),
        system=system,
        # Oracle Linux has its minor release in the name alone.
        version=version.split(".")[0] if system == ORACLE else version,
        created=f"{date.replace('.', '-')}T12:00:00.000Z",
    )


def _vmi(version: str, date: str) -> Image:
    return Image(
        name=f"NVIDIA-GPU-Optimized-VMI-{version}",
        system="Custom",
        version="Custom",
        created=f"{date}T12:00:00.000Z",
        size_gb=128,
        listing_version=version,
        listing="NVIDIA GPU-Optimized VMI",
    )


def _cluster_build(release: str, gpu: str, date: str) -> Image:
    """Return a build of Oracle's image for RDMA networks: `gpu` is its driver, of NVIDIA or AMD."""
    version = f"Oracle-Linux-{release}-2025.06.17-0-RHCK-OFED-24.10-1.1.4.0-{gpu}-{date.replace('-', '.')}-0"
    return Image(
        name=version,
        system=ORACLE,
        version=release.split(".")[0],
        created=f"{date}T12:00:00.000Z",
        listing_version=version,
        listing="Oracle Linux - GPU Cluster Networking Image",
    )


IMAGES = {
    image.id: image
    for image in (
        _platform(UBUNTU, "22.04", "2026.03.31"),
        _platform(UBUNTU, "24.04", "2026.05.29"),
        _platform(UBUNTU, "24.04 Minimal aarch64", "2026.06.28", "Minimal-aarch64"),
        _platform(UBUNTU, "22.04", "2026.06.26"),
        _platform(UBUNTU, "22.04 Minimal", "2026.06.28", "Minimal"),
        _platform(ORACLE, "8", "2026.05.31", "Gen2-GPU"),
        _platform(ORACLE, "8", "2026.06.30"),
        _platform(UBUNTU, "22.04", "2026.06.27", "aarch64"),
        _platform(UBUNTU, "24.04", "2026.06.26"),
        _platform(ORACLE, "9.6", "2026.05.31", "Gen2-GPU"),
        _platform(ORACLE, "9", "2026.06.30"),
        _platform(ORACLE, "9.6", "2026.06.30", "Gen2-GPU"),
        _platform(UBUNTU, "22.04 Minimal aarch64", "2026.06.28", "Minimal-aarch64"),
        _platform(UBUNTU, "24.04", "2026.06.27", "aarch64"),
        _platform(UBUNTU, "22.04", "2026.05.29"),
        _platform(ORACLE, "8", "2026.06.30", "Gen2-GPU"),
        _platform(UBUNTU, "24.04 Minimal", "2026.06.28", "Minimal"),
        _platform(UBUNTU, "24.04", "2026.04.30"),
        _vmi("25.10.1", "2026-01-15"),
        _vmi("26.04.1", "2026-05-12"),
        _cluster_build("8.10", "GPU-550-CUDA-12.4", "2026-03-21"),
        _cluster_build("8.10", "GPU-570-OPEN-CUDA-12.8", "2026-03-20"),
        _cluster_build("8.10", "AMD-ROCM-632", "2026-03-22"),
    )
}
