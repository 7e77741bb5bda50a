"""Whose region a name is, by its form: AWS's have a direction of the compass in them, OCI's the name of a place."""

import re

from inventories.errors import InvalidInput

_AWS_NAME = re.compile(r"[a-z]{2,4}(-[a-z]+)*-(central|(north|south)?(east|west)|north|south)-[0-9]+")
_NAME = re.compile(r"[a-z]{2,4}(-[a-z]+)*-[a-z]+-[0-9]+")

_NEAR = (
    # OCI, AWS
    ("us-ashburn-1", "us-east-1"),
    ("us-chicago-1", "us-east-2"),
    ("us-sanjose-1", "us-west-1"),
    ("us-phoenix-1", "us-west-2"),
    ("ca-montreal-1", "ca-central-1"),
    ("sa-saopaulo-1", "sa-east-1"),
    ("uk-london-1", "eu-west-2"),
    ("eu-paris-1", "eu-west-3"),
    ("eu-frankfurt-1", "eu-central-1"),
    ("eu-zurich-1", "eu-central-2"),
    ("eu-stockholm-1", "eu-north-1"),
    ("ap-tokyo-1", "ap-northeast-1"),
    ("ap-seoul-1", "ap-northeast-2"),
    ("ap-osaka-1", "ap-northeast-3"),
    ("ap-singapore-1", "ap-southeast-1"),
    ("ap-sydney-1", "ap-southeast-2"),
    ("ap-mumbai-1", "ap-south-1"),
)
"""Regions of both clouds in the same place, or nearly."""


def cloud_of(region: str) -> str | None:
    """`oci` or `aws`. None: it looks like neither's, as OCI's short names do."""
    if _AWS_NAME.fullmatch(region):
        return "aws"
    return "oci" if _NAME.fullmatch(region) else None


def refuse_foreign(region: str | None, provider: str) -> None:
    """Raise InvalidInput for a region of the other cloud."""
    owner = cloud_of(region) if region else None
    if owner is None or owner == provider:
        return
    near = dict(_NEAR) if owner == "oci" else {aws: oci for oci, aws in _NEAR}
    hint = f" Near it is {near[region]}." if region in near else ""
    raise InvalidInput(f"{region} is a region of {owner.upper()}, not of {provider.upper()}.{hint}")
