"""Machine images by id, by SSM parameter and by name; their login and disk."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inventories.errors import InvalidInput
from provision.aws.api import Api
from provision.aws.requests import filters
from provision.errors import CloudError, Denied, Gone
from provision.rented.planning.drivers import System, system_of

CANONICAL = "099720109477"
OWNERS = ("self", "amazon", CANONICAL)
"""Owners of images that are looked up by name: anybody may give an image any name."""
MIN_DISK_GB = 200
"""Size for deep-learning stacks and data sets."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of an image: an SSM parameter, else a name with its owners."""

    parameter: str | None = None
    name: str | None = None
    owners: tuple[str, ...] = OWNERS


_PARAMETER = "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
_PLAIN_NAMES = {"x86_64": "amd64", "arm64": "arm64"}

_USERS = (
    ("ubuntu", "ubuntu"),
    ("debian", "admin"),
    ("rocky", "rocky"),
    ("centos", "centos"),
    ("amazon linux", "ec2-user"),
    ("amzn", "ec2-user"),
    ("al2023", "ec2-user"),
    ("rhel", "ec2-user"),
    ("suse", "ec2-user"),
)


_AMAZON_LINUX_2 = re.compile(r"Amazon Linux 2\b|amzn2-ami")
_NEWER_PYTHON = "amazon-linux-extras install -y python3.8 && ln -sf /usr/bin/python3.8 /usr/local/bin/python3"
"""Amazon Linux 2 has Python 3.7. Its own tools name /usr/bin/python3."""


def plain(architecture: str) -> Source:
    """Return Ubuntu as Canonical publishes it, without a driver."""
    name = _PLAIN_NAMES[architecture]
    return Source(
        parameter=f"/aws/service/canonical/ubuntu/server/22.04/stable/current/{name}/hvm/ebs-gp2/ami-id",
        name=f"ubuntu/images/hvm-ssd*/ubuntu-jammy-22.04-{name}-server-*",
        owners=(CANONICAL,),
    )


def with_driver(architecture: str) -> Source:
    """Return the Deep Learning Base image, which brings the driver with NVIDIA's open kernel module."""
    arm = "ARM64 " if architecture == "arm64" else ""
    return Source(
        parameter=_PARAMETER.format(architecture),
        name=f"Deep Learning {arm}Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) *",
        owners=("amazon",),
    )


def source_of(text: str) -> Source:
    """Return the source that a user's text means, if it is no id."""
    if text.startswith(("resolve:ssm:", "ssm:", "/")):
        return Source(parameter=text.removeprefix("resolve:").removeprefix("ssm:"))
    return Source(name=text)


def named(api: Api, text: str, architecture: str) -> Mapping[str, Any]:
    """Return the requested image by DescribeImages: an id, an SSM parameter, a name.

    Raises InvalidInput for a missing image, or one for other processors.
    """
    image = by_id(api, text) if text.startswith("ami-") else published(api, source_of(text), architecture)
    if image is None:
        raise InvalidInput(missing(api.region, f"'{text}'"))
    if image.get("Architecture") != architecture:
        raise InvalidInput(
            f"The image {image['ImageId']} ({image.get('Name', '')}) is for {image.get('Architecture')}, and the "
            f"shape has {architecture} processors. Give another --image or another --shape."
        )
    if image.get("RootDeviceType", "ebs") != "ebs":
        raise InvalidInput(f"The image {image['ImageId']} has no EBS root disk. Give another --image.")
    return image


def missing(region: str, image: str) -> str:
    """Return the message for a missing image."""
    return (
        f"AWS has no image {image} in {region}. Give --image an id (ami-…) of that region, the name of an image of "
        "this account's, Amazon's or Ubuntu's, or an SSM parameter (/aws/service/…)."
    )


def published(api: Api, source: Source, architecture: str) -> Mapping[str, Any] | None:
    """Return the image of a source. `None`: not found."""
    if source.parameter:
        try:
            answer = api.call("get_parameter", service="ssm", Name=source.parameter)
            image = by_id(api, str(answer["Parameter"]["Value"]))
        except Gone:
            image = None
        except Denied:
            # Reading parameters is a permission of its own, and the name finds the image as well.
            if source.name is None:
                raise
            image = None
        if image is not None or source.name is None:
            return image
    assert source.name
    pattern = source.name if set(source.name) & set("*?") else f"{source.name}*"
    images = api.pages(
        "describe_images",
        "Images",
        Owners=list(source.owners),
        Filters=filters(name=pattern, state="available", architecture=architecture),
    )
    return newest(images, source.name)


def newest(images: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """Return the image of exactly that name, else the newest."""
    return max(
        images,
        key=lambda image: (image.get("Name") == name, image.get("CreationDate", ""), image["ImageId"]),
        default=None,
    )


def by_id(api: Api, image_id: str) -> Mapping[str, Any] | None:
    """Return the image of that id. `None`: not found."""
    try:
        images = api.pages("describe_images", "Images", ImageIds=[image_id])
    except CloudError as error:
        if isinstance(error, Gone) or error.code == "InvalidAMIID.Malformed":
            return None
        raise
    return images[0] if images else None


def user_of(image: Mapping[str, Any]) -> str:
    """Return the login: the image's own user, by its name."""
    about = f"{image.get('Name', '')} {_about(image)}".lower()
    return next((user for word, user in _USERS if word in about), "ubuntu")


def system(image: Mapping[str, Any]) -> System:
    """Return the image's system, by its name and its description."""
    return system_of(str(image.get("Name") or image["ImageId"]), _about(image))


def _about(image: Mapping[str, Any]) -> str:
    return f"{image.get('Description', '')} {image.get('PlatformDetails', '')}"


def boot_commands(image: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the commands that a machine of that image needs at its first boot."""
    return (_NEWER_PYTHON,) if _AMAZON_LINUX_2.search(str(image.get("Name", ""))) else ()


def facts(image: Mapping[str, Any]) -> dict[str, Any]:
    """Return the image's facts for requests, plain JSON."""
    root = image.get("RootDeviceName", "/dev/sda1")
    mappings = [m for m in image.get("BlockDeviceMappings", []) if "Ebs" in m and m["DeviceName"] != root]
    return {
        "root_device": root,
        "other_devices": [mapping["DeviceName"] for mapping in mappings],
        "other_disks_gb": sum(int(mapping["Ebs"].get("VolumeSize", 0)) for mapping in mappings),
    }


def disk_gb(image: Mapping[str, Any], requested_gb: int | None) -> int:
    """Return the size of the root disk. Raises InvalidInput for a requested size that does not hold the image."""
    root = image.get("RootDeviceName", "/dev/sda1")
    mappings = [m for m in image.get("BlockDeviceMappings", []) if m["DeviceName"] == root and "Ebs" in m]
    min_gb = max((int(mapping["Ebs"].get("VolumeSize", 0)) for mapping in mappings), default=0)
    if requested_gb is None:
        return max(MIN_DISK_GB, min_gb)
    if requested_gb < min_gb:
        raise InvalidInput(
            f"A disk of {requested_gb} GB is too small for the image {image['ImageId']}, which needs {min_gb} GB. "
            f"Give --disk-gb {min_gb} or more."
        )
    return requested_gb
