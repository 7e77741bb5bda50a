"""GET /_fake/state: all resources, in all regions used so far."""

from collections.abc import Iterator
from typing import Any

from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends

from tests.fakes.aws_proxy.instances import Instance
from tests.fakes.aws_proxy.moto_app import ACCOUNT
from tests.fakes.aws_proxy.world import Thing, World


def snapshot(world: World) -> dict[str, Any]:
    """Return the state for tests: without any lag, and with the parameters of launches."""
    with world.lock:
        world.advance()
        things = list(world.things.values())
        return {
            "instances": [_instance(thing) for thing in things if isinstance(thing, Instance)],
            "resources": [
                *(
                    _thing(thing)
                    for thing in things
                    if not isinstance(thing, Instance) and not _is_over(thing)
                ),
                *_of_moto(world),
                *_roles(),
            ],
        }


def _instance(instance: Instance) -> dict[str, Any]:
    return {
        "id": instance.id,
        "state": instance.state,
        "tags": dict(instance.tags),
        "shape": instance.plan.type,
        "place": instance.plan.zone,
        "token": instance.token,
        "launched_at": instance.launched_at,
        "ended_at": instance.ended_at,
        "region": instance.region,
        "spot": instance.plan.spot,
        "address": instance.address,
        "request": instance.request,
    }


def _is_over(thing: Thing) -> bool:
    """Return whether a Spot request is over: it is still listed, but requests nothing any more."""
    return thing.kind == "spot-instances-request" and thing.body["State"] in ("closed", "cancelled")


def _thing(thing: Thing) -> dict[str, Any]:
    state = thing.body.get("State") or thing.body.get("status") or thing.shown().get("Status") or "available"
    return {
        "kind": thing.kind,
        "id": thing.id,
        "tags": dict(thing.tags),
        "state": state,
        "region": thing.region,
    }


def _of_moto(world: World) -> Iterator[dict[str, Any]]:
    for region, backend in list(ec2_backends[ACCOUNT].items()):
        default_vpc = next((vpc.id for vpc in backend.vpcs.values() if vpc.is_default), None)
        for kind, resource in _resources(backend):
            vpc = getattr(resource, "vpc_id", None) or (resource.id if kind == "vpc" else None)
            yield {
                "kind": kind,
                "id": resource.id,
                "name": getattr(resource, "key_name", None) or getattr(resource, "name", None),
                "tags": {tag["key"]: tag["value"] for tag in resource.get_tags()},
                "state": "available",
                "region": region,
                "default": vpc == default_vpc and vpc is not None,
                "vpc": vpc,
                "implicit": _is_implicit(kind, resource),
            }


def _roles() -> Iterator[dict[str, Any]]:
    for role in iam_backends[ACCOUNT]["aws"].roles.values():
        tags = {tag["Key"]: tag["Value"] for tag in role.tags}
        yield {"kind": "role", "id": role.name, "tags": tags, "state": "available", "region": None}


def _resources(backend: Any) -> Iterator[tuple[str, Any]]:
    yield from (("vpc", vpc) for vpc in backend.vpcs.values())
    yield from (("subnet", result) for by_id in backend.subnets.values() for result in by_id.values())
    yield from (("internet-gateway", result) for result in backend.internet_gateways.values())
    yield from (("route-table", result) for result in backend.route_tables.values())
    yield from (("security-group", result) for by_id in backend.groups.values() for result in by_id.values())
    yield from (("key-pair", result) for result in backend.key_pairs.values())


def _is_implicit(kind: str, found: Any) -> bool:
    """Return whether the resource was created with its VPC, and is deleted with it."""
    if kind == "security-group":
        return bool(found.name == "default")
    return kind == "route-table" and bool(found.main_association_id)
