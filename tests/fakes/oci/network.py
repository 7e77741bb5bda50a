"""Virtual cloud networks: VCNs and subnets, a VCN's default parts, and the order of deletions."""

from collections.abc import Iterator

from tests.fakes.oci.api import Handler, Reply, Request, View, page, shown
from tests.fakes.oci.common import (
    dns_label,
    getter,
    given,
    in_compartment,
    lister,
    named,
    network,
    of_vcn,
)
from tests.fakes.oci.errors import conflict, incorrect_state, invalid, limit_exceeded, missing
from tests.fakes.oci.gateways import HANDLERS as GATEWAYS
from tests.fakes.oci.groups import HANDLERS as GROUPS
from tests.fakes.oci.rules import SERVICES, check_routes, check_security_list
from tests.fakes.oci.store import Cloud, Resource, must_be_live
from tests.fakes.oci.vnics import HANDLERS as VNICS

_CHILDREN = {
    "subnet": "Subnet",
    "internetgateway": "Internet Gateway",
    "natgateway": "NAT Gateway",
    "servicegateway": "Service Gateway",
    "networksecuritygroup": "Network Security Group",
    "routetable": "Route Table",
    "securitylist": "Security List",
    "dhcpoptions": "DHCP Options",
}

_SSH: View = {"tcpOptions": {"destinationPortRange": {"min": 22, "max": 22}}}
_DEFAULT_RULES: dict[str, list[View]] = {
    "ingressSecurityRules": [
        {"protocol": "6", "source": "0.0.0.0/0", **_SSH},
        {"protocol": "1", "source": "0.0.0.0/0", "icmpOptions": {"type": 3, "code": 4}},
        {"protocol": "1", "source": "10.0.0.0/16", "icmpOptions": {"type": 3}},
    ],
    "egressSecurityRules": [{"protocol": "all", "destination": "0.0.0.0/0"}],
}


def create_vcn(cloud: Cloud, request: Request) -> Reply:
    """CreateVcn: with its default route table, security list and DHCP options."""
    body = request.body
    in_compartment(cloud, body)
    if body.get("cidrBlock") and body.get("cidrBlocks"):
        raise invalid("cidrBlock and cidrBlocks must not both be given")
    blocks = body.get("cidrBlocks") or ([body["cidrBlock"]] if body.get("cidrBlock") else [])
    if not blocks:
        raise missing("cidrBlocks is required")
    for block in blocks:
        if not 16 <= network(block, "cidrBlocks").prefixlen <= 30:
            raise invalid(f"cidrBlocks: {block} is not between /16 and /30")
    label = dns_label(body)
    limit = cloud.settings.quota.get("vcn")
    if limit is not None and len(list(cloud.where("vcn"))) >= limit:
        raise limit_exceeded("vcn-count")
    vcn = cloud.add(
        "vcn",
        {
            **named(body, "vcn", len(cloud.all("vcn")) + 1),
            "cidrBlock": blocks[0],
            "cidrBlocks": blocks,
            "dnsLabel": label,
            "vcnDomainName": f"{label}.oraclevcn.com" if label else None,
        },
        state="PROVISIONING",
    )
    _add_defaults(cloud, vcn)
    cloud.rise(vcn)
    return shown(vcn, made=True)


def _add_defaults(cloud: Cloud, vcn: Resource) -> None:
    def part(kind: str, title: str, view: View) -> str:
        common = {"compartmentId": vcn.view["compartmentId"], "vcnId": vcn.id, "freeformTags": {}}
        name = {"displayName": f"Default {title} for {vcn.view['displayName']}", "definedTags": {}}
        return cloud.add(kind, {**common, **name, **view}, state="AVAILABLE", own={"default": True}).id

    options: list[View] = [{"type": "DomainNameServer", "serverType": "VcnLocalPlusInternet"}]
    if vcn.view.get("vcnDomainName"):
        options.append({"type": "SearchDomain", "searchDomainNames": [vcn.view["vcnDomainName"]]})
    cloud.change(
        vcn,
        defaultRouteTableId=part("routetable", "Route Table", {"routeRules": []}),
        defaultSecurityListId=part("securitylist", "Security List", check_security_list(_DEFAULT_RULES)),
        defaultDhcpOptionsId=part("dhcpoptions", "DHCP Options", {"options": options}),
    )


def _children(cloud: Cloud, vcn: str) -> Iterator[Resource]:
    for kind in _CHILDREN:
        yield from cloud.where(kind, vcnId=vcn)


def delete_vcn(cloud: Cloud, request: Request) -> Reply:
    """DeleteVcn: only when nothing but its defaults is left in it, which go with it."""
    vcn = cloud.get("vcn", request.target)
    must_be_live(vcn, "The VCN")
    for child in _children(cloud, vcn.id):
        if not child.own.get("default"):
            raise incorrect_state(f"{vcn.id} is associated with {_CHILDREN[child.kind]} that is in use")
    for child in list(_children(cloud, vcn.id)):
        cloud.fall(child)
    cloud.fall(vcn)
    return Reply(status=204)


def create_subnet(cloud: Cloud, request: Request) -> Reply:
    """CreateSubnet."""
    body = request.body
    in_compartment(cloud, body)
    vcn = cloud.get("vcn", body["vcnId"])
    must_be_live(vcn, "The VCN")
    cidr = body.get("cidrBlock") or next(iter(body.get("ipv4CidrBlocks") or ()), None)
    if cidr is None:
        raise missing("cidrBlock is required")
    block = network(cidr, "cidrBlock")
    if block.prefixlen > 30 or not any(
        block.subnet_of(network(outer, "cidrBlocks")) for outer in vcn.view["cidrBlocks"]
    ):
        raise invalid(f"The requested CIDR {cidr} is invalid: not in the CIDR blocks of VCN {vcn.id}.")
    for other in cloud.where("subnet", vcnId=vcn.id):
        if block.overlaps(network(other.view["cidrBlock"], "cidrBlock")):
            raise invalid(
                f"The requested CIDR {cidr} is invalid: subnet {other.id} "
                f"with CIDR {other.view['cidrBlock']} overlaps with this CIDR."
            )
    domain = body.get("availabilityDomain")
    if domain and not cloud.account.has_domain(domain):
        raise invalid(f"availabilityDomain is no availability domain of this region: {domain}")
    label = dns_label(body)
    if label and not vcn.view.get("dnsLabel"):
        raise invalid(f"dnsLabel: VCN {vcn.id} has none")
    subnet = cloud.add(
        "subnet",
        {
            **named(body, "subnet", len(cloud.all("subnet")) + 1),
            "vcnId": vcn.id,
            "cidrBlock": cidr,
            "ipv4CidrBlocks": [cidr],
            "availabilityDomain": domain,
            "dnsLabel": label,
            "subnetDomainName": f"{label}.{vcn.view['vcnDomainName']}" if label else None,
            "prohibitPublicIpOnVnic": bool(body.get("prohibitPublicIpOnVnic")),
            "prohibitInternetIngress": bool(body.get("prohibitInternetIngress")),
            "virtualRouterIp": str(block[1]),
            "virtualRouterMac": "00:00:17:4B:5A:01",
            **_subnet_parts(cloud, vcn, body, defaults=True),
        },
        state="PROVISIONING",
    )
    cloud.rise(subnet)
    return shown(subnet, made=True)


def _subnet_parts(cloud: Cloud, vcn: Resource, body: View, *, defaults: bool) -> View:
    parts: View = {}
    for field, kind, default in (
        ("routeTableId", "routetable", "defaultRouteTableId"),
        ("dhcpOptionsId", "dhcpoptions", "defaultDhcpOptionsId"),
    ):
        if body.get(field):
            parts[field] = of_vcn(cloud, kind, body[field], vcn.id).id
        elif defaults:
            parts[field] = vcn.view[default]
    lists = body.get("securityListIds")
    if lists is not None:
        if len(lists) > 5 or len(set(lists)) != len(lists):
            raise invalid("securityListIds must be at most five different ones")
        parts["securityListIds"] = [of_vcn(cloud, "securitylist", item, vcn.id).id for item in lists]
    elif defaults:
        parts["securityListIds"] = [vcn.view["defaultSecurityListId"]]
    return parts


def delete_subnet(cloud: Cloud, request: Request) -> Reply:
    """DeleteSubnet: refused while any VNIC is in it."""
    subnet = cloud.get("subnet", request.target)
    must_be_live(subnet, "The Subnet")
    for vnic in cloud.where("vnic", subnetId=subnet.id):
        raise conflict(
            f"The Subnet {subnet.id} references the VNIC {vnic.id}. "
            "You must remove the reference to proceed with this operation."
        )
    cloud.fall(subnet)
    return Reply(status=204)


def create_route_table(cloud: Cloud, request: Request) -> Reply:
    """CreateRouteTable."""
    return _create_part(cloud, request, "routetable")


def create_security_list(cloud: Cloud, request: Request) -> Reply:
    """CreateSecurityList."""
    return _create_part(cloud, request, "securitylist")


def _create_part(cloud: Cloud, request: Request, kind: str) -> Reply:
    body = request.body
    in_compartment(cloud, body)
    vcn = cloud.get("vcn", body["vcnId"])
    must_be_live(vcn, "The VCN")
    view = {**named(body, kind, len(cloud.all(kind)) + 1), "vcnId": vcn.id}
    part = cloud.add(kind, view | _content(cloud, kind, vcn.id, body), state="PROVISIONING")
    cloud.rise(part)
    return shown(part, made=True)


def _content(cloud: Cloud, kind: str, vcn: str, body: View) -> View:
    if kind == "securitylist":
        return check_security_list(body)
    if body.get("routeRules") is None:
        return {}
    return {"routeRules": check_routes(cloud, vcn, body["routeRules"])}


def _update_part(kind: str) -> Handler:
    def update(cloud: Cloud, request: Request) -> Reply:
        part = cloud.get(kind, request.target)
        must_be_live(part, f"The {_CHILDREN[kind]}")
        content = _content(cloud, kind, part.view["vcnId"], request.body)
        cloud.change(part, **{**given(request.body), **content})
        return shown(part)

    return update


def _delete_part(kind: str) -> Handler:
    def delete(cloud: Cloud, request: Request) -> Reply:
        part = cloud.get(kind, request.target)
        title = _CHILDREN[kind]
        must_be_live(part, f"The {title}")
        if part.own.get("default"):
            raise conflict(f"The {title} {part.id} is the default one of VCN {part.view['vcnId']}.")
        for subnet in cloud.where("subnet", vcnId=part.view["vcnId"]):
            if part.id in (subnet.view["routeTableId"], subnet.view["dhcpOptionsId"]) or (
                part.id in subnet.view["securityListIds"]
            ):
                raise conflict(
                    f"The {title} {part.id} is associated with the Subnet {subnet.id}. "
                    "You must remove the reference to proceed with this operation."
                )
        cloud.fall(part)
        return Reply(status=204)

    return delete


def list_services(cloud: Cloud, request: Request) -> Reply:
    """ListServices: the services that a service gateway can route to."""
    return page(request, enumerate(SERVICES), size=cloud.settings.page_size)


HANDLERS: dict[str, Handler] = {
    "CreateVcn": create_vcn,
    "GetVcn": getter("vcn"),
    "ListVcns": lister("vcn"),
    "DeleteVcn": delete_vcn,
    "CreateSubnet": create_subnet,
    "GetSubnet": getter("subnet"),
    "ListSubnets": lister("subnet"),
    "DeleteSubnet": delete_subnet,
    "CreateRouteTable": create_route_table,
    "GetRouteTable": getter("routetable"),
    "ListRouteTables": lister("routetable"),
    "UpdateRouteTable": _update_part("routetable"),
    "DeleteRouteTable": _delete_part("routetable"),
    "CreateSecurityList": create_security_list,
    "GetSecurityList": getter("securitylist"),
    "ListSecurityLists": lister("securitylist"),
    "DeleteSecurityList": _delete_part("securitylist"),
    "ListServices": list_services,
    **GATEWAYS,
    **GROUPS,
    **VNICS,
}
