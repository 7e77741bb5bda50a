"""Service limits: how many GPUs the tenancy may have of each family, as far as the settings say it."""

from tests.fakes.oci.api import Handler, Reply, Request, page
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


def list_services(cloud: Cloud, request: Request) -> Reply:
    """ListServices."""
    rows = [
        {"name": SERVICE, "description": "Compute"},
        {"name": "vcn", "description": "Virtual Cloud Network"},
    ]
    return page(request, enumerate(rows), size=cloud.settings.page_size, done=frozenset({"compartmentId"}))


HANDLERS: dict[str, Handler] = {
    "GetResourceAvailability": availability,
    "ListServices": list_services,
}
