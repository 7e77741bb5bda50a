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
"""By name, how they are set; in the order in which they are made, the last one needs a node.

Of two pods of CoreDNS on one node, one would hold up the node's end for 15 minutes.
"""
CPU_TYPE = "m6i.large"
"""Runs the operators and Ray's head: 2 vCPUs, 8 GB."""
CPU_DISK_GB = 80
CPU_AMI = "AL2023_x86_64_STANDARD"
GPU_AMI = "AL2023_x86_64_NVIDIA"
ROOT_DEVICE = "/dev/xvda"
"""Of Amazon Linux 2023."""
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


def policies(what: str, partition: str = "aws") -> tuple[str, ...]:
    """ARNs of what a role may do."""
    return tuple(f"arn:{partition}:iam::aws:policy/{name}" for name in _POLICIES[what])


def pairs(of: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as IAM takes them."""
    return [{"Key": key, "Value": value} for key, value in of.items()]


def role(cluster: CloudCluster, what: str) -> Request:
    """CreateRole. The tag REGION tells where its cluster is, as roles are in no region."""
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": _TRUSTED[what]},
                "Action": "sts:AssumeRole",
            }
        ],
    }
    return {
        "Path": names.ROLE_PATH,
        "RoleName": names.role_name(cluster, what),
        "AssumeRolePolicyDocument": json.dumps(trust),
        "Description": f"gpuctl: the {what}{'s' * (what == names.NODE_ROLE)} of {names.cluster_name(cluster)}",
        "Tags": pairs(names.own_tags(cluster) | {names.REGION: cluster.target.region or ""}),
    }


def control_plane(
    cluster: CloudCluster, role_arn: str, subnets: Sequence[str], group: str, token: str
) -> Request:
    """CreateCluster.

    The API server is reached from `ssh_cidrs` and from the VPC. Support ends by an upgrade, not by the dearer
    extended support. Add-ons are made by us, so that each has our tags.
    """
    return {
        "name": names.cluster_name(cluster),
        "roleArn": role_arn,
        "resourcesVpcConfig": {
            "subnetIds": list(subnets),
            # EKS has a group of its own beside it; this one tells everybody that the network is in use.
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
    """UpdateClusterConfig: from where the API server is reached."""
    return {
        "name": names.cluster_name(cluster),
        "resourcesVpcConfig": {"publicAccessCidrs": list(cluster.ssh_cidrs)},
    }


def addon(cluster: CloudCluster, name: str, token: str) -> Request:
    """CreateAddon, of the version that EKS has as the default."""
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
    """CreateAccessEntry for who is none in it yet."""
    return {
        "clusterName": names.cluster_name(cluster),
        "principalArn": principal,
        "type": "STANDARD",
        "clientRequestToken": token,
        "tags": names.own_tags(cluster),
    }


def admin(cluster: CloudCluster, principal: str, partition: str = "aws") -> Request:
    """AssociateAccessPolicy: the same rights as the cluster's creator has."""
    return {
        "clusterName": names.cluster_name(cluster),
        "principalArn": principal,
        "policyArn": f"arn:{partition}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy",
        "accessScope": {"type": "cluster"},
    }


def node_name(cluster: CloudCluster, group: str) -> str:
    """The tag Name of a node group's machines."""
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
    """LaunchTemplateData: a node's disk, tags and, where it has EFA, its network interfaces.

    `facts` are the instance type's where it has EFA; `groups` are then the security groups of its interfaces.
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
        # Pods are one hop further away than the node; only those of the host network need it.
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
    """CreateLaunchTemplate, with its data."""
    return {
        "LaunchTemplateName": name,
        "ClientToken": token,
        "LaunchTemplateData": data,
        "TagSpecifications": [tag_specification("launch-template", names.own_tags(cluster), name)],
    }


def cpu_group(
    cluster: CloudCluster, role_arn: str, subnets: Sequence[str], template: str, token: str
) -> Request:
    """CreateNodegroup for the operators and Ray's head: one machine, on demand."""
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
    """CreateNodegroup for `count` machines of the shape in one zone. `ids`: role, subnet, template."""
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
    """So many machines, as a node group takes it."""
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
    """PutScheduledUpdateGroupAction: no machine of that group at the cluster's end, also with nobody there."""
    assert cluster.expires_at is not None
    return {
        "AutoScalingGroupName": scaling_group,
        "ScheduledActionName": "gpuctl-expire",
        "StartTime": cluster.expires_at,
        "MinSize": 0,
        "DesiredCapacity": 0,
    }
