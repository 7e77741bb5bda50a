"""The requests that make a Kubernetes cluster, as boto3 takes them. Pure: the plan shows what is really sent."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from provision.aws.requests import efa_layout, tag_specification
from provision.eks import names
from provision.kubernetes.objects import GROUP_LABEL
from provision.records import CloudCluster, Offer

Request = dict[str, Any]

ADDONS: Mapping[str, Mapping[str, Any]] = {"vpc-cni": {}, "kube-proxy": {}, "coredns": {"replicaCount": 1}}
"""Name → settings, in the order of creation; the last one needs a node.

With two pods of CoreDNS on one node, the second would delay the node's end by 15 minutes.
"""
CPU_TYPE = "m6i.large"
"""The machine of the operators and Ray's head: 2 vCPUs, 8 GB."""
CPU_DISK_GB = 80
CPU_AMI = "AL2023_x86_64_STANDARD"
GPU_AMI = "AL2023_x86_64_NVIDIA"
ROOT_DEVICE = "/dev/xvda"
"""Root device of Amazon Linux 2023."""
GPU_TAINT = "nvidia.com/gpu"
_TRUSTED = {names.CLUSTER_ROLE: "eks.amazonaws.com", names.NODE_ROLE: "ec2.amazonaws.com"}
_POLICIES: Mapping[str, tuple[str, ...]] = {
    names.CLUSTER_ROLE: ("AmazonEKSClusterPolicy",),
    names.NODE_ROLE: (
        "AmazonEKSWorkerNodePolicy",
        "AmazonEC2ContainerRegistryPullOnly",
        "AmazonEKS_CNI_Policy",
    ),
}
ROLES = tuple(_POLICIES)


def policies(role: str, partition: str = "aws") -> tuple[str, ...]:
    """Return the ARNs of a role's policies."""
    return tuple(f"arn:{partition}:iam::aws:policy/{name}" for name in _POLICIES[role])


def pairs(of: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as IAM takes them."""
    return [{"Key": key, "Value": value} for key, value in of.items()]


def role(cluster: CloudCluster, name: str) -> Request:
    """Return the request CreateRole. The tag REGION is the cluster's region, as roles are global."""
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": _TRUSTED[name]},
                "Action": "sts:AssumeRole",
            }
        ],
    }
    return {
        "Path": names.ROLE_PATH,
        "RoleName": names.role_name(cluster, name),
        "AssumeRolePolicyDocument": json.dumps(trust),
        "Description": f"gpuctl: the {name}{'s' * (name == names.NODE_ROLE)} of {names.cluster_name(cluster)}",
        "Tags": pairs(names.own_tags(cluster) | {names.REGION: cluster.target.region or ""}),
    }


def control_plane(
    cluster: CloudCluster, role_arn: str, subnets: Sequence[str], group: str, token: str
) -> Request:
    """Return the request CreateCluster.

    The API server is reached from `ssh_cidrs` and from the VPC. Support ends with an upgrade, not with the dearer
    extended support. gpuctl makes the add-ons, so that each has our tags.
    """
    return {
        "name": names.cluster_name(cluster),
        "roleArn": role_arn,
        "resourcesVpcConfig": {
            "subnetIds": list(subnets),
            # EKS adds a group of its own; this one shows other commands that the network is in use.
            "securityGroupIds": [group],
            "endpointPublicAccess": True,
            "endpointPrivateAccess": True,
            "publicAccessCidrs": list(cluster.ssh_cidrs),
        },
        "accessConfig": {"authenticationMode": "API", "bootstrapClusterCreatorAdminPermissions": True},
        "bootstrapSelfManagedAddons": False,
        "upgradePolicy": {"supportType": "STANDARD"},
        "clientRequestToken": token,
        "tags": names.own_tags(cluster),
    }


def access(cluster: CloudCluster) -> Request:
    """Return the request UpdateClusterConfig for the ranges that reach the API server."""
    return {
        "name": names.cluster_name(cluster),
        "resourcesVpcConfig": {"publicAccessCidrs": list(cluster.ssh_cidrs)},
    }


def addon(cluster: CloudCluster, name: str, token: str) -> Request:
    """Return the request CreateAddon, for EKS's default version."""
    settings = ADDONS[name]
    return {
        "clusterName": names.cluster_name(cluster),
        "addonName": name,
        **({"configurationValues": json.dumps(settings)} if settings else {}),
        "resolveConflicts": "OVERWRITE",
        "clientRequestToken": token,
        "tags": names.own_tags(cluster),
    }


def access_entry(cluster: CloudCluster, principal: str, token: str) -> Request:
    """Return the request CreateAccessEntry, for a principal without an access entry."""
    return {
        "clusterName": names.cluster_name(cluster),
        "principalArn": principal,
        "type": "STANDARD",
        "clientRequestToken": token,
        "tags": names.own_tags(cluster),
    }


def admin(cluster: CloudCluster, principal: str, partition: str = "aws") -> Request:
    """Return the request AssociateAccessPolicy: the rights of the cluster's creator."""
    return {
        "clusterName": names.cluster_name(cluster),
        "principalArn": principal,
        "policyArn": f"arn:{partition}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy",
        "accessScope": {"type": "cluster"},
    }


def node_name(cluster: CloudCluster, group: str) -> str:
    """Return the tag Name of a node group's machines."""
    return f"{cluster.name}-{group}"


def template_data(
    cluster: CloudCluster,
    group: str,
    *,
    disk_gb: int,
    facts: Mapping[str, Any] | None = None,
    groups: Sequence[str] = (),
    placement_group: str | None = None,
) -> Request:
    """Return LaunchTemplateData: a node's disk, tags and, with EFA, its network interfaces.

    `facts` are those of an instance type with EFA; `groups` are then the security groups of its interfaces.
    """
    of = names.own_tags(cluster)
    data: Request = {
        "BlockDeviceMappings": [
            {
                "DeviceName": ROOT_DEVICE,
                "Ebs": {
                    "VolumeType": "gp3",
                    "VolumeSize": disk_gb,
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        # Pods are one hop further away than the node; only pods in the host network need the metadata.
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
        },
        "TagSpecifications": [
            tag_specification(kind, of, node_name(cluster, group))
            for kind in ("instance", "volume", "network-interface")
        ],
    }
    if facts and facts["efa_cards"]:
        data["NetworkInterfaces"] = [
            interface | {"Groups": list(groups), "DeleteOnTermination": True}
            for interface in efa_layout(facts, public=cluster.public_ip)
        ]
    if placement_group:
        data["Placement"] = {"GroupName": placement_group}
    return data


def launch_template(cluster: CloudCluster, name: str, data: Request, token: str) -> Request:
    """Return the request CreateLaunchTemplate, with its data."""
    return {
        "LaunchTemplateName": name,
        "ClientToken": token,
        "LaunchTemplateData": data,
        "TagSpecifications": [tag_specification("launch-template", names.own_tags(cluster), name)],
    }


def cpu_group(
    cluster: CloudCluster, role_arn: str, subnets: Sequence[str], template: str, token: str
) -> Request:
    """Return the request CreateNodegroup for the operators and Ray's head: one machine, on demand."""
    scaling = {"minSize": 0, "maxSize": 2, "desiredSize": 1}
    request = _group(cluster, names.CPU_GROUP, role_arn, subnets, template, token)
    return request | {
        "amiType": CPU_AMI,
        "instanceTypes": [CPU_TYPE],
        "capacityType": "ON_DEMAND",
        "scalingConfig": scaling,
        "labels": {GROUP_LABEL: "cpu"},
    }


def gpu_group(
    cluster: CloudCluster, offer: Offer, count: int, zone: str, ids: Mapping[str, str], token: str
) -> Request:
    """Return the request CreateNodegroup for `count` machines in a zone. `ids`: role, subnet, template."""
    request = _group(cluster, names.gpu_group(zone), ids["role"], [ids["subnet"]], ids["template"], token)
    return request | {
        "amiType": GPU_AMI,
        "instanceTypes": [offer.shape],
        "capacityType": "SPOT" if cluster.spot else "ON_DEMAND",
        "scalingConfig": scaling(count),
        "labels": {GROUP_LABEL: "gpu"},
        "taints": [{"key": GPU_TAINT, "value": "present", "effect": "NO_SCHEDULE"}],
        "nodeRepairConfig": {"enabled": True},
    }


def scaling(count: int) -> Request:
    """Return a number of machines as a node group takes it."""
    return {"minSize": 0, "maxSize": max(count, 1), "desiredSize": count}


def _group(
    cluster: CloudCluster, group: str, role_arn: str, subnets: Sequence[str], template: str, token: str
) -> Request:
    return {
        "clusterName": names.cluster_name(cluster),
        "nodegroupName": group,
        "nodeRole": role_arn,
        "subnets": list(subnets),
        "launchTemplate": {"id": template, "version": "1"},
        "clientRequestToken": token,
        "tags": names.own_tags(cluster),
    }


def scheduled_end(cluster: CloudCluster, scaling_group: str) -> Request:
    """Return the request PutScheduledUpdateGroupAction: no machine in the scaling group from the cluster's end on."""
    assert cluster.expires_at is not None
    return {
        "AutoScalingGroupName": scaling_group,
        "ScheduledActionName": "gpuctl-expire",
        "StartTime": cluster.expires_at,
        "MinSize": 0,
        "DesiredCapacity": 0,
    }
