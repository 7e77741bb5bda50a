"""Oracle's permissions: which operations need which, and which of them policy statements grant.

Sources, both read in the edition of March 2026:
- CORE: https://docs.oracle.com/en-us/iaas/Content/Identity/policyreference/corepolicyreference.htm
- IAM: https://docs.oracle.com/en-us/iaas/Content/Identity/policyreference/iampolicyreference.htm
- OKE: https://docs.oracle.com/en-us/iaas/Content/Identity/policyreference/contengpolicyreference.htm
- BALANCERS: https://docs.oracle.com/en-us/iaas/Content/Identity/Reference/lbpolicyreference.htm
- LIMITS: https://docs.oracle.com/en-us/iaas/Content/General/Concepts/servicelimits.htm
"""

import re
from collections.abc import Collection

_RULES = "NETWORK_SECURITY_GROUP_UPDATE_SECURITY_RULES NETWORK_SECURITY_GROUP_INSPECT"
_POOL_UPDATE = "INSTANCE_POOL_UPDATE"

# CORE, "Permissions Required for Each API Operation". A launch here joins a security group, and with RDMA a cluster.
_CORE = f"""
LaunchInstance INSTANCE_CREATE INSTANCE_IMAGE_READ VNIC_CREATE VNIC_ATTACH SUBNET_ATTACH \
NETWORK_SECURITY_GROUP_UPDATE_MEMBERS VNIC_ASSOCIATE_NETWORK_SECURITY_GROUP
TerminateInstance INSTANCE_DELETE VNIC_DELETE SUBNET_DETACH
UpdateInstance INSTANCE_UPDATE
GetInstance INSTANCE_READ
ListInstances INSTANCE_READ
ListShapes INSTANCE_INSPECT
ListImages INSTANCE_IMAGE_INSPECT
GetImage INSTANCE_IMAGE_INSPECT
ListVnicAttachments VNIC_ATTACHMENT_READ INSTANCE_INSPECT
GetVnic VNIC_READ
ListWorkRequests WORKREQUEST_INSPECT
ListWorkRequestErrors INSTANCE_CREATE
ListAppCatalogSubscriptions APP_CATALOG_LISTING_INSPECT
CreateAppCatalogSubscription APP_CATALOG_LISTING_SUBSCRIBE
CreateComputeCapacityReport COMPUTE_CAPACITY_REPORT_CREATE
ListComputeClusters COMPUTE_CLUSTER_INSPECT
GetComputeCluster COMPUTE_CLUSTER_READ
CreateComputeCluster COMPUTE_CLUSTER_CREATE
DeleteComputeCluster COMPUTE_CLUSTER_DELETE
ListBootVolumes VOLUME_INSPECT
GetBootVolume VOLUME_INSPECT
UpdateBootVolume VOLUME_UPDATE
DeleteBootVolume VOLUME_DELETE
ListBootVolumeAttachments VOLUME_ATTACHMENT_INSPECT VOLUME_INSPECT INSTANCE_INSPECT
ListVcns VCN_READ
GetVcn VCN_READ
CreateVcn VCN_CREATE
DeleteVcn VCN_DELETE
ListSubnets SUBNET_READ
GetSubnet SUBNET_READ
CreateSubnet SUBNET_CREATE VCN_ATTACH ROUTE_TABLE_ATTACH SECURITY_LIST_ATTACH DHCP_ATTACH
DeleteSubnet SUBNET_DELETE VCN_DETACH ROUTE_TABLE_DETACH SECURITY_LIST_DETACH DHCP_DETACH
ListRouteTables ROUTE_TABLE_READ
GetRouteTable ROUTE_TABLE_READ
CreateRouteTable ROUTE_TABLE_CREATE VCN_ATTACH INTERNET_GATEWAY_ATTACH \
NAT_GATEWAY_ATTACH SERVICE_GATEWAY_ATTACH
UpdateRouteTable ROUTE_TABLE_UPDATE INTERNET_GATEWAY_ATTACH \
NAT_GATEWAY_ATTACH SERVICE_GATEWAY_ATTACH
DeleteRouteTable ROUTE_TABLE_DELETE VCN_DETACH INTERNET_GATEWAY_DETACH \
NAT_GATEWAY_DETACH SERVICE_GATEWAY_DETACH
ListSecurityLists SECURITY_LIST_READ
GetSecurityList SECURITY_LIST_READ
CreateSecurityList SECURITY_LIST_CREATE VCN_ATTACH
DeleteSecurityList SECURITY_LIST_DELETE VCN_DETACH
ListInternetGateways INTERNET_GATEWAY_READ
GetInternetGateway INTERNET_GATEWAY_READ
CreateInternetGateway INTERNET_GATEWAY_CREATE VCN_ATTACH
DeleteInternetGateway INTERNET_GATEWAY_DELETE VCN_DETACH
ListNatGateways NAT_GATEWAY_READ
GetNatGateway NAT_GATEWAY_READ
CreateNatGateway NAT_GATEWAY_CREATE VCN_READ VCN_ATTACH
DeleteNatGateway NAT_GATEWAY_DELETE VCN_READ VCN_DETACH
ListServiceGateways SERVICE_GATEWAY_READ
GetServiceGateway SERVICE_GATEWAY_READ
CreateServiceGateway SERVICE_GATEWAY_CREATE VCN_READ VCN_ATTACH
DeleteServiceGateway SERVICE_GATEWAY_DELETE VCN_READ VCN_DETACH
ListNetworkSecurityGroups NETWORK_SECURITY_GROUP_READ
GetNetworkSecurityGroup NETWORK_SECURITY_GROUP_READ
CreateNetworkSecurityGroup NETWORK_SECURITY_GROUP_CREATE VCN_ATTACH
DeleteNetworkSecurityGroup NETWORK_SECURITY_GROUP_DELETE VCN_DETACH
ListNetworkSecurityGroupSecurityRules NETWORK_SECURITY_GROUP_LIST_SECURITY_RULES
AddNetworkSecurityGroupSecurityRules {_RULES}
RemoveNetworkSecurityGroupSecurityRules NETWORK_SECURITY_GROUP_UPDATE_SECURITY_RULES
ListNetworkSecurityGroupVnics NETWORK_SECURITY_GROUP_LIST_MEMBERS
ListInstanceConfigurations INSTANCE_CONFIGURATION_INSPECT
GetInstanceConfiguration INSTANCE_CONFIGURATION_READ
CreateInstanceConfiguration INSTANCE_CONFIGURATION_CREATE
DeleteInstanceConfiguration INSTANCE_CONFIGURATION_DELETE
ListInstancePools INSTANCE_POOL_INSPECT
GetInstancePool INSTANCE_POOL_READ
ListInstancePoolInstances INSTANCE_POOL_READ
CreateInstancePool INSTANCE_POOL_CREATE INSTANCE_CREATE INSTANCE_IMAGE_READ VNIC_CREATE SUBNET_ATTACH
UpdateInstancePool {_POOL_UPDATE}
TerminateInstancePool INSTANCE_POOL_DELETE INSTANCE_DELETE VNIC_DELETE SUBNET_DETACH \
VOLUME_ATTACHMENT_DELETE VOLUME_WRITE
AttachInstancePoolInstance INSTANCE_POOL_INSTANCE_ATTACH
DetachInstancePoolInstance INSTANCE_POOL_INSTANCE_DETACH
ListAutoScalingConfigurations AUTO_SCALING_CONFIGURATION_INSPECT
GetAutoScalingConfiguration AUTO_SCALING_CONFIGURATION_READ
CreateAutoScalingConfiguration AUTO_SCALING_CONFIGURATION_CREATE {_POOL_UPDATE}
UpdateAutoScalingConfiguration AUTO_SCALING_CONFIGURATION_UPDATE {_POOL_UPDATE}
DeleteAutoScalingConfiguration AUTO_SCALING_CONFIGURATION_DELETE {_POOL_UPDATE}
CreateAutoScalingPolicy AUTO_SCALING_CONFIGURATION_CREATE {_POOL_UPDATE}
UpdateAutoScalingPolicy AUTO_SCALING_CONFIGURATION_UPDATE {_POOL_UPDATE}
"""
# IAM, the table of the same name; LIMITS for the availability of a limit.
_IAM = """
ListAvailabilityDomains COMPARTMENT_INSPECT
ListFaultDomains COMPARTMENT_INSPECT
ListCompartments COMPARTMENT_INSPECT
ListRegionSubscriptions TENANCY_INSPECT
GetResourceAvailability RESOURCE_AVAILABILITY_INSPECT
"""
# OKE, with the permissions in other services that it needs; BALANCERS. GetWorkRequest is OKE's.
_NODES = "INSTANCE_CREATE INSTANCE_DELETE SUBNET_ATTACH VNIC_ATTACH COMPARTMENT_INSPECT"
_OKE = f"""
ListClusters CLUSTER_INSPECT
GetCluster CLUSTER_READ
CreateCluster CLUSTER_CREATE SUBNET_ATTACH VCN_READ COMPARTMENT_INSPECT VNIC_ATTACH \
NETWORK_SECURITY_GROUP_UPDATE_MEMBERS PRIVATE_IP_ASSIGN PUBLIC_IP_CREATE
DeleteCluster CLUSTER_DELETE CLUSTER_NODE_POOL_DELETE INSTANCE_DELETE SUBNET_DETACH VNIC_DETACH PRIVATE_IP_UNASSIGN \
PUBLIC_IP_DELETE
CreateKubeconfig CLUSTER_USE
GetClusterOptions CLUSTER_READ
GetAddon CLUSTER_READ
InstallAddon CLUSTER_UPDATE
ListNodePools CLUSTER_NODE_POOL_INSPECT
GetNodePool CLUSTER_NODE_POOL_READ
GetNodePoolOptions CLUSTER_READ
CreateNodePool CLUSTER_NODE_POOL_CREATE {_NODES}
UpdateNodePool CLUSTER_NODE_POOL_UPDATE {_NODES}
DeleteNodePool CLUSTER_NODE_POOL_DELETE {_NODES}
DeleteNode CLUSTER_NODE_POOL_UPDATE {_NODES}
GetWorkRequest CLUSTER_WORK_REQUEST_READ CLUSTER_NODE_POOL_READ CLUSTER_READ
ListLoadBalancers LOAD_BALANCER_INSPECT
GetLoadBalancer LOAD_BALANCER_READ
DeleteLoadBalancer LOAD_BALANCER_DELETE
ListVolumes VOLUME_INSPECT
GetVolume VOLUME_INSPECT
DeleteVolume VOLUME_DELETE
"""
# The reference names no permission for these.
_WITHOUT_PERMISSION = """
ListAppCatalogListings
ListAppCatalogListingResourceVersions
GetAppCatalogListingResourceVersion
GetAppCatalogListingAgreements
ListServices
"""
NEEDED = {
    row.split()[0]: frozenset(row.split()[1:])
    for table in (_CORE, _IAM, _OKE, _WITHOUT_PERMISSION)
    for row in table.strip().splitlines()
}
"""Permissions of each operation."""
OPTIONAL = frozenset(
    {
        "CreateComputeCapacityReport",
        "GetResourceAvailability",
        "ListAutoScalingConfigurations",
        "ListInstanceConfigurations",
        "ListInstancePools",
        "ListRegionSubscriptions",
    }
)
"""Operations that OCI may refuse to a cluster without `--ttl`: hints, and lists of resources for `--ttl`."""

# CORE and IAM, "Details for Verb + Resource-Type Combinations": each verb has the permissions of the verbs before it.
_VERBS = ("inspect", "read", "use", "manage")
_TYPES: dict[str, tuple[str, str, str, str]] = {
    "compartments": ("COMPARTMENT_INSPECT", "", "", ""),
    "tenancies": ("TENANCY_INSPECT", "", "", ""),
    "resource-availability": ("RESOURCE_AVAILABILITY_INSPECT", "", "", ""),
    "work-requests": ("WORKREQUEST_INSPECT", "", "", ""),
    "compute-capacity-reports": ("", "", "", "COMPUTE_CAPACITY_REPORT_CREATE"),
    "app-catalog-listing": (
        "APP_CATALOG_LISTING_INSPECT",
        "APP_CATALOG_LISTING_READ",
        "",
        "APP_CATALOG_LISTING_SUBSCRIBE",
    ),
    "compute-clusters": (
        "COMPUTE_CLUSTER_INSPECT",
        "COMPUTE_CLUSTER_READ",
        "COMPUTE_CLUSTER_UPDATE COMPUTE_CLUSTER_LAUNCH_INSTANCE",
        "COMPUTE_CLUSTER_CREATE COMPUTE_CLUSTER_DELETE",
    ),
    "instances": (
        "INSTANCE_INSPECT",
        "INSTANCE_READ",
        "INSTANCE_UPDATE INSTANCE_POWER_ACTIONS INSTANCE_ATTACH_VOLUME INSTANCE_DETACH_VOLUME",
        "INSTANCE_CREATE INSTANCE_DELETE",
    ),
    "instance-images": ("INSTANCE_IMAGE_INSPECT", "INSTANCE_IMAGE_READ", "", ""),
    "instance-configurations": (
        "INSTANCE_CONFIGURATION_INSPECT",
        "INSTANCE_CONFIGURATION_READ",
        "",
        "INSTANCE_CONFIGURATION_CREATE INSTANCE_CONFIGURATION_UPDATE INSTANCE_CONFIGURATION_DELETE",
    ),
    "instance-pools": (
        "INSTANCE_POOL_INSPECT",
        "INSTANCE_POOL_READ",
        "INSTANCE_POOL_POWER_ACTIONS",
        "INSTANCE_POOL_CREATE INSTANCE_POOL_UPDATE INSTANCE_POOL_DELETE INSTANCE_POOL_INSTANCE_ATTACH "
        "INSTANCE_POOL_INSTANCE_DETACH",
    ),
    "auto-scaling-configurations": (
        "AUTO_SCALING_CONFIGURATION_INSPECT",
        "AUTO_SCALING_CONFIGURATION_READ",
        "",
        "AUTO_SCALING_CONFIGURATION_CREATE AUTO_SCALING_CONFIGURATION_UPDATE AUTO_SCALING_CONFIGURATION_DELETE",
    ),
    "volumes": ("VOLUME_INSPECT", "", "VOLUME_UPDATE VOLUME_WRITE", "VOLUME_CREATE VOLUME_DELETE"),
    "volume-attachments": (
        "VOLUME_ATTACHMENT_INSPECT",
        "VOLUME_ATTACHMENT_READ",
        "VOLUME_ATTACHMENT_UPDATE",
        "VOLUME_ATTACHMENT_CREATE VOLUME_ATTACHMENT_DELETE",
    ),
    "vcns": ("VCN_READ", "", "", "VCN_ATTACH VCN_DETACH VCN_UPDATE VCN_CREATE VCN_DELETE"),
    "subnets": (
        "SUBNET_READ",
        "",
        "SUBNET_ATTACH SUBNET_DETACH",
        "SUBNET_CREATE SUBNET_UPDATE SUBNET_DELETE",
    ),
    "route-tables": (
        "ROUTE_TABLE_READ",
        "",
        "",
        "ROUTE_TABLE_ATTACH ROUTE_TABLE_DETACH ROUTE_TABLE_UPDATE ROUTE_TABLE_CREATE ROUTE_TABLE_DELETE",
    ),
    "security-lists": (
        "SECURITY_LIST_READ",
        "",
        "",
        "SECURITY_LIST_ATTACH SECURITY_LIST_DETACH SECURITY_LIST_UPDATE SECURITY_LIST_CREATE SECURITY_LIST_DELETE",
    ),
    "dhcp-options": ("DHCP_READ", "", "", "DHCP_ATTACH DHCP_DETACH"),
    "internet-gateways": (
        "INTERNET_GATEWAY_READ",
        "",
        "",
        "INTERNET_GATEWAY_ATTACH INTERNET_GATEWAY_DETACH INTERNET_GATEWAY_CREATE INTERNET_GATEWAY_DELETE",
    ),
    "nat-gateways": (
        "",
        "NAT_GATEWAY_READ",
        "NAT_GATEWAY_ATTACH NAT_GATEWAY_DETACH",
        "NAT_GATEWAY_CREATE NAT_GATEWAY_DELETE",
    ),
    "service-gateways": (
        "SERVICE_GATEWAY_READ",
        "",
        "SERVICE_GATEWAY_ATTACH SERVICE_GATEWAY_DETACH",
        "SERVICE_GATEWAY_CREATE SERVICE_GATEWAY_DELETE",
    ),
    "network-security-groups": (
        "NETWORK_SECURITY_GROUP_INSPECT",
        "NETWORK_SECURITY_GROUP_READ",
        "NETWORK_SECURITY_GROUP_LIST_SECURITY_RULES NETWORK_SECURITY_GROUP_LIST_MEMBERS "
        "NETWORK_SECURITY_GROUP_UPDATE_MEMBERS",
        "NETWORK_SECURITY_GROUP_UPDATE NETWORK_SECURITY_GROUP_CREATE NETWORK_SECURITY_GROUP_DELETE "
        "NETWORK_SECURITY_GROUP_UPDATE_SECURITY_RULES",
    ),
    "vnics": (
        "VNIC_READ",
        "",
        "VNIC_ATTACH VNIC_DETACH VNIC_CREATE VNIC_DELETE VNIC_UPDATE VNIC_ASSOCIATE_NETWORK_SECURITY_GROUP "
        "VNIC_DISASSOCIATE_NETWORK_SECURITY_GROUP",
        "",
    ),
    "vnic-attachments": ("VNIC_ATTACHMENT_READ", "", "", ""),
    "private-ips": ("PRIVATE_IP_READ", "", "PRIVATE_IP_ASSIGN PRIVATE_IP_UNASSIGN", ""),
    "public-ips": ("", "PUBLIC_IP_READ", "", "PUBLIC_IP_CREATE PUBLIC_IP_DELETE"),
    "clusters": (
        "CLUSTER_INSPECT",
        "CLUSTER_READ",
        "CLUSTER_USE",
        "CLUSTER_CREATE CLUSTER_DELETE CLUSTER_UPDATE",
    ),
    "cluster-node-pools": (
        "CLUSTER_NODE_POOL_INSPECT",
        "CLUSTER_NODE_POOL_READ",
        "",
        "CLUSTER_NODE_POOL_CREATE CLUSTER_NODE_POOL_UPDATE CLUSTER_NODE_POOL_DELETE",
    ),
    "cluster-work-requests": ("CLUSTER_WORK_REQUEST_INSPECT", "CLUSTER_WORK_REQUEST_READ", "", ""),
    "load-balancers": (
        "LOAD_BALANCER_INSPECT",
        "LOAD_BALANCER_READ",
        "LOAD_BALANCER_UPDATE",
        "LOAD_BALANCER_CREATE LOAD_BALANCER_DELETE",
    ),
    "instance-family beyond its members": (
        "VNIC_READ VNIC_ATTACHMENT_READ VOLUME_ATTACHMENT_INSPECT",
        "VOLUME_ATTACHMENT_READ",
        "VNIC_ATTACH VNIC_DETACH VOLUME_ATTACHMENT_UPDATE",
        "VOLUME_ATTACHMENT_CREATE VOLUME_ATTACHMENT_DELETE",
    ),
}
_FAMILIES = {
    "instance-family": (
        "instances",
        "instance-images",
        "app-catalog-listing",
        "instance-family beyond its members",
    ),
    "compute-management-family": ("instance-configurations", "instance-pools"),
    "volume-family": ("volumes", "volume-attachments"),
    "virtual-network-family": (
        "vcns",
        "subnets",
        "route-tables",
        "security-lists",
        "dhcp-options",
        "internet-gateways",
        "nat-gateways",
        "service-gateways",
        "network-security-groups",
        "vnics",
        "vnic-attachments",
        "private-ips",
        "public-ips",
    ),
    "cluster-family": ("clusters", "cluster-node-pools", "cluster-work-requests"),
}


def missing(called: Collection[str], policies: Collection[str]) -> dict[str, list[str]]:
    """Return the permissions that the policies do not grant, by operation. Fails at an unknown operation."""
    unknown = set(called) - set(NEEDED)
    assert not unknown, f"look {unknown} up in Oracle's policy reference"
    allowed = frozenset[str]().union(*map(granted, policies))
    return {name: sorted(NEEDED[name] - allowed) for name in sorted(set(called)) if NEEDED[name] - allowed}


_POLICY = re.compile(r"(?P<verb>inspect|read|use|manage) (?P<type>[a-z-]+) in (?:tenancy|compartment id \S+)")


def granted(policy: str) -> frozenset[str]:
    """Return the permissions that a policy grants, `manage vcns in compartment id …`."""
    result = _POLICY.fullmatch(policy)
    assert result, policy
    types = _FAMILIES.get(result["type"], (result["type"],))
    verbs = range(_VERBS.index(result["verb"]) + 1)
    return frozenset(name for kind in types for verb in verbs for name in _TYPES[kind][verb].split())
