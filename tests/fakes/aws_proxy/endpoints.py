"""Gateway endpoints of a VPC: S3 and DynamoDB by a route of their own. Interface endpoints are not there."""

from typing import Any

from tests.fakes.aws_proxy.errors import ApiError, dry_run, invalid_value, missing, not_found
from tests.fakes.aws_proxy.filters import matching, page
from tests.fakes.aws_proxy.moto_app import ACCOUNT
from tests.fakes.aws_proxy.world import Thing, World, new_id, tags_for, utc_now

Params = dict[str, Any]

KIND = "vpc-endpoint"
SERVICES = ("s3", "dynamodb")


def create(world: World, region: str, params: Params) -> dict[str, Any]:
    """CreateVpcEndpoint."""
    vpc, service = params.get("VpcId", ""), params.get("ServiceName", "")
    if vpc not in world.moto.backend(region).vpcs:
        raise not_found("vpc", vpc)
    if params.get("VpcEndpointType", "Gateway") != "Gateway":
        raise invalid_value(params["VpcEndpointType"], "VpcEndpointType", "This fake has gateways only.")
    if service not in [f"com.amazonaws.{region}.{name}" for name in SERVICES]:
        raise ApiError("InvalidServiceName", f"The Vpc Endpoint Service '{service}' does not exist")
    tables = params.get("RouteTableIds", [])
    _check_tables(world, region, vpc, service, tables)
    if params.get("DryRun"):
        raise dry_run()
    endpoint = Thing(
        kind=KIND,
        id=new_id("vpce"),
        region=region,
        tags=tags_for(params, KIND),
        body={
            "CreationTimestamp": utc_now(),
            "OwnerId": ACCOUNT,
            "RouteTableIds": list(tables),
            "ServiceName": service,
            "State": "available",
            "VpcEndpointType": "Gateway",
            "VpcId": vpc,
        },
    )
    endpoint.body["VpcEndpointId"] = endpoint.id
    world.add(endpoint)
    return {"VpcEndpoint": endpoint.shown(), "ClientToken": params.get("ClientToken")}


def _check_tables(world: World, region: str, vpc: str, service: str, tables: list[str]) -> None:
    known = world.moto.backend(region).route_tables
    for name in tables:
        if name not in known or known[name].vpc_id != vpc:
            raise not_found("route-table", name)
        for other in world.of(KIND, region):
            if name in other.body["RouteTableIds"] and other.body["ServiceName"] == service:
                raise ApiError(
                    "RouteAlreadyExists",
                    f"route table {name} already has a route with destination-prefix-list-id of {service}",
                )


def modify(world: World, region: str, params: Params) -> dict[str, Any]:
    """ModifyVpcEndpoint: its route tables."""
    endpoint = world.get(KIND, region, params.get("VpcEndpointId", ""))
    tables = endpoint.body["RouteTableIds"]
    added = [name for name in params.get("AddRouteTableIds", []) if name not in tables]
    _check_tables(world, region, endpoint.body["VpcId"], endpoint.body["ServiceName"], added)
    if params.get("DryRun"):
        raise dry_run()
    removed = params.get("RemoveRouteTableIds", [])
    endpoint.body["RouteTableIds"] = [name for name in [*tables, *added] if name not in removed]
    return {"Return": True}


def delete(world: World, region: str, params: Params) -> dict[str, Any]:
    """DeleteVpcEndpoints: report failures in the response, without an error status."""
    names = params.get("VpcEndpointIds")
    if not names:
        raise missing("VpcEndpointId")
    if params.get("DryRun"):
        raise dry_run()
    known = {endpoint.id for endpoint in world.of(KIND, region)}
    refused = []
    for name in names:
        if name in known:
            del world.things[name]
        else:
            error = not_found(KIND, name)
            report = {"Code": error.code, "Message": error.message}
            refused.append({"ResourceId": name, "Error": report})
    return {"Unsuccessful": refused}


FILTERS = {
    "service-name": "ServiceName",
    "vpc-endpoint-id": "VpcEndpointId",
    "vpc-endpoint-state": "State",
    "vpc-endpoint-type": "VpcEndpointType",
    "vpc-id": "VpcId",
}


def describe(world: World, region: str, params: Params) -> dict[str, Any]:
    """DescribeVpcEndpoints."""
    ids = params.get("VpcEndpointIds", [])
    chosen = [world.get(KIND, region, name) for name in ids] if ids else world.of(KIND, region)
    shown = [endpoint.shown() for endpoint in chosen if ids or world.visible(endpoint)]
    items, token = page(matching(shown, params.get("Filters", []), FILTERS), params)
    return {"VpcEndpoints": items, "NextToken": token}


def add_routes(world: World, found: dict[str, Any]) -> None:
    """Add each endpoint's route to its route tables, which moto does not do."""
    for table in found["RouteTables"]:
        for endpoint in world.things.values():
            if endpoint.kind == KIND and table["RouteTableId"] in endpoint.body["RouteTableIds"]:
                service = endpoint.body["ServiceName"].rpartition(".")[2]
                table["Routes"].append(
                    {
                        "DestinationPrefixListId": PREFIX_LISTS[service],
                        "GatewayId": endpoint.id,
                        "Origin": "CreateRoute",
                        "State": "active",
                    }
                )


PREFIX_LISTS = {"s3": "pl-63a5400a", "dynamodb": "pl-02cd2c6b"}


def table_gone(world: World, name: str) -> None:
    """Remove a deleted route table from all endpoints."""
    for endpoint in world.things.values():
        if endpoint.kind == KIND:
            endpoint.body["RouteTableIds"] = [t for t in endpoint.body["RouteTableIds"] if t != name]


def of_vpc(world: World, region: str, vpc: str) -> list[str]:
    """Return the endpoints that block a VPC's deletion."""
    return [endpoint.id for endpoint in world.of(KIND, region) if endpoint.body["VpcId"] == vpc]
