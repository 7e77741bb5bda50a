"""Service limits: the units left in an availability domain, and domains with room.

OCI counts the limits of machines with GPUs by availability domain; its refusal names only the limit, not the domain.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from inventories.threads import run_all
from provision.errors import BadCredentials, Capacity, CloudError, Quota
from provision.oci.api import Api
from provision.records import Offer, Zone


def machine_limit(names: Sequence[str]) -> str | None:
    """Return the limit that counts a shape's machines in an availability domain, of the `quotaNames` of the shape.

    A shape has a limit of GPUs or of OCPUs (`None`: OCI names none); a flexible shape also has one of memory, and
    some have limits of the region, which no availability domain has.
    """
    counting = [name for name in names if "gpu" in name or "-core-" in name]
    return min(counting, key=lambda name: "-regional-" in name, default=None)


def units(offer: Offer, count: int) -> int:
    """Return the units of the limit for `count` machines: GPUs, or OCPUs for machines without GPUs."""
    config = offer.facts.get("shape_config") or {}
    return count * int(offer.gpus or config.get("ocpus") or 1)


def room_needed(offer: Offer, zone: Zone, count: int) -> dict[str, Any]:
    """Return the units that a launch needs, and other domains to try, as plain JSON for its requests."""
    other_zones = dict.fromkeys(other.name for other in offer.zones if other.name != zone.name)
    return {"needed": units(offer, count), "elsewhere": list(other_zones)}


def available(api: Api, limit: str, zone: str) -> int | None:
    """Return the units left of a compute limit in a domain. `None`: not known, as of a limit of the whole region."""
    try:
        answer = api.hint(
            "limits.get_resource_availability", "compute", limit, api.tenancy, availability_domain=zone
        )
    except BadCredentials:
        raise
    except CloudError:
        return None
    left = answer.get("available")
    return None if left is None else int(left)


def refused(api: Api, error: Quota, room: Mapping[str, Any] | None) -> CloudError:
    """Return the error for a refused launch: Capacity if another domain has room for all machines, else `error`."""
    if not error.named or room is None or error.code != "LimitExceeded":
        return error
    for zone in room["elsewhere"]:
        left = run_all(partial(available, api, zone=zone), error.named)
        # An unknown limit counts as full.
        if all(isinstance(free, int) and free >= room["needed"] for free in left):
            return Capacity(
                f"The limit {', '.join(error.named)} is reached in this availability domain; {zone} has room.",
                operation=error.operation,
                code=error.code,
            )
    return error
