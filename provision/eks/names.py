"""Names of a cluster's resources, their kinds, and the tags of AWS's own controllers. Pure.

Each name has the cluster's whole id, so no other cluster has the name, and the name alone shows the owner.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from provision.aws import requests
from provision.records import CloudCluster
from provision.rented import tags

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


def cluster_name(cluster: CloudCluster) -> str:
    """Return the name of the Kubernetes cluster."""
    return f"gpuctl-{cluster.name}-{cluster.id}"


def role_name(cluster: CloudCluster, role: str) -> str:
    """Return the name of a role, CLUSTER_ROLE or NODE_ROLE, of at most 64 characters, IAM's limit."""
    return f"gpuctl-{cluster.id}-{role}"


def gpu_group(zone: str) -> str:
    """Return the name of the GPU node group in a zone."""
    return f"gpu-{zone}"


def template_name(cluster: CloudCluster, group: str, digest: str) -> str:
    """Return the name of a node group's launch template; `digest` is that of its data."""
    return f"{cluster_name(cluster)}-{group}-{digest}"


def digest(data: Mapping[str, Any]) -> str:
    """Return a few characters that other data would not have."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]


def own_tags(cluster: CloudCluster) -> dict[str, str]:
    """Return the tags of all resources of the cluster."""
    return requests.cluster_tags(cluster)


def tags_of_name(name: str) -> dict[str, str]:
    """Return the tags of the Kubernetes cluster of that name. Empty: the name is not ours."""
    match = _NAME.fullmatch(name)
    if match is None:
        return {}
    return {tags.CLUSTER: match["name"], tags.CLUSTER_ID: match["id"], tags.PROVIDER: PROVIDER}


def tags_by_controllers(of: Mapping[str, str]) -> dict[str, str]:
    """Return our tags for a resource that AWS's controllers made for our cluster. Empty: for another cluster."""
    names = [of.get(tag, "") for tag in (INTERFACE_OF, GROUP_OF, BALANCED_FOR)]
    names += [
        key.removeprefix(OWNED_BY)
        for key, value in of.items()
        if key.startswith(OWNED_BY) and value == "owned"
    ]
    return next(filter(None, map(tags_of_name, names)), {})
