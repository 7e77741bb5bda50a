"""Names of what belongs to a cluster, and the tags that AWS's own controllers put on what they make for it. Pure.

Each name has the cluster's whole id, so that no name of ours is another's, and a name alone tells whose it is.
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
ROLE_PATH = "/gpuctl/"
"""Of IAM's roles: they are the account's, not a region's, and are listed by this."""
CLUSTER_ROLE, NODE_ROLE = "cluster", "node"
CPU_GROUP = "cpu"
OWNED_BY = "kubernetes.io/cluster/"
"""Tag of AWS's controllers on what they make: this and the Kubernetes cluster's name."""
INTERFACE_OF = "cluster.k8s.amazonaws.com/name"
"""Tag of the VPC CNI on network interfaces: its value is the Kubernetes cluster's name."""
VOLUME_OF = "ebs.csi.aws.com/cluster"
"""Tag of the EBS CSI driver on volumes, beside OWNED_BY."""
GROUP_OF = "aws:eks:cluster-name"
"""Tag of EKS on its security group."""
BALANCED_FOR = "elbv2.k8s.aws/cluster"
"""Tag of the AWS Load Balancer Controller on balancers and security groups: the Kubernetes cluster's name."""
REGION = "gpuctl-region"
"""Tag of roles: the region of their cluster."""

_NAME = re.compile(r"gpuctl-(?P<name>[a-z0-9-]{1,40})-(?P<id>[0-9a-f]{16})")


def cluster_name(cluster: CloudCluster) -> str:
    """The name of the Kubernetes cluster."""
    return f"gpuctl-{cluster.name}-{cluster.id}"


def role_name(cluster: CloudCluster, what: str) -> str:
    """The name of a role, `what` is CLUSTER_ROLE or NODE_ROLE; at most 64 characters, as IAM has it."""
    return f"gpuctl-{cluster.id}-{what}"


def gpu_group(zone: str) -> str:
    """The name of the GPU node group in a zone."""
    return f"gpu-{zone}"


def template_name(cluster: CloudCluster, group: str, digest: str) -> str:
    """The name of a node group's launch template; `digest` is that of its data."""
    return f"{cluster_name(cluster)}-{group}-{digest}"


def digest(data: Mapping[str, Any]) -> str:
    """A few characters that other data would not have."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]


def own_tags(cluster: CloudCluster) -> dict[str, str]:
    """Tags of everything that belongs to the cluster."""
    return requests.cluster_tags(cluster)


def tags_of_name(name: str) -> dict[str, str]:
    """The tags that the Kubernetes cluster of that name has; empty where it is no name of ours."""
    found = _NAME.fullmatch(name)
    if found is None:
        return {}
    return {tags.CLUSTER: found["name"], tags.CLUSTER_ID: found["id"], tags.PROVIDER: PROVIDER}


def tags_by_controllers(of: Mapping[str, str]) -> dict[str, str]:
    """Our tags of something that AWS's controllers made for a cluster of ours; empty where it is none."""
    named = [of.get(tag, "") for tag in (INTERFACE_OF, GROUP_OF, BALANCED_FOR)]
    named += [
        key.removeprefix(OWNED_BY)
        for key, value in of.items()
        if key.startswith(OWNED_BY) and value == "owned"
    ]
    return next((found for name in named if (found := tags_of_name(name))), {})
