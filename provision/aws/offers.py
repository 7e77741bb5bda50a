"""The offer of AWS for a cluster, before anything is made: instance type, image, zones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from inventories.errors import InvalidInput
from inventories.threads import together
from provision.aws import preview, requests, shapes
from provision.aws.api import Api
from provision.aws.images import choice, lookup
from provision.errors import CloudError, Gone, UnknownShape
from provision.records import CloudCluster, Offer, Zone
from provision.rented.planning.drivers import driver_plan


def find(api: Api, cluster: CloudCluster) -> Offer:
    """Return the offer: see `Cloud.offer`. No image here has terms."""
    described, offered, (states, subnet) = together(
        partial(shapes.describe, api, cluster.shape),
        partial(shapes.zones, api, cluster.shape),
        lambda: together(partial(shapes.zone_states, api), partial(_subnet, api, cluster.subnet_id)),
    )
    shapes.refuse_unusable(described, cluster)
    image, why, exists = choice.find(api, cluster, described)
    driver = driver_plan(
        cluster.driver,
        lookup.system(image),
        shape=cluster.shape,
        nvidia=bool(shapes.nvidia_gpus(described)),
        last=shapes.last_driver(described),
    )
    zones = _zones(cluster, shapes.in_order(offered, states), subnet)
    offer = Offer(
        shape=cluster.shape,
        gpus=shapes.gpus(described),
        image_id=image["ImageId"],
        image_name=image.get("Name", image["ImageId"]),
        image_why=why,
        image_there=exists,
        driver=driver,
        boot_commands=lookup.boot_commands(image),
        user=lookup.user_of(image),
        disk_gb=lookup.disk_gb(image, cluster.disk_gb),
        zones=tuple(Zone(name=zone) for zone in zones),
        hourly_usd=shapes.spot_usd(api, cluster.shape, zones) if cluster.spot else None,
        facts=shapes.facts(described) | lookup.facts(image) | ({"subnet": subnet} if subnet else {}),
    )
    notes = preview.notes(cluster, offer)
    return replace(offer, network_hourly_usd=requests.network_hourly_usd(cluster), notes=notes)


def _subnet(api: Api, subnet_id: str | None) -> dict[str, str] | None:
    """Return VPC and zone of an existing subnet."""
    if subnet_id is None:
        return None
    try:
        subnets = api.pages("describe_subnets", "Subnets", SubnetIds=[subnet_id])
    except CloudError as error:
        if isinstance(error, Gone) or error.code == "InvalidSubnetID.Malformed":
            raise InvalidInput(
                f"There is no subnet '{subnet_id}' in {api.region}. `aws ec2 describe-subnets` lists them."
            ) from error
        raise
    return {"vpc": subnets[0]["VpcId"], "zone": subnets[0]["AvailabilityZone"]}


def _zones(cluster: CloudCluster, offered: Sequence[str], subnet: Mapping[str, str] | None) -> list[str]:
    region = cluster.target.region
    if not offered:
        raise UnknownShape(
            f"AWS offers {cluster.shape} in no zone of {region}. Try another --region or shape."
        )
    if subnet is None:
        return list(offered)
    if subnet["zone"] not in offered:
        raise InvalidInput(
            f"The subnet {cluster.subnet_id} is in {subnet['zone']}, where AWS does not offer {cluster.shape}; "
            f"it does in {', '.join(offered)}. Give a subnet there."
        )
    return [subnet["zone"]]
