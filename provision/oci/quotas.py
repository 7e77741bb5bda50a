"""Service limits: what is left of them in an availability domain, and whether another one has room.

The limits of machines with GPUs are counted by availability domain, and the refusal names the limit only, not
the domain.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from provision.errors import BadCredentials, Capacity, CloudError, Quota
from provision.oci.api import Api
from provision.parallel import run_all
from provision.records import Offer, Zone


def machine_limit(names: Sequence[str]) -> str | None:
    """Return the limit that counts a shape's machines in an availability domain, of the `quotaNames` of the shape.

    A shape has a limit of GPUs or of OCPUs; a flexible shape also has one of memory, and some have limits of the
    region, for which no availability domain can be asked.

    Returns:
        None where OCI names no limit of GPUs or OCPUs.
    """
    counting = [name for name in names if "gpu" in name or "-core-" in name]
    return min(counting, key=lambda name: "-regional-" in name, default=None)


def units(offer: Offer, count: int) -> int:
    """What so many machines take of their limit: GPUs, or OCPUs where they have none."""
    config = offer.facts.get("shape_config") or {}
    return count * int(offer.gpus or config.get("ocpus") or 1)


def room_needed(offer: Offer, zone: Zone, count: int) -> dict[str, Any]:
    """What a launch needs of its limit, and where else it could be tried; plain JSON, beside its requests."""
    others = dict.fromkeys(other.name for other in offer.zones if other.name != zone.name)
    return {"needed": units(offer, count), "elsewhere": list(others)}


def available(api: Api, limit: str, zone: str) -> int | None:
    """How much of a compute limit is left in a domain. None: the service does not tell.

    It does not for a limit that counts the region as a whole: asked for a domain, that is a wrong request.
    """
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
    """What a refusal of a launch means: Capacity where another domain has room for all of it, else `error`."""
    if not error.named or room is None or error.code != "LimitExceeded":
        return error
    for zone in room["elsewhere"]:
        if _has_room(api, error.named, zone, room["needed"]):
            return Capacity(
                f"The limit {', '.join(error.named)} is reached in this availability domain; {zone} has room.",
                operation=error.operation,
                code=error.code,
            )
    return error


def _has_room(api: Api, names: Sequence[str], zone: str, needed: int) -> bool:
    """Whether all of these limits leave room. What can't be found out is no room."""
    left = run_all(lambda name: available(api, name, zone), names)
    return all(isinstance(free, int) and free >= needed for free in left)
