"""The requests that gpuctl sends to AWS, as boto3 takes them. Pure: the preview shows what is really sent."""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from provision.aws.catalog import ADDRESS_HOURLY_USD, NAT_HOURLY_USD
from provision.records import CloudCluster, Infrastructure, NewMachine, Offer, Zone
from provision.rented import tags

Request = dict[str, Any]
Tags = Mapping[str, str]

VPC_CIDR = "10.77.0.0/16"
SUBNET_PREFIX = 20
EVERYWHERE = "0.0.0.0/0"
NETWORK_NAME = "gpuctl"
MAX_TAG_VALUE = 256


def name_of(cluster: CloudCluster) -> str:
    """The name of what belongs to a cluster and can't be told by an id: group, key, placement group."""
    return f"gpuctl-{cluster.name}-{cluster.id[:8]}"


def cluster_tags(cluster: CloudCluster) -> dict[str, str]:
    """Tags of what belongs to the cluster."""
    private = is_private(cluster)
    of = tags.of_cluster(cluster.name, cluster.id, cluster.owner, cluster.expires_at, private=private)
    provider = cluster.target.provider
    return of if provider == "aws" else of | {tags.PROVIDER: provider}


def is_private(cluster: CloudCluster) -> bool:
    """Whether its machines stand in a private subnet of ours, behind the NAT gateway."""
    return cluster.subnet_id is None and not cluster.public_ip


def network_hourly_usd(cluster: CloudCluster) -> float:
    """What its network costs: see `Offer`."""
    return NAT_HOURLY_USD + ADDRESS_HOURLY_USD if is_private(cluster) else 0.0


def tag_specification(kind: str, of: Tags, name: str) -> Request:
    """For `TagSpecifications`; `name` is what the console shows."""
    pairs = [{"Key": key, "Value": value[:MAX_TAG_VALUE]} for key, value in {**of, "Name": name}.items()]
    return {"ResourceType": kind, "Tags": pairs}


def tags_in(item: Mapping[str, Any]) -> dict[str, str]:
    """The tags of something that AWS describes; a network interface has them under another name."""
    return {tag["Key"]: tag["Value"] for tag in item.get("Tags") or item.get("TagSet") or []}


def filters(**values: str | Sequence[str]) -> list[Request]:
    """For `Filters`; `_` in a name stands for `-`."""
    return [
        {"Name": name.replace("_", "-"), "Values": [value] if isinstance(value, str) else list(value)}
        for name, value in values.items()
    ]


def tagged(key: str, value: str) -> list[Request]:
    """Filter: what carries that tag."""
    return [{"Name": f"tag:{key}", "Values": [value]}]


def ours() -> list[Request]:
    """Filter: what gpuctl made."""
    return filters(tag_key=tags.CLUSTER)


def _network_tags(
    kind: str, cluster: CloudCluster, name: str = NETWORK_NAME, *, private: bool = False
) -> Request:
    of = tags.of_network(cluster.owner, private=private)
    return {"TagSpecifications": [tag_specification(kind, of, name)]}


def _tier_name(private: bool) -> str:
    return f"{NETWORK_NAME} private" if private else NETWORK_NAME


def vpc(cluster: CloudCluster) -> Request:
    """CreateVpc."""
    return {"CidrBlock": VPC_CIDR} | _network_tags("vpc", cluster)


def internet_gateway(cluster: CloudCluster) -> Request:
    """CreateInternetGateway."""
    return _network_tags("internet-gateway", cluster)


def route_table(cluster: CloudCluster, vpc_id: str, token: str, *, private: bool = False) -> Request:
    """CreateRouteTable."""
    named = _network_tags("route-table", cluster, _tier_name(private), private=private)
    return {"VpcId": vpc_id, "ClientToken": token} | named


def way_out(gateway_id: str, *, private: bool = False) -> Request:
    """Where a route leads: to the internet gateway, in a private subnet to the NAT gateway."""
    return {"NatGatewayId" if private else "GatewayId": gateway_id}


def default_route(route_table_id: str, way: Request) -> Request:
    """CreateRoute, ReplaceRoute."""
    return {"RouteTableId": route_table_id, "DestinationCidrBlock": EVERYWHERE} | way


def elastic_ip(cluster: CloudCluster) -> Request:
    """AllocateAddress: what the NAT gateway is seen as."""
    return {"Domain": "vpc"} | _network_tags("elastic-ip", cluster, _tier_name(True), private=True)


def nat_gateway(cluster: CloudCluster, subnet_id: str, allocation_id: str, token: str) -> Request:
    """CreateNatGateway, in a public subnet."""
    named = _network_tags("natgateway", cluster, _tier_name(True), private=True)
    return {"SubnetId": subnet_id, "AllocationId": allocation_id, "ClientToken": token} | named


def s3_service(cluster: CloudCluster) -> str:
    """S3 of the cluster's region, as endpoints name it."""
    return f"com.amazonaws.{cluster.target.region or '<region>'}.s3"


def s3_endpoint(cluster: CloudCluster, vpc_id: str, route_table_id: str, token: str) -> Request:
    """CreateVpcEndpoint: S3 without the NAT gateway, which takes money for each GB; itself it is free."""
    return {
        "VpcEndpointType": "Gateway",
        "VpcId": vpc_id,
        "ServiceName": s3_service(cluster),
        "RouteTableIds": [route_table_id],
        "ClientToken": token,
    } | _network_tags("vpc-endpoint", cluster, _tier_name(True), private=True)


def subnet(cluster: CloudCluster, vpc_id: str, zone: str, cidr: str, *, private: bool = False) -> Request:
    """CreateSubnet."""
    named = _network_tags("subnet", cluster, f"{_tier_name(private)} {zone}", private=private)
    return {"VpcId": vpc_id, "AvailabilityZone": zone, "CidrBlock": cidr} | named


def subnet_cidr(zone: str, taken: Iterable[str], *, private: bool = False) -> str:
    """The zone's part of the VPC, private ones in its upper half: the same whoever asks, unless that is taken."""
    blocks = [str(block) for block in ipaddress.ip_network(VPC_CIDR).subnets(new_prefix=SUBNET_PREFIX)]
    used = set(taken)
    first = (ord(zone[-1]) - ord("a") + private * len(blocks) // 2) % len(blocks)
    ordered = blocks[first:] + blocks[:first]
    return next((block for block in ordered if block not in used), ordered[0])


def security_group(cluster: CloudCluster, vpc_id: str) -> Request:
    """CreateSecurityGroup."""
    name = name_of(cluster)
    return {
        "GroupName": name,
        "Description": f"SSH to the gpuctl cluster {cluster.name}, and all among its machines",
        "VpcId": vpc_id,
        "TagSpecifications": [tag_specification("security-group", cluster_tags(cluster), name)],
    }


def key_pair(cluster: CloudCluster, public_key: str) -> Request:
    """ImportKeyPair."""
    name = name_of(cluster)
    return {
        "KeyName": name,
        "PublicKeyMaterial": public_key.strip().encode(),
        "TagSpecifications": [tag_specification("key-pair", cluster_tags(cluster), name)],
    }


def placement_group(cluster: CloudCluster, zone: str) -> Request:
    """CreatePlacementGroup. One a zone: such a group stays where its machines are until they have ended."""
    name = f"{name_of(cluster)}-{zone}"
    return {
        "GroupName": name,
        "Strategy": "cluster",
        "TagSpecifications": [tag_specification("placement-group", cluster_tags(cluster), name)],
    }


def in_placement_group(cluster: CloudCluster, facts: Mapping[str, Any]) -> bool:
    """Return whether the cluster's machines are launched into a placement group: if it began with several.

    One machine gains nothing by it, and a group makes a lack of capacity likelier. A running machine cannot join a
    group, so a cluster keeps what it began with.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-groups.html.
    """
    return bool(facts["placement_group"]) and cluster.first_count != 1


def ssh_rule(cidr: str, port: int) -> Request:
    """Lets SSH in from `cidr`."""
    ranges = {"Ipv6Ranges": [{"CidrIpv6": cidr}]} if ":" in cidr else {"IpRanges": [{"CidrIp": cidr}]}
    return {"IpProtocol": "tcp", "FromPort": port, "ToPort": port} | ranges


def group_rule(group_id: str) -> Request:
    """Lets everything through among the group's members."""
    return {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}


def rules_in(cluster: CloudCluster, group_id: str) -> list[Request]:
    """All that the cluster's group lets in."""
    return [*(ssh_rule(cidr, cluster.ssh_port) for cidr in cluster.ssh_cidrs), group_rule(group_id)]


def efa_layout(facts: Mapping[str, Any], *, public: bool) -> list[Request]:
    """The network interfaces of a machine: card, device and kind of each.

    AWS assigns no public address to a machine that is launched with several interfaces, so such a machine
    has one, with EFA where its card can. Otherwise each card that can has an EFA device of its own without
    an address, beside one ordinary interface: what AWS recommends for types with several cards.
    """
    cards: list[int] = facts["efa_cards"]
    first: Request = {"NetworkCardIndex": 0, "DeviceIndex": 0}
    if 0 in cards and (len(cards) == 1 or public or facts["first_card_interfaces"] < 2):
        first["InterfaceType"] = "efa"
        cards = cards[1:]
    if public:
        cards = []
    return [first] + [
        {"NetworkCardIndex": card, "DeviceIndex": 0 if card else 1, "InterfaceType": "efa-only"}
        for card in cards
    ]


def run_instances(
    cluster: CloudCluster,
    offer: Offer,
    infrastructure: Infrastructure,
    zone: Zone,
    launch: str,
    machines: Sequence[NewMachine],
) -> Request:
    """RunInstances for all machines of a launch: AWS makes all of them or none."""
    assert len({machine.user_data for machine in machines}) == 1, "AWS gives all machines the same user-data"
    of = cluster_tags(cluster) | {
        tags.LAUNCH: launch,
        tags.RANKS: tags.ranks_text(machine.rank for machine in machines),
    }
    if cluster.image:
        of[tags.IMAGE] = cluster.image
    name = machines[0].name if len(machines) == 1 else cluster.name
    kinds = ["instance", "volume", "network-interface"] + ["spot-instances-request"] * cluster.spot
    placement = {"AvailabilityZone": zone.name}
    if group := infrastructure.ids.get("placement_group"):
        placement["GroupName"] = group
    request: Request = {
        "ImageId": offer.image_id,
        "InstanceType": offer.shape,
        "MinCount": len(machines),
        "MaxCount": len(machines),
        "ClientToken": launch,
        "KeyName": infrastructure.ids["key"],
        "Placement": placement,
        "NetworkInterfaces": _interfaces(cluster, offer, infrastructure),
        "BlockDeviceMappings": _disks(offer),
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
        },
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": [tag_specification(kind, of, name) for kind in kinds],
        "UserData": machines[0].user_data,
    }
    if cluster.spot:
        request["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
        }
    return request


def _interfaces(cluster: CloudCluster, offer: Offer, infrastructure: Infrastructure) -> list[Request]:
    layout = efa_layout(offer.facts, public=cluster.public_ip)
    at = {
        "SubnetId": infrastructure.ids["subnet"],
        "Groups": [infrastructure.ids["security_group"]],
        "DeleteOnTermination": True,
    }
    # Said for the first one in either case: a subnet may assign addresses by itself.
    addressed = {"AssociatePublicIpAddress": cluster.public_ip}
    return [layout[0] | at | addressed, *(interface | at for interface in layout[1:])]


def _disks(offer: Offer) -> list[Request]:
    """The root disk, and those that the image brings: an image may say that a disk outlives its machine."""
    kept_small = {"VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}
    root = {"DeviceName": offer.facts["root_device"], "Ebs": kept_small | {"VolumeSize": offer.disk_gb}}
    others = [{"DeviceName": device, "Ebs": dict(kept_small)} for device in offer.facts["other_devices"]]
    return [root, *others]


def for_people(request: Mapping[str, Any]) -> Request:
    """A request as plain JSON, without the user-data, which holds a machine's secrets."""
    shown = dict(request)
    if "UserData" in shown:
        shown["UserData"] = "<user-data>"
    if "PublicKeyMaterial" in shown:
        shown["PublicKeyMaterial"] = shown["PublicKeyMaterial"].decode()
    return shown
