"""The bodies of requests to OCI, plain JSON by the API's own names. Pure: the same in a dry run.

All resources that can have tags get them in their create call.
"""

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from inventories.errors import InvalidInput
from provision.records import CloudCluster, Infrastructure, NewMachine, Offer, Zone
from provision.rented import tags

Json = dict[str, Any]

VCN_CIDR = "10.78.0.0/16"
SUBNET_CIDRS = {"public": "10.78.0.0/17", "private": "10.78.128.0/17"}
ANYWHERE = "0.0.0.0/0"
TCP, ICMP = "6", "1"
MOST_TOKEN_CHARACTERS = 64
RDMA_PLUGINS = ("Compute HPC RDMA Authentication", "Compute HPC RDMA Auto-Configuration")


def compartment_of(cluster: CloudCluster) -> str:
    """Return the compartment of the cluster's resources, or a placeholder for an unknown account."""
    return cluster.target.compartment or "<compartment>"


def tier(cluster: CloudCluster) -> str:
    """Return `public` or `private`: the part of the network that the cluster's machines are in."""
    return "public" if cluster.public_ip else "private"


def check_subnet(cluster: CloudCluster, subnet: Json) -> None:
    """Raise InvalidInput if a given subnet does not allow the requested machines."""
    if cluster.public_ip and subnet.get("prohibitPublicIpOnVnic"):
        raise InvalidInput(
            f"Subnet '{subnet['id']}' is a private one: machines in it have no public address. Set "
            "`network.public_ip: false` and name a bastion with `network.bastion`, or give a public subnet."
        )


def vcn(cluster: CloudCluster) -> Json:
    """Return the body of CreateVcn: the network that the clusters of a region share."""
    return _shared(cluster, "gpuctl") | {"cidrBlocks": [VCN_CIDR], "dnsLabel": "gpuctl"}


def internet_gateway(cluster: CloudCluster, vcn_id: str) -> Json:
    """Return the body of CreateInternetGateway."""
    return _shared(cluster, "gpuctl internet") | {"vcnId": vcn_id, "isEnabled": True}


def nat_gateway(cluster: CloudCluster, vcn_id: str) -> Json:
    """Return the body of CreateNatGateway."""
    return _shared(cluster, "gpuctl nat") | {"vcnId": vcn_id}


def service_gateway(cluster: CloudCluster, vcn_id: str, service_id: str) -> Json:
    """Return the body of CreateServiceGateway: Oracle's own services without the NAT gateway."""
    return _shared(cluster, "gpuctl services") | {
        "vcnId": vcn_id,
        "services": [{"serviceId": service_id}],
    }


def route_table(cluster: CloudCluster, vcn_id: str, routes: Sequence[Json]) -> Json:
    """Return the body of CreateRouteTable."""
    return _shared(cluster, f"gpuctl {tier(cluster)}") | {"vcnId": vcn_id, "routeRules": list(routes)}


def public_routes(internet_gateway_id: str) -> list[Json]:
    """Return the default route through the internet gateway."""
    return [_route(ANYWHERE, "CIDR_BLOCK", internet_gateway_id)]


def private_routes(nat_gateway_id: str, service_gateway_id: str, services: str) -> list[Json]:
    """Return the routes to Oracle's services, by their CIDR label, and to all other addresses."""
    return [
        _route(services, "SERVICE_CIDR_BLOCK", service_gateway_id),
        _route(ANYWHERE, "CIDR_BLOCK", nat_gateway_id),
    ]


def security_list(cluster: CloudCluster, vcn_id: str) -> Json:
    """Return the body of CreateSecurityList: the rules for all machines, instead of the VCN's own list with port 22.

    Inwards only path MTU discovery is allowed; the clusters' groups admit the rest.
    """
    discovery = _rule("source", ANYWHERE, ICMP, "path MTU discovery", icmpOptions={"type": 3, "code": 4})
    return _shared(cluster, "gpuctl") | {
        "vcnId": vcn_id,
        "ingressSecurityRules": [discovery],
        "egressSecurityRules": [_rule("destination", ANYWHERE, "all", "everything outwards")],
    }


def subnet(cluster: CloudCluster, vcn_id: str, route_table_id: str, security_list_id: str) -> Json:
    """Return the body of CreateSubnet: regional."""
    return _shared(cluster, f"gpuctl {tier(cluster)}") | {
        "vcnId": vcn_id,
        "cidrBlock": SUBNET_CIDRS[tier(cluster)],
        "dnsLabel": tier(cluster),
        "routeTableId": route_table_id,
        "securityListIds": [security_list_id],
        "prohibitPublicIpOnVnic": not cluster.public_ip,
    }


def nsg(cluster: CloudCluster, vcn_id: str) -> Json:
    """Return the body of CreateNetworkSecurityGroup: the cluster's own firewall."""
    return _of_cluster(cluster) | {"vcnId": vcn_id}


def nsg_rules(nsg_id: str, ssh_cidrs: Sequence[str], ssh_port: int) -> list[Json]:
    """Return the rules of a cluster's group: SSH from the ranges, all traffic among its machines and outwards."""
    ports = {"destinationPortRange": {"min": ssh_port, "max": ssh_port}}
    ssh = [_rule("source", cidr, TCP, "SSH", direction="INGRESS", tcpOptions=ports) for cidr in ssh_cidrs]
    among = _rule("source", nsg_id, "all", "the cluster's machines among themselves", direction="INGRESS")
    outwards = _rule("destination", ANYWHERE, "all", "everything outwards", direction="EGRESS")
    return [*ssh, among | {"sourceType": "NETWORK_SECURITY_GROUP"}, outwards]


def in_compute_cluster(cluster: CloudCluster, facts: Mapping[str, Any]) -> bool:
    """Return whether the cluster's machines are launched into a compute cluster: if it began with several.

    One machine needs no RDMA network, and a running machine can't join one: only LaunchInstance takes it,
    https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/compute-clusters.htm.
    """
    return bool(facts.get("compute_cluster")) and cluster.first_count != 1


def compute_cluster(cluster: CloudCluster, zone: str) -> Json:
    """Return the body of CreateComputeCluster: machines on one RDMA network."""
    return _of_cluster(cluster) | {"availabilityDomain": zone}


def subscription(compartment: str, agreements: Mapping[str, Any]) -> Json:
    """Return the body of CreateAppCatalogSubscription, from GetAppCatalogListingAgreements' answer."""
    fields = (
        "listingId",
        "listingResourceVersion",
        "oracleTermsOfUseLink",
        "eulaLink",
        "timeRetrieved",
        "signature",
    )
    return {"compartmentId": compartment} | {key: agreements[key] for key in fields if agreements.get(key)}


def capacity_report(tenancy: str, zone: str, shape: str) -> Json:
    """Return the body of CreateComputeCapacityReport, which takes no compartment but the root."""
    return {
        "compartmentId": tenancy,
        "availabilityDomain": zone,
        "shapeAvailabilities": [{"instanceShape": shape}],
    }


def launch(
    cluster: CloudCluster,
    offer: Offer,
    infrastructure: Infrastructure,
    zone: Zone,
    launch_id: str,
    machine: NewMachine,
) -> Json:
    """Return one machine's request: its token and the body of LaunchInstance."""
    token = f"{launch_id}-{machine.rank}"
    assert len(token) <= MOST_TOKEN_CHARACTERS, token
    ids = infrastructure.ids
    of = cluster_tags(cluster) | {tags.LAUNCH: launch_id, tags.RANKS: tags.ranks_text([machine.rank])}
    if cluster.image:
        of[tags.IMAGE] = cluster.image[:256]
    details = _machine(cluster, offer, ids, of) | {
        "availabilityDomain": zone.name,
        "displayName": machine.name,
        "metadata": {
            "ssh_authorized_keys": ids["public_key"],
            "user_data": base64.b64encode(machine.user_data.encode()).decode(),
        },
    }
    details["createVnicDetails"]["displayName"] = machine.name
    if zone.fault_domain:
        details["faultDomain"] = zone.fault_domain
    if "compute_cluster" in ids:
        details["computeClusterId"] = ids["compute_cluster"]
    return {"token": token, "details": details}


def instance_configuration(cluster: CloudCluster, offer: Offer, infrastructure: Infrastructure) -> Json:
    """Return the body of CreateInstanceConfiguration: the members of the cluster's pool.

    Nobody can log in to a machine that the pool makes by this body: it has no keys, no user-data and no rank.
    """
    of = cluster_tags(cluster) | {tags.POOL: tags.MEMBER}
    machine = _machine(cluster, offer, infrastructure.ids, of)
    return _of_cluster(cluster) | {
        "displayName": f"gpuctl {cluster.name} {cluster.shape} {offer.image_id[-8:]}",
        "source": "NONE",
        "instanceDetails": {"instanceType": "compute", "launchDetails": machine},
    }


def instance_pool(
    cluster: CloudCluster, configuration: Json, configuration_id: str, ids: Mapping[str, str], zone: Zone
) -> Json:
    """Return the body of CreateInstancePool: a pool without machines, which machines of the zone can join."""
    placement: Json = {"availabilityDomain": zone.name, "primarySubnetId": ids["subnet"]}
    if "compute_cluster" in ids:
        placement["computeClusterId"] = ids["compute_cluster"]
    return _of_cluster(cluster) | {
        "displayName": f"{configuration['displayName']} {zone.name}",
        "instanceConfigurationId": configuration_id,
        "placementConfigurations": [placement],
        "size": 0,
    }


def autoscaling_configuration(cluster: CloudCluster, pool_id: str, end: datetime) -> Json:
    """Return the body of CreateAutoScalingConfiguration: no machines from `end` on, a whole minute in UTC."""
    return _of_cluster(cluster) | {
        "resource": {"type": "instancePool", "id": pool_id},
        "isEnabled": True,
        "policies": [scheduled_policy(end)],
    }


def scheduled_policy(end: datetime) -> Json:
    """Return the policy that sets a pool to 0 machines once. `initial` is the size; `min` and `max` are not used.

    Source: https://docs.oracle.com/en-us/iaas/api/#/en/autoscaling/latest/datatypes/Capacity
    """
    return {
        "policyType": "scheduled",
        "displayName": "gpuctl end",
        "isEnabled": True,
        "capacity": {"initial": 0},
        "executionSchedule": {"type": "cron", "timezone": "UTC", "expression": cron(end)},
    }


def cron(end: datetime) -> str:
    """Return the Quartz expression of a minute in UTC: `0 30 17 4 12 ? 2026` for 17:30 on 4 December 2026."""
    return f"0 {end.minute} {end.hour} {end.day} {end.month} ? {end.year}"


def read_cron(expression: str) -> datetime | None:
    """Return the minute of an expression of `cron`. `None`: another expression."""
    fields = expression.split()
    if len(fields) != 7 or fields[0] != "0" or fields[5] != "?":
        return None
    try:
        minute, hour, day, month, year = (int(fields[index]) for index in (1, 2, 3, 4, 6))
        return datetime(year, month, day, hour, minute, tzinfo=UTC)
    except ValueError:
        return None


def _machine(cluster: CloudCluster, offer: Offer, ids: Mapping[str, str], of: Mapping[str, str]) -> Json:
    """Return the fields that LaunchInstance and an instance configuration share; `of` are the machine's tags."""
    machine: Json = {
        "compartmentId": compartment_of(cluster),
        "shape": cluster.shape,
        "freeformTags": dict(of),
        "sourceDetails": {
            "sourceType": "image",
            "imageId": offer.image_id,
            "bootVolumeSizeInGBs": offer.disk_gb,
        },
        "createVnicDetails": {
            "subnetId": ids["subnet"],
            "nsgIds": [ids["nsg"]],
            "assignPublicIp": cluster.public_ip,
            "freeformTags": dict(of),
        },
        "instanceOptions": {"areLegacyImdsEndpointsDisabled": True},
    }
    if offer.facts.get("encrypts_in_transit"):
        machine["isPvEncryptionInTransitEnabled"] = True
    if offer.facts.get("shape_config"):
        machine["shapeConfig"] = dict(offer.facts["shape_config"])
    if cluster.spot:
        machine["preemptibleInstanceConfig"] = {
            "preemptionAction": {"type": "TERMINATE", "preserveBootVolume": False}
        }
    if "compute_cluster" in ids:
        machine["agentConfig"] = {
            "pluginsConfig": [{"name": name, "desiredState": "ENABLED"} for name in RDMA_PLUGINS]
        }
    return machine


def cluster_tags(cluster: CloudCluster) -> dict[str, str]:
    """Return the tags of the cluster's resources."""
    of = tags.of_cluster(cluster.name, cluster.id, cluster.owner, cluster.expires_at, idle_s=cluster.idle_s)
    provider = cluster.target.provider
    return of if provider == "oci" else of | {tags.PROVIDER: provider}


def _of_cluster(cluster: CloudCluster) -> Json:
    return {
        "compartmentId": compartment_of(cluster),
        "displayName": f"gpuctl {cluster.name}",
        "freeformTags": cluster_tags(cluster),
    }


def _shared(cluster: CloudCluster, name: str) -> Json:
    return {
        "compartmentId": compartment_of(cluster),
        "displayName": name,
        "freeformTags": tags.of_network(cluster.owner),
    }


def _rule(
    side: str, peer: str, protocol: str, description: str, *, direction: str = "", **options: Json
) -> Json:
    """Return a rule for traffic of a protocol; `side`: whether the peer is its `source` or its `destination`."""
    return {
        **({"direction": direction} if direction else {}),
        "protocol": protocol,
        side: peer,
        f"{side}Type": "CIDR_BLOCK",
        **options,
        "isStateless": False,
        "description": description,
    }


def _route(destination: str, kind: str, target: str) -> Json:
    return {"destination": destination, "destinationType": kind, "networkEntityId": target}
