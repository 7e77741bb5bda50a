"""Whose region a name is, by its form; and in which region a price holds."""

import re

from inventories.did_you_mean import did_you_mean
from inventories.errors import InvalidInput
from provision.provider_registry import RENTED, base_of, describe, descriptions


def cloud_of(region: str) -> str | None:
    """The cloud that has regions of such a name: `oci`, `aws`. None: nobody's, as OCI's short names are."""
    return next((cloud.name for cloud in descriptions() if re.fullmatch(cloud.region_pattern, region)), None)


def likely_cloud_of(region: str) -> str | None:
    """Return the cloud of a region, as `cloud_of`. None: it may be a misspelt region of another cloud.

    `us-esat-1` has the form of OCI's names, and is like AWS's `us-east-1`.
    """
    owner = cloud_of(region)
    if owner is None or region in describe(owner).regions.values():
        return owner
    foreign = [name for cloud in descriptions() if cloud.name != owner for name in cloud.regions.values()]
    return None if did_you_mean(region, foreign) else owner


def refuse_foreign(region: str | None, provider: str) -> None:
    """Raise InvalidInput for a region of another cloud."""
    owner = likely_cloud_of(region) if region else None
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
    """Return the command that asks a cloud for its prices, in the region where prices differ by region.

    Empty for a provider without prices, such as `kubernetes`.
    """
    if provider not in RENTED:
        return ""
    where = price_region(provider, region)
    return f"gpuctl shapes --refresh-prices --provider {base_of(provider)}" + (
        f" --region {where}" if where else ""
    )
