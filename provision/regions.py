"""Whose region a name is, by its form; and in which region a price holds."""

import re

from inventories.errors import InvalidInput
from provision.provider_registry import base_of, describe, descriptions


def cloud_of(region: str) -> str | None:
    """The cloud that has regions of such a name: `oci`, `aws`. None: nobody's, as OCI's short names are."""
    return next((cloud.name for cloud in descriptions() if re.fullmatch(cloud.region_pattern, region)), None)


def refuse_foreign(region: str | None, provider: str) -> None:
    """Raise InvalidInput for a region of another cloud."""
    owner = cloud_of(region) if region else None
    provider = base_of(provider)
    if owner is None or owner == provider:
        return
    ours = describe(provider).regions
    near = [ours[at] for at, name in describe(owner).regions.items() if name == region and at in ours]
    hint = f" Near it is {near[0]}." if near else ""
    raise InvalidInput(f"{region} is a region of {owner.upper()}, not of {provider.upper()}.{hint}")


def price_region(provider: str, region: str | None) -> str | None:
    """Where a cloud's prices hold, for machines in `region`. None: everywhere."""
    default = describe(provider).price_region
    return None if default is None else region or default


def refresh_command(provider: str, region: str | None) -> str:
    """The command that asks a cloud for its prices, those of the region where they differ by region."""
    where = price_region(provider, region)
    return f"gpuctl shapes --refresh-prices --provider {base_of(provider)}" + (
        f" --region {where}" if where else ""
    )
