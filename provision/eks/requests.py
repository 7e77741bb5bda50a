"""The requests that make a Kubernetes cluster, as boto3 takes them, and names, kinds and tags of its resources.

Pure: the plan shows the requests that are sent. Each name has the cluster's whole id, so no other cluster has the
name, and the name alone shows the owner.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from provision.aws.requests import cluster_tags, efa_layout, tag_specification
from provision.kubernetes.ray_cluster import GROUP_LABEL
from provision.records import CloudCluster, Offer
from provision.rented import tags

Request = dict[str, Any]

PROVIDER = "eks"
NODE_GROUP, CLUSTER = "node-group", "kubernetes-cluster"
TEMPLATE, ROLE, LOG_GROUP = "launch-template", "role", "log-group"
LOAD_BALANCER, CLASSIC_LOAD_BALANCER = "load-balancer", "classic-load-balancer"
ROLE_PATH = "/gpuctl/"
"""Path of our IAM roles, by which they are listed: roles belong to the account, not to a region."""
CLUSTER_ROLE, NODE_ROLE = "cluster", "node"
CPU_GROUP = "cpu"
OWNED_BY = "kubernetes.io/cluster/"
"""Tag of AWS's controllers on their resources: this prefix and the Kubernetes cluster's name."""
INTERFACE_OF = "cluster.k8s.amazonaws.com/name"
"""Tag of the VPC CNI on network interfaces: its value is the Kubernetes cluster's name."""
VOLUME_OF = "ebs.csi.aws.com/cluster"
"""Tag of the EBS CSI driver on volumes, in addition to OWNED_BY."""
GROUP_OF = "aws:eks:cluster-name"
"""Tag of EKS on its security group."""
BALANCED_FOR = "elbv2.k8s.aws/cluster"
"""Tag of the AWS Load Balancer Controller on balancers and security groups: the Kubernetes cluster's name."""
REGION = "gpuctl-region"
"""Tag of roles: the region of their cluster."""

_NAME = re.compile(r"gpuctl-(?P<name>[a-z0-9-]{1,40})-(?P<id>[0-9a-f]{16})")

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
_TRUSTED = {CLUSTER_ROLE: "eks.amazonaws.com", NODE_ROLE: "ec2.amazonaws.com"}
_POLICIES: Mapping[str, tuple[str, ...]] = {
    CLUSTER_ROLE: ("AmazonEKSClusterPolicy",),
    NODE_ROLE: (
        "AmazonEKSWorkerNodePolicy",
        "AmazonEC2ContainerRegistryPullOnly",
        "AmazonEKS_CNI_Policy",
    ),
}
ROLES = tuple(_POLICIES)


def role_name(cluster: CloudCluster, role: str) -> str:
    """Return the name of a role, CLUSTER_ROLE or NODE_ROLE, of at most 64 characters, IAM's limit."""
    return f"gpuctl-{cluster.id}-{role}"


def gpu_group_name(zone: str) -> str:
    """Return the name of the GPU node group in a zone."""
    return f"gpu-{zone}"


def template_name(cluster: CloudCluster, group: str, digest: str) -> str:
    """Return the name of a node group's launch template; `digest` is that of its data."""
    return f"{cluster.kubernetes_name}-{group}-{digest}"


def digest(data: Mapping[str, Any]) -> str:
    """Return a few characters that other data would not have."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]


def tags_of_name(name: str) -> dict[str, str]:
    """Return the tags of the Kubernetes cluster of that name. Empty: the name is not ours."""
    match = _NAME.fullmatch(name)
    if match is None:
        return {}
    return {tags.CLUSTER: match["name"], tags.CLUSTER_ID: match["id"], tags.PROVIDER: PROVIDER}


def tags_by_controllers(of: Mapping[str, str]) -> dict[str, str]:
    """Return our tags for a resource that AWS's controllers made for our cluster. Empty: for another cluster."""
    of_clusters = [of.get(tag, "") for tag in (INTERFACE_OF, GROUP_OF, BALANCED_FOR)]
    of_clusters += [
        key.removeprefix(OWNED_BY)
        for key, value in of.items()
        if key.startswith(OWNED_BY) and value == "owned"
    ]
    return next(filter(None, map(tags_of_name, of_clusters)), {})


def policies(role: str, partition: str = "aws") -> tuple[str, ...]:
    """Return the ARNs of a role's policies."""
    return tuple(f"arn:{partition}:iam::aws:policy/{name}" for name in _POLICIES[role])


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
    of = cluster_tags(cluster) | {REGION: cluster.target.region or ""}
    return {
        "Path": ROLE_PATH,
        "RoleName": role_name(cluster, name),
        "AssumeRolePolicyDocument": json.dumps(trust),
        "Description": f"gpuctl: the {name}{'s' * (name == NODE_ROLE)} of {cluster.kubernetes_name}",
        "Tags": [{"Key": key, "Value": value} for key, value in of.items()],
    }


def control_plane(
    cluster: CloudCluster, role_arn: str, subnets: Sequence[str], group: str, token: str
) -> Request:
    """Return the request CreateCluster.

    The API server is reached from `ssh_cidrs` and from the VPC. Support ends with an upgrade, not with the dearer
    extended support. gpuctl makes the add-ons, so that each has our tags.
    """
    return {
        "name": cluster.kubernetes_name,
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
        "tags": cluster_tags(cluster),
    }


def access(cluster: CloudCluster) -> Request:
    """Return the request UpdateClusterConfig for the ranges that reach the API server."""
    return {
        "name": cluster.kubernetes_name,
        "resourcesVpcConfig": {"publicAccessCidrs": list(cluster.ssh_cidrs)},
    }


def addon(cluster: CloudCluster, name: str, token: str) -> Request:
    """Return the request CreateAddon, for EKS's default version."""
    settings = ADDONS[name]
    return {
        "clusterName": cluster.kubernetes_name,
        "addonName": name,
        **({"configurationValues": json.dumps(settings)} if settings else {}),
        "resolveConflicts": "OVERWRITE",
        "clientRequestToken": token,
        "tags": cluster_tags(cluster),
    }


def access_entry(cluster: CloudCluster, principal: str, token: str) -> Request:
    """Return the request CreateAccessEntry, for a principal without an access entry."""
    return {
        "clusterName": cluster.kubernetes_name,
        "principalArn": principal,
        "type": "STANDARD",
        "clientRequestToken": token,
        "tags": cluster_tags(cluster),
    }


def admin(cluster: CloudCluster, principal: str, partition: str = "aws") -> Request:
    """Return the request AssociateAccessPolicy: the rights of the cluster's creator."""
    return {
        "clusterName": cluster.kubernetes_name,
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
    of = cluster_tags(cluster)
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
        "TagSpecifications": [tag_specification("launch-template", cluster_tags(cluster), name)],
    }


def cpu_group(
    cluster: CloudCluster, role_arn: str, subnets: Sequence[str], template: str, token: str
) -> Request:
    """Return the request CreateNodegroup for the operators and Ray's head: one machine, on demand."""
    scaling = {"minSize": 0, "maxSize": 2, "desiredSize": 1}
    request = _group(cluster, CPU_GROUP, role_arn, subnets, template, token)
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
    request = _group(cluster, gpu_group_name(zone), ids["role"], [ids["subnet"]], ids["template"], token)
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
        "clusterName": cluster.kubernetes_name,
        "nodegroupName": group,
        "nodeRole": role_arn,
        "subnets": list(subnets),
        "launchTemplate": {"id": template, "version": "1"},
        "clientRequestToken": token,
        "tags": cluster_tags(cluster),
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
