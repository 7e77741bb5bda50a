"""The images of a region, and the public parameters that name the newest ones. Ids differ by region."""

import hashlib
from typing import Any

UBUNTU_OWNER = "099720109477"
AMAZON_OWNER = "898082745236"
LINUX_OWNER = "137112412989"
SSM_DEEP_LEARNING = (
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)
SSM_UBUNTU = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
LINUX = "al2023-ami-2023.9.20260629.0-kernel-6.1-x86_64"
SSM_LINUX = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"

DEEP_LEARNING = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) {}"
UBUNTU = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-{}"

Image = dict[str, Any]

_CATALOG = (
    # name, owner, alias, date, root device, GB, parameter
    (DEEP_LEARNING.format("20260701"), AMAZON_OWNER, "amazon", "2026-07-01", "/dev/sda1", 75, SSM_DEEP_LEARNING),
    (DEEP_LEARNING.format("20260520"), AMAZON_OWNER, "amazon", "2026-05-20", "/dev/sda1", 75, None),
    (DEEP_LEARNING.format("20251112"), AMAZON_OWNER, "amazon", "2025-11-12", "/dev/sda1", 65, None),
    (UBUNTU.format("20260615"), UBUNTU_OWNER, None, "2026-06-15", "/dev/sda1", 8, SSM_UBUNTU),
    (UBUNTU.format("20260110"), UBUNTU_OWNER, None, "2026-01-10", "/dev/sda1", 8, None),
    (LINUX, LINUX_OWNER, "amazon", "2026-06-29", "/dev/xvda", 8, SSM_LINUX),
    # Somebody else's, with a name that looks like the real one.
    (DEEP_LEARNING.format("20260801"), "111122223333", None, "2026-08-01", "/dev/sda1", 75, None),
)  # fmt: skip

FILTERS = {
    "architecture": "Architecture",
    "block-device-mapping.volume-size": "BlockDeviceMappings.Ebs.VolumeSize",
    "creation-date": "CreationDate",
    "description": "Description",
    "hypervisor": "Hypervisor",
    "image-id": "ImageId",
    "image-type": "ImageType",
    "is-public": "Public",
    "name": "Name",
    "owner-alias": "ImageOwnerAlias",
    "owner-id": "OwnerId",
    "root-device-name": "RootDeviceName",
    "root-device-type": "RootDeviceType",
    "state": "State",
    "virtualization-type": "VirtualizationType",
}


def image_id(region: str, name: str) -> str:
    """Return an image's id in a region."""
    return "ami-" + hashlib.sha256(f"{region} {name}".encode()).hexdigest()[:17]


def of_region(region: str) -> list[Image]:
    """Return the region's images in boto3's form."""
    return [
        {
            "ImageId": image_id(region, name),
            "Name": name,
            "Description": name,
            "OwnerId": owner,
            "ImageOwnerAlias": alias,
            "CreationDate": f"{date}T08:00:00.000Z",
            "Public": True,
            "State": "available",
            "ImageType": "machine",
            "ImageLocation": f"{alias or owner}/{name}",
            "Architecture": "x86_64",
            "VirtualizationType": "hvm",
            "Hypervisor": "xen",
            "EnaSupport": True,
            "SriovNetSupport": "simple",
            "PlatformDetails": "Linux/UNIX",
            "UsageOperation": "RunInstances",
            "RootDeviceType": "ebs",
            "RootDeviceName": root,
            "BlockDeviceMappings": [
                {
                    "DeviceName": root,
                    "Ebs": {
                        "SnapshotId": "snap-"
                        + hashlib.sha256(f"{region} {name}".encode()).hexdigest()[20:37],
                        "VolumeSize": size_gb,
                        "VolumeType": "gp2",
                        "DeleteOnTermination": True,
                        "Encrypted": False,
                    },
                },
                {"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"},
            ],
            "Tags": [],
        }
        for name, owner, alias, date, root, size_gb, _ in _CATALOG
    ]


def parameters(region: str) -> dict[str, str]:
    """Public parameters of the region's SSM: the ids of images by name."""
    return {entry[6]: image_id(region, entry[0]) for entry in _CATALOG if entry[6]}


def login_user(image: Image) -> str:
    """Whom the image lets in."""
    return "ec2-user" if image["OwnerId"] == LINUX_OWNER else "ubuntu"
