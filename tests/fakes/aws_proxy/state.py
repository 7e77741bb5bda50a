"""GET /_fake/state: all that there is, in all regions that were asked for anything."""

from collections.abc import Iterator
from typing import Any

from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends

from tests.fakes.aws_proxy.instances import Instance
from tests.fakes.aws_proxy.moto_app import ACCOUNT
from tests.fakes.aws_proxy.world import Thing, World


def snapshot(world: World) -> dict[str, Any]:
    """As tests see it: without any lag, and with what a launch asked for."""
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
    """A Spot request that asks for nothing any more is still listed, and is nothing."""
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
        for kind, found in _resources(backend):
            vpc = getattr(found, "vpc_id", None) or (found.id if kind == "vpc" else None)
            yield {
                "kind": kind,
                "id": found.id,
                "name": getattr(found, "key_name", None) or getattr(found, "name", None),
                "tags": {tag["key"]: tag["value"] for tag in found.get_tags()},
                "state": "available",
                "region": region,
                "default": vpc == default_vpc and vpc is not None,
                "vpc": vpc,
                "implicit": _is_implicit(kind, found),
            }


def _roles() -> Iterator[dict[str, Any]]:
    for role in iam_backends[ACCOUNT]["aws"].roles.values():
        tags = {tag["Key"]: tag["Value"] for tag in role.tags}
        yield {"kind": "role", "id": role.name, "tags": tags, "state": "available", "region": None}


def _resources(backend: Any) -> Iterator[tuple[str, Any]]:
    yield from (("vpc", vpc) for vpc in backend.vpcs.values())
    yield from (("subnet", found) for by_id in backend.subnets.values() for found in by_id.values())
    yield from (("internet-gateway", found) for found in backend.internet_gateways.values())
    yield from (("route-table", found) for found in backend.route_tables.values())
    yield from (("security-group", found) for by_id in backend.groups.values() for found in by_id.values())
    yield from (("key-pair", found) for found in backend.key_pairs.values())


def _is_implicit(kind: str, found: Any) -> bool:
    """Whether it came with its VPC, and goes with it."""
    if kind == "security-group":
        return bool(found.name == "default")
    return kind == "route-table" and bool(found.main_association_id)
