"""The kubeconfig of a cluster's folder: kubectl and the official clients take it as it is. Pure.

It has no secret: a command of gpuctl's own makes a token whenever one is needed.
"""

import sys
from collections.abc import Mapping
from typing import Any

import yaml

from provision.cloud.records import CloudCluster
from provision.eks import names, tokens

COMMAND = "eks-token"
"""The command of gpuctl that prints a credential."""


def document(cluster: CloudCluster, told: Mapping[str, Any]) -> dict[str, Any]:
    """A kubeconfig with one context, named as the Kubernetes cluster. `told`: what EKS says of that."""
    name = names.cluster_name(cluster)
    server: dict[str, Any] = {"server": told["endpoint"]}
    if authority := told.get("certificateAuthority", {}).get("data"):
        server["certificate-authority-data"] = authority
    plugin = {
        "apiVersion": tokens.API_VERSION,
        "command": sys.executable,
        "args": ["-P", "-m", "gpuctl", COMMAND, *_options(cluster)],
        "env": None,
        "interactiveMode": "Never",
        "provideClusterInfo": False,
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": server}],
        "users": [{"name": name, "user": {"exec": plugin}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def _options(cluster: CloudCluster) -> list[str]:
    region = cluster.target.region
    assert region is not None
    profile = ["--profile", cluster.target.profile] if cluster.target.profile else []
    return ["--name", names.cluster_name(cluster), "--region", region, *profile]


def render(cluster: CloudCluster, told: Mapping[str, Any]) -> bytes:
    """The file."""
    return yaml.safe_dump(document(cluster, told), sort_keys=False).encode()
