"""The requests that gpuctl sends to AWS, as boto3 takes them. Pure: the preview shows the same ones."""

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
    """Return the name of a cluster's group, key and placement group."""
    return f"gpuctl-{cluster.name}-{cluster.id[:8]}"


def cluster_tags(cluster: CloudCluster) -> dict[str, str]:
    """Return the tags of the cluster's resources."""
    private = is_private(cluster)
    of = tags.of_cluster(
        cluster.name, cluster.id, cluster.owner, cluster.expires_at, idle_s=cluster.idle_s, private=private
    )
    provider = cluster.target.provider
    return of if provider == "aws" else of | {tags.PROVIDER: provider}


def is_private(cluster: CloudCluster) -> bool:
    """Return whether the cluster's machines are in a private subnet of ours, behind the NAT gateway."""
    return cluster.subnet_id is None and not cluster.public_ip


def network_hourly_usd(cluster: CloudCluster) -> float:
    """Return the price of the cluster's network: see `Offer`."""
    return NAT_HOURLY_USD + ADDRESS_HOURLY_USD if is_private(cluster) else 0.0


def tag_specification(kind: str, of: Tags, name: str) -> Request:
    """Return an entry of `TagSpecifications`; the console shows `name`."""
    pairs = [{"Key": key, "Value": value[:MAX_TAG_VALUE]} for key, value in {**of, "Name": name}.items()]
    return {"ResourceType": kind, "Tags": pairs}


def tags_in(item: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags in a description of AWS; a network interface has them under another name."""
    return {tag["Key"]: tag["Value"] for tag in item.get("Tags") or item.get("TagSet") or []}


def filters(**values: str | Sequence[str]) -> list[Request]:
    """Return entries of `Filters`; `_` in a name stands for `-`."""
    return [
        {"Name": name.replace("_", "-"), "Values": [value] if isinstance(value, str) else list(value)}
        for name, value in values.items()
    ]


def tagged(key: str, value: str) -> list[Request]:
    """Return the filter for a tag."""
    return [{"Name": f"tag:{key}", "Values": [value]}]


def ours() -> list[Request]:
    """Return the filter for resources of gpuctl."""
    return filters(tag_key=tags.CLUSTER)


def _network_tags(
    kind: str, cluster: CloudCluster, name: str = NETWORK_NAME, *, private: bool = False
) -> Request:
    of = tags.of_network(cluster.owner, private=private)
    return {"TagSpecifications": [tag_specification(kind, of, name)]}


def _tier_name(private: bool) -> str:
    return f"{NETWORK_NAME} private" if private else NETWORK_NAME


def vpc(cluster: CloudCluster) -> Request:
    """Return the request CreateVpc."""
    return {"CidrBlock": VPC_CIDR} | _network_tags("vpc", cluster)


def internet_gateway(cluster: CloudCluster) -> Request:
    """Return the request CreateInternetGateway."""
    return _network_tags("internet-gateway", cluster)


def route_table(cluster: CloudCluster, vpc_id: str, token: str, *, private: bool = False) -> Request:
    """Return the request CreateRouteTable."""
    named = _network_tags("route-table", cluster, _tier_name(private), private=private)
    return {"VpcId": vpc_id, "ClientToken": token} | named


def gateway_field(gateway_id: str, *, private: bool = False) -> Request:
    """Return a route's field for its gateway: the internet gateway, in a private subnet the NAT gateway."""
    return {"NatGatewayId" if private else "GatewayId": gateway_id}


def default_route(route_table_id: str, way: Request) -> Request:
    """Return the request CreateRoute or ReplaceRoute."""
    return {"RouteTableId": route_table_id, "DestinationCidrBlock": EVERYWHERE} | way


def elastic_ip(cluster: CloudCluster) -> Request:
    """Return the request AllocateAddress, for the NAT gateway."""
    return {"Domain": "vpc"} | _network_tags("elastic-ip", cluster, _tier_name(True), private=True)


def nat_gateway(cluster: CloudCluster, subnet_id: str, allocation_id: str, token: str) -> Request:
    """Return the request CreateNatGateway, in a public subnet."""
    named = _network_tags("natgateway", cluster, _tier_name(True), private=True)
    return {"SubnetId": subnet_id, "AllocationId": allocation_id, "ClientToken": token} | named


def s3_service(cluster: CloudCluster) -> str:
    """Return the name of S3 in the cluster's region, for endpoints."""
    return f"com.amazonaws.{cluster.target.region or '<region>'}.s3"


def s3_endpoint(cluster: CloudCluster, vpc_id: str, route_table_id: str, token: str) -> Request:
    """Return the request CreateVpcEndpoint: free access to S3, without the NAT gateway's price for each GB."""
    return {
        "VpcEndpointType": "Gateway",
        "VpcId": vpc_id,
        "ServiceName": s3_service(cluster),
        "RouteTableIds": [route_table_id],
        "ClientToken": token,
    } | _network_tags("vpc-endpoint", cluster, _tier_name(True), private=True)


def subnet(cluster: CloudCluster, vpc_id: str, zone: str, cidr: str, *, private: bool = False) -> Request:
    """Return the request CreateSubnet."""
    named = _network_tags("subnet", cluster, f"{_tier_name(private)} {zone}", private=private)
    return {"VpcId": vpc_id, "AvailabilityZone": zone, "CidrBlock": cidr} | named


def subnet_cidr(zone: str, used_cidrs: Iterable[str], *, private: bool = False) -> str:
    """Return the zone's part of the VPC, private ones in its upper half: always the same, unless it is used."""
    blocks = [str(block) for block in ipaddress.ip_network(VPC_CIDR).subnets(new_prefix=SUBNET_PREFIX)]
    occupied = set(used_cidrs)
    first = (ord(zone[-1]) - ord("a") + private * len(blocks) // 2) % len(blocks)
    ordered = blocks[first:] + blocks[:first]
    return next((block for block in ordered if block not in occupied), ordered[0])


def security_group(cluster: CloudCluster, vpc_id: str) -> Request:
    """Return the request CreateSecurityGroup."""
    name = name_of(cluster)
    return {
        "GroupName": name,
        "Description": f"SSH to the gpuctl cluster {cluster.name}, and all among its machines",
        "VpcId": vpc_id,
        "TagSpecifications": [tag_specification("security-group", cluster_tags(cluster), name)],
    }


def key_pair(cluster: CloudCluster, public_key: str) -> Request:
    """Return the request ImportKeyPair."""
    name = name_of(cluster)
    return {
        "KeyName": name,
        "PublicKeyMaterial": public_key.strip().encode(),
        "TagSpecifications": [tag_specification("key-pair", cluster_tags(cluster), name)],
    }


def placement_group(cluster: CloudCluster, zone: str) -> Request:
    """Return the request CreatePlacementGroup, one a zone: a group stays in its machines' zone until they end."""
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
    """Return the rule that admits SSH from `cidr`."""
    ranges = {"Ipv6Ranges": [{"CidrIpv6": cidr}]} if ":" in cidr else {"IpRanges": [{"CidrIp": cidr}]}
    return {"IpProtocol": "tcp", "FromPort": port, "ToPort": port} | ranges


def group_rule(group_id: str) -> Request:
    """Return the rule for all traffic among the group's members."""
    return {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}


def rules_in(cluster: CloudCluster, group_id: str) -> list[Request]:
    """Return all rules for traffic into the cluster's group."""
    return [*(ssh_rule(cidr, cluster.ssh_port) for cidr in cluster.ssh_cidrs), group_rule(group_id)]


def efa_layout(facts: Mapping[str, Any], *, public: bool) -> list[Request]:
    """Return the network interfaces of a machine: card, device and kind of each.

    AWS assigns no public address to a machine with several interfaces, so a public machine has one, with EFA if its
    card supports that. Otherwise each card with EFA has an EFA device without an address, and there is one ordinary
    interface: AWS's advice for types with several cards.
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
    """Return the request RunInstances for all machines of a launch, of which AWS makes all or refuses all."""
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
    # An image may have disks that outlive their machine.
    kept_small = {"VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}
    root = {"DeviceName": offer.facts["root_device"], "Ebs": kept_small | {"VolumeSize": offer.disk_gb}}
    image_disks = [{"DeviceName": device, "Ebs": dict(kept_small)} for device in offer.facts["other_devices"]]
    layout = efa_layout(offer.facts, public=cluster.public_ip)
    at = {
        "SubnetId": infrastructure.ids["subnet"],
        "Groups": [infrastructure.ids["security_group"]],
        "DeleteOnTermination": True,
    }
    # Set for the first interface in either case: a subnet may assign addresses itself.
    addressed = {"AssociatePublicIpAddress": cluster.public_ip}
    request: Request = {
        "ImageId": offer.image_id,
        "InstanceType": offer.shape,
        "MinCount": len(machines),
        "MaxCount": len(machines),
        "ClientToken": launch,
        "KeyName": infrastructure.ids["key"],
        "Placement": placement,
        "NetworkInterfaces": [layout[0] | at | addressed, *(interface | at for interface in layout[1:])],
        "BlockDeviceMappings": [root, *image_disks],
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


def for_people(request: Mapping[str, Any]) -> Request:
    """Return a request as plain JSON, without the user-data, which has a machine's secrets."""
    shown = dict(request)
    if "UserData" in shown:
        shown["UserData"] = "<user-data>"
    if "PublicKeyMaterial" in shown:
        shown["PublicKeyMaterial"] = shown["PublicKeyMaterial"].decode()
    return shown
