"""Identity: the tenancy, its compartments and user, regions, availability domains and fault domains."""

from collections.abc import Iterator

from tests.fakes.oci.account import DOMAINS, FAULT_DOMAINS, REGION, REGION_KEY
from tests.fakes.oci.api import Handler, Reply, Request, View, page
from tests.fakes.oci.errors import not_found
from tests.fakes.oci.store import Cloud

_SUBSCRIBED = {REGION_KEY: REGION, "AMS": "eu-amsterdam-1"}
_FOUNDED = "2024-01-15T09:30:00.000Z"


def _compartments(cloud: Cloud) -> Iterator[View]:
    """Iterate over the compartments below the root, including a deleted one, which lists still show."""
    account = cloud.account
    for name, identifier, state in (
        *((name, identifier, "ACTIVE") for name, identifier in account.compartments.items()),
        ("old", account.tenancy.replace(".tenancy.", ".compartment.")[:-4] + "dead", "DELETED"),
    ):
        yield {
            "id": identifier,
            "compartmentId": account.tenancy,
            "name": name,
            "description": f"The compartment {name}",
            "timeCreated": _FOUNDED,
            "lifecycleState": state,
            "isAccessible": True,
            "freeformTags": {},
            "definedTags": {},
        }


def list_domains(cloud: Cloud, request: Request) -> Reply:
    """ListAvailabilityDomains."""
    rows = [
        {
            "name": name,
            "id": f"ocid1.availabilitydomain.oc1..aaaaaaaa{name[-1] * 52}",
            "compartmentId": request.one("compartmentId"),
        }
        for name in DOMAINS
    ]
    return page(request, enumerate(rows), size=cloud.settings.page_size)


def list_fault_domains(cloud: Cloud, request: Request) -> Reply:
    """ListFaultDomains."""
    domain = request.one("availabilityDomain") or ""
    if not cloud.account.has_domain(domain):
        raise not_found()
    rows = [
        {
            "name": name,
            "id": f"ocid1.faultdomain.oc1..aaaaaaaa{domain[-1] * 26}{name[-1] * 26}",
            "compartmentId": request.one("compartmentId"),
            "availabilityDomain": domain,
        }
        for name in FAULT_DOMAINS
    ]
    return page(request, enumerate(rows), size=cloud.settings.page_size)


def list_compartments(cloud: Cloud, request: Request) -> Reply:
    """ListCompartments: the children of the one that is named, never that one itself."""
    return page(request, enumerate(_compartments(cloud)), size=cloud.settings.page_size)


def list_subscriptions(cloud: Cloud, request: Request) -> Reply:
    """ListRegionSubscriptions."""
    if request.target != cloud.account.tenancy:
        raise not_found()
    rows = [
        {"regionKey": key, "regionName": name, "status": "READY", "isHomeRegion": key == REGION_KEY}
        for key, name in _SUBSCRIBED.items()
    ]
    return page(request, enumerate(rows), size=cloud.settings.page_size)


HANDLERS: dict[str, Handler] = {
    "ListAvailabilityDomains": list_domains,
    "ListFaultDomains": list_fault_domains,
    "ListCompartments": list_compartments,
    "ListRegionSubscriptions": list_subscriptions,
}
