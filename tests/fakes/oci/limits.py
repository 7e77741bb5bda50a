"""Service limits: how many GPUs the tenancy may have of each family, as far as the settings say it."""

from collections.abc import Iterator

from tests.fakes.oci.account import DOMAINS
from tests.fakes.oci.api import Handler, Reply, Request, View, page
from tests.fakes.oci.capacity import machines
from tests.fakes.oci.errors import missing, not_found
from tests.fakes.oci.shapes import SHAPES, Shape
from tests.fakes.oci.store import Cloud

SERVICE = "compute"
UNLIMITED = 100_000
"""The limit of a family without a limit in the settings."""

FAMILIES: dict[str, list[Shape]] = {}
for _shape in SHAPES.values():
    FAMILIES.setdefault(_shape.limit, []).append(_shape)


def _limit(cloud: Cloud, family: str, domain: str) -> int:
    """Return the limit for a domain, as in ListLimitValues."""
    settings = cloud.settings
    limits = [
        quota * shape.counts
        for shape in FAMILIES[family]
        for quota in (settings.quota_of(shape.name), settings.place_quota_at(shape.name, domain))
        if quota is not None
    ]
    return min(limits, default=UNLIMITED)


def _left(cloud: Cloud, family: str, domain: str) -> int:
    """Return the remainder of a domain's own limits and of the limits of all domains together."""
    settings = cloud.settings
    used, used_here = _used(cloud, family), _used(cloud, family, domain)
    left = [
        quota * shape.counts - values
        for shape in FAMILIES[family]
        for quota, values in (
            (settings.quota_of(shape.name), used),
            (settings.place_quota_at(shape.name, domain), used_here),
        )
        if quota is not None
    ]
    return max(0, min(left, default=UNLIMITED - used))


def _used(cloud: Cloud, family: str, domain: str | None = None) -> int:
    return sum(machines(cloud, shape.name, domain) * shape.counts for shape in FAMILIES[family])


def availability(cloud: Cloud, request: Request) -> Reply:
    """GetResourceAvailability: in an availability domain, as limits of machines are."""
    family = request.path["limitName"]
    if request.path["serviceName"] != SERVICE or family not in FAMILIES:
        raise not_found()
    domain = request.one("availabilityDomain")
    if domain is None:
        raise missing(f"query parameter availabilityDomain is required for limit {family}")
    if not cloud.account.has_domain(domain):
        raise not_found()
    available = _left(cloud, family, domain)
    used = _used(cloud, family, domain)
    return Reply(
        body={
            "used": used,
            "available": available,
            "fractionalUsage": float(used),
            "fractionalAvailability": float(available),
        }
    )


def list_definitions(cloud: Cloud, request: Request) -> Reply:
    """ListLimitDefinitions."""
    return page(
        request,
        enumerate(_definition(family) for family in FAMILIES),
        size=cloud.settings.page_size,
        done=frozenset({"compartmentId"}),
    )


def _definition(family: str) -> View:
    return {
        "name": family,
        "serviceName": SERVICE,
        "description": f"Machines of {', '.join(shape.name for shape in FAMILIES[family])}",
        "scopeType": "AD",
        "areQuotasSupported": True,
        "isResourceAvailabilitySupported": True,
        "isDeprecated": False,
        "isEligibleForLimitIncrease": True,
        "isDynamic": False,
    }


def list_values(cloud: Cloud, request: Request) -> Reply:
    """ListLimitValues."""
    if request.one("serviceName") != SERVICE:
        raise not_found()
    return page(
        request,
        enumerate(_values(cloud)),
        size=cloud.settings.page_size,
        done=frozenset({"compartmentId", "serviceName"}),
    )


def _values(cloud: Cloud) -> Iterator[View]:
    for family in FAMILIES:
        for domain in DOMAINS:
            yield {
                "name": family,
                "scopeType": "AD",
                "availabilityDomain": domain,
                "value": _limit(cloud, family, domain),
            }


def list_services(cloud: Cloud, request: Request) -> Reply:
    """ListServices."""
    rows = [
        {"name": SERVICE, "description": "Compute"},
        {"name": "vcn", "description": "Virtual Cloud Network"},
    ]
    return page(request, enumerate(rows), size=cloud.settings.page_size, done=frozenset({"compartmentId"}))


HANDLERS: dict[str, Handler] = {
    "GetResourceAvailability": availability,
    "ListLimitDefinitions": list_definitions,
    "ListLimitValues": list_values,
    "ListServices": list_services,
}
