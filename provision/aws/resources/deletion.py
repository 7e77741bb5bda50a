"""The deletion of our resources that are no instances."""

import contextlib
from typing import Any

from provision.aws.api import Answer, Api
from provision.aws.errors import translate
from provision.aws.requests import filters
from provision.aws.resources.deletion_blockers import blockers
from provision.aws.resources.listing import listed
from provision.aws.resources.resource_types import KINDS, Kind
from provision.errors import Blocked, CloudError, Gone
from provision.records import Resource
from provision.rented import tags
from provision.waiting import Clock, poll

GONE_WITHIN_S = 15.0
MAX_NAMED = 5

_BY_NAME = {kind.name: kind for kind in KINDS}

_IN_USE = {
    "network-interface": ("InvalidParameterValue",),
    "volume": ("InvalidParameterValue",),
    "elastic-ip": ("AuthFailure", "OperationNotPermitted"),
}
"""EC2's codes for some kinds of resources in use."""


def delete(api: Api, clock: Clock, resource: Resource) -> None:
    """Remove a resource. Raises Blocked while it is in use, with the names of its users."""
    assert tags.is_ours(resource.tags), f"{resource.id} is not ours"
    kind = _BY_NAME[resource.kind]
    try:
        if resource.kind == "internet-gateway":
            _detach(api, resource)
        if resource.kind == "route-table":
            _disassociate(api, resource)
        _refuse_unsuccessful(api, kind, api.call(kind.delete, again=True, **_id_field(kind, resource)))
    except Gone:
        return
    except CloudError as error:
        if not isinstance(error, Blocked) and error.code not in _IN_USE.get(resource.kind, ()):
            raise
        holders = blockers(api, kind, resource)
        if not holders:
            raise
        more = f" and {len(holders) - MAX_NAMED} more" if len(holders) > MAX_NAMED else ""
        raise Blocked(
            f"The {resource.kind} {resource.id} in {api.region} is used by {', '.join(holders[:MAX_NAMED])}{more}.",
            operation=error.operation,
            code=error.code,
        ) from error
    if kind.slow:
        _await_gone(api, clock, kind, resource)


def _id_field(kind: Kind, resource: Resource) -> dict[str, Any]:
    if kind.deleted_by_name:
        return {kind.named or "": resource.name}
    return {f"{kind.id}s": [resource.id]} if kind.deleted_in_a_list else {kind.id: resource.id}


def _refuse_unsuccessful(api: Api, kind: Kind, answer: Answer) -> None:
    """Raise the error of one id in the successful answer of a call that takes several ids."""
    for refused in answer.get("Unsuccessful") or []:
        operation = "".join(word.capitalize() for word in kind.delete.split("_"))
        raise translate(refused, service="ec2", operation=operation, region=api.region)


def _disassociate(api: Api, resource: Resource) -> None:
    """Remove a route table's associations, also with deleted subnets, which a cloud may still list."""
    for table in api.pages(
        "describe_route_tables", "RouteTables", Filters=filters(route_table_id=resource.id)
    ):
        for association in table.get("Associations", []):
            if not association.get("Main"):
                with contextlib.suppress(Gone):
                    api.call(
                        "disassociate_route_table",
                        again=True,
                        AssociationId=association["RouteTableAssociationId"],
                    )


def _detach(api: Api, resource: Resource) -> None:
    gateways = api.pages(
        "describe_internet_gateways", "InternetGateways", Filters=filters(internet_gateway_id=resource.id)
    )
    for attachment in [a for gateway in gateways for a in gateway.get("Attachments", [])]:
        try:
            api.call(
                "detach_internet_gateway",
                again=True,
                InternetGatewayId=resource.id,
                VpcId=attachment["VpcId"],
            )
        except Gone:
            continue  # detached since it was listed


def _await_gone(api: Api, clock: Clock, kind: Kind, resource: Resource) -> None:
    for _ in poll(clock, GONE_WITHIN_S):
        if resource.id not in {other.id for other in listed(api, kind)}:
            return
    minutes = f", which can take {kind.ends_within_s / 60:.0f} minutes" if kind.ends_within_s else ""
    raise Blocked(f"The {resource.kind} {resource.id} in {api.region} is being deleted{minutes}.")
