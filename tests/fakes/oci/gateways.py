"""Gateways of a network: internet, NAT and service gateways. A route that leads to one keeps it."""

from tests.fakes.oci.api import Handler, Reply, Request, View, shown
from tests.fakes.oci.common import getter, in_compartment, lister, named
from tests.fakes.oci.errors import conflict, invalid
from tests.fakes.oci.rules import SERVICES
from tests.fakes.oci.store import Cloud, must_be_live

_TITLES = {
    "internetgateway": "Internet Gateway",
    "natgateway": "NAT Gateway",
    "servicegateway": "Service Gateway",
}


def _create(kind: str) -> Handler:
    def create(cloud: Cloud, request: Request) -> Reply:
        body = request.body
        in_compartment(cloud, body)
        vcn = cloud.get("vcn", body["vcnId"])
        must_be_live(vcn, "The VCN")
        view = {**named(body, kind, len(cloud.all(kind)) + 1), "vcnId": vcn.id}
        view |= _content(kind, body)
        if kind == "internetgateway":
            view["isEnabled"] = body["isEnabled"]
        else:
            view["blockTraffic"] = bool(body.get("blockTraffic"))
        if kind == "natgateway":
            view["natIp"] = cloud.public_address()
        if any(cloud.where(kind, vcnId=vcn.id)):
            raise invalid(
                f"The maximum limit of 1 for {_TITLES[kind]} per VCN has been exceeded in VCN {vcn.id}"
            )
        gateway = cloud.add(kind, view, state="PROVISIONING")
        cloud.rise(gateway)
        return shown(gateway, made=True)

    return create


def _content(kind: str, body: View) -> View:
    if kind != "servicegateway" or body.get("services") is None:
        return {}
    names = {service["id"]: service["name"] for service in SERVICES}
    requests = [service["serviceId"] for service in body["services"]]
    for service in requests:
        if service not in names:
            raise invalid(f"services: {service} is no service of this region")
    return {"services": [{"serviceId": service, "serviceName": names[service]} for service in requests]}


def _delete(kind: str) -> Handler:
    def delete(cloud: Cloud, request: Request) -> Reply:
        gateway = cloud.get(kind, request.target)
        must_be_live(gateway, f"The {_TITLES[kind]}")
        for table in cloud.where("routetable", vcnId=gateway.view["vcnId"]):
            if any(route["networkEntityId"] == gateway.id for route in table.view["routeRules"]):
                raise conflict(
                    f"The {_TITLES[kind]} {gateway.id} is referenced by the Route Table {table.id}. "
                    "You must remove the reference to proceed with this operation."
                )
        cloud.fall(gateway)
        return Reply(status=204)

    return delete


HANDLERS: dict[str, Handler] = {
    f"{verb}{name}": make(kind)
    for kind, name in (
        ("internetgateway", "InternetGateway"),
        ("natgateway", "NatGateway"),
        ("servicegateway", "ServiceGateway"),
    )
    for verb, make in (("Create", _create), ("Get", getter), ("Delete", _delete))
} | {
    "ListInternetGateways": lister("internetgateway"),
    "ListNatGateways": lister("natgateway"),
    "ListServiceGateways": lister("servicegateway"),
}
