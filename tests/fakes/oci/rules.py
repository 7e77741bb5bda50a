"""Checks of routes and of security rules, by the service's limits."""

from collections.abc import Sequence
from typing import Any

from tests.fakes.oci.account import REGION
from tests.fakes.oci.api import View
from tests.fakes.oci.common import network, of_vcn
from tests.fakes.oci.errors import invalid, missing
from tests.fakes.oci.store import Cloud

MAX_RULES = 200
MAX_GROUP_RULES = 120

SERVICES: list[View] = [
    {
        "id": f"ocid1.service.oc1.{REGION}.aaaaaaaa{name}",
        "name": f"{title} in Oracle Services Network" if name == "all" else title,
        "description": title,
        "cidrBlock": cidr,
    }
    for name, title, cidr in (
        ("objectstorage", "OCI FRA Object Storage", "oci-fra-objectstorage"),
        ("all", "All FRA Services", "all-fra-services-in-oracle-services-network"),
    )
]
ALL_SERVICES = SERVICES[1]["cidrBlock"]

_GATEWAYS = ("internetgateway", "natgateway", "servicegateway")
_OPTIONS = {"tcpOptions": ("6",), "udpOptions": ("17",), "icmpOptions": ("1", "58")}


def check_routes(cloud: Cloud, vcn: str, routes: Sequence[View]) -> list[View]:
    """Check the routes, and return their stored form."""
    saved: list[View] = []
    for at, route in enumerate(routes):
        where = f"routeRules[{at}]"
        kind = route.get("destinationType") or "CIDR_BLOCK"
        destination = route.get("destination") or route.get("cidrBlock")
        if destination is None:
            raise missing(f"{where}.destination is required")
        target = cloud.any(route["networkEntityId"])
        if target is None or target.kind not in _GATEWAYS:
            raise invalid(f"{where}.networkEntityId is no gateway: {route['networkEntityId']}")
        of_vcn(cloud, target.kind, target.id, vcn)
        if kind == "CIDR_BLOCK":
            network(destination, f"{where}.destination")
        elif destination not in [service["cidrBlock"] for service in SERVICES]:
            raise invalid(f"{where}.destination is no CIDR label of a service: {destination}")
        if (kind == "SERVICE_CIDR_BLOCK") != (target.kind == "servicegateway"):
            raise invalid(f"{where}: a service gateway, and only it, is the target of a SERVICE_CIDR_BLOCK")
        if any(destination == other["destination"] for other in saved):
            raise invalid(f"{where}: there is another route to {destination}")
        saved.append(
            {
                "networkEntityId": target.id,
                "destination": destination,
                "destinationType": kind,
                "routeType": "STATIC",
                **({"description": route["description"]} if route.get("description") else {}),
                **({"cidrBlock": destination} if kind == "CIDR_BLOCK" else {}),
            }
        )
    public = any(".internetgateway." in route["networkEntityId"] for route in saved)
    if public and any(route["destination"] == ALL_SERVICES for route in saved):
        raise invalid(f"routeRules has both an internet gateway and {ALL_SERVICES}")
    return saved


def check_security_list(body: View) -> View:
    """Check the rules of a security list's body, and return their stored form."""
    saved: View = {}
    for field, side in (("ingressSecurityRules", "source"), ("egressSecurityRules", "destination")):
        if body.get(field) is None:
            continue
        if len(body[field]) > MAX_RULES:
            raise invalid(f"{field} has {len(body[field])} rules; at most {MAX_RULES} are allowed")
        saved[field] = []
        for at, rule in enumerate(body[field]):
            _check_traffic(rule, f"{field}[{at}]")
            _check_side(None, "", rule, side, f"{field}[{at}]")
            saved[field].append({"isStateless": False, f"{side}Type": "CIDR_BLOCK", **_given(rule)})
    return saved


def check_group_rule(cloud: Cloud, vcn: str, rule: View, where: str) -> View:
    """Check a rule of a network security group, and return its stored form without an id."""
    direction = rule["direction"]
    if direction not in ("INGRESS", "EGRESS"):
        raise invalid(f"{where}.direction is '{direction}', not one of: INGRESS, EGRESS")
    side, other = ("source", "destination") if direction == "INGRESS" else ("destination", "source")
    if rule.get(other) or rule.get(f"{other}Type"):
        raise invalid(f"{where}.{other} must not be given in a rule for {direction}")
    if not rule.get(side):
        raise missing(f"{where}.{side} is required in a rule for {direction}")
    _check_traffic(rule, where)
    _check_side(cloud, vcn, rule, side, where)
    return {"isStateless": False, f"{side}Type": "CIDR_BLOCK", **_given(rule), "isValid": True}


def _check_traffic(rule: View, where: str) -> None:
    protocol = rule["protocol"]
    if protocol != "all" and not (protocol.isdecimal() and int(protocol) <= 255):
        raise invalid(f"{where}.protocol must be 'all' or the number of a protocol: {protocol}")
    for options, protocols in _OPTIONS.items():
        if rule.get(options) is None:
            continue
        if protocol not in protocols:
            raise invalid(f"{where}.{options} do not go with protocol {protocol}")
        for side in ("destinationPortRange", "sourcePortRange"):
            _check_ports(rule[options].get(side), f"{where}.{options}.{side}")


def _check_ports(ports: Any, where: str) -> None:
    if ports is not None and not 1 <= ports["min"] <= ports["max"] <= 65535:
        raise invalid(f"{where} must be between 1 and 65535, min not above max")


def _check_side(cloud: Cloud | None, vcn: str, rule: View, side: str, where: str) -> None:
    kind, value = rule.get(f"{side}Type") or "CIDR_BLOCK", rule[side]
    if kind == "CIDR_BLOCK":
        network(value, f"{where}.{side}")
    elif kind == "SERVICE_CIDR_BLOCK":
        if value not in [service["cidrBlock"] for service in SERVICES]:
            raise invalid(f"{where}.{side} is no CIDR label of a service: {value}")
    elif cloud:
        of_vcn(cloud, "networksecuritygroup", value, vcn)


def _given(rule: View) -> View:
    return {name: value for name, value in rule.items() if value is not None}
