"""Operations that are the same for every kind of resource, and checks that many operations share."""

import ipaddress
import re
from typing import Any

from tests.fakes.oci.api import Handler, Reply, Request, View, page, shown
from tests.fakes.oci.errors import invalid, not_found
from tests.fakes.oci.store import Cloud, Resource

Network = ipaddress.IPv4Network

MAX_TAGS = 10
_DNS_LABEL = re.compile(r"[a-z][a-z0-9]{0,14}$")


def getter(kind: str) -> Handler:
    """Return the operation that shows one resource."""

    def get(cloud: Cloud, request: Request) -> Reply:
        return shown(cloud.get(kind, request.target))

    return get


def lister(kind: str) -> Handler:
    """Return the operation that lists the resources of a compartment."""

    def list_all(cloud: Cloud, request: Request) -> Reply:
        return page(request, cloud.rows(kind), size=cloud.settings.page_size)

    return list_all


def updater(kind: str) -> Handler:
    """Return the operation that changes only names and tags."""

    def update(cloud: Cloud, request: Request) -> Reply:
        resource = cloud.get(kind, request.target)
        cloud.change(resource, **given(request.body))
        return shown(resource)

    return update


def given(body: View) -> View:
    """Return the fields of a body that have a value."""
    return {name: value for name, value in body.items() if value is not None}


def in_compartment(cloud: Cloud, body: View) -> str:
    """Return the compartment that a body names."""
    compartment = str(body["compartmentId"])
    if not cloud.account.has_compartment(compartment):
        raise not_found()
    return compartment


def named(body: View, kind: str, number: int) -> View:
    """Return the fields of every resource: compartment, name and tags."""
    return {
        "compartmentId": body["compartmentId"],
        "displayName": body.get("displayName") or f"{kind}{number:06d}",
        "freeformTags": body.get("freeformTags") or {},
        "definedTags": body.get("definedTags") or {},
    }


def check_tags(body: Any) -> None:
    """Refuse tags and names that the service refuses."""
    if not isinstance(body, dict):
        return
    tags = body.get("freeformTags") or {}
    if len(tags) > MAX_TAGS:
        raise invalid(f"freeformTags has {len(tags)} entries; at most {MAX_TAGS} are allowed")
    for key, value in tags.items():
        if not 1 <= len(key) <= 100 or len(value) > 256:
            raise invalid(f"freeformTags.{key}: keys have 1 to 100 characters, values at most 256")
    if len(body.get("displayName") or "") > 255:
        raise invalid("displayName has more than 255 characters")


def network(text: str, where: str) -> Network:
    """Parse an IPv4 CIDR block, with no bits set beyond its prefix."""
    try:
        return ipaddress.IPv4Network(text)
    except ValueError as error:
        raise invalid(f"{where} is no valid CIDR block: {text} ({error})") from None


def dns_label(body: View) -> str | None:
    """Check the label, and return it."""
    label = body.get("dnsLabel")
    if label is not None and not _DNS_LABEL.match(label):
        raise invalid(f"dnsLabel must be 1 to 15 letters and digits and begin with a letter: {label}")
    return label


def of_vcn(cloud: Cloud, kind: str, identifier: str, vcn: str) -> Resource:
    """Return a live part of that network."""
    part = cloud.get(kind, identifier)
    if part.view["vcnId"] != vcn or not part.live:
        raise invalid(f"{identifier} is not a part of VCN {vcn}")
    return part
