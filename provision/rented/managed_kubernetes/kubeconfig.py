"""The kubeconfig of a cluster's folder, for kubectl and the official clients. Pure.

A hidden command of gpuctl's makes tokens, so the file has no secret.
"""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import yaml

from provision.rented.managed_kubernetes.api_server import ApiServer

API_VERSION = "client.authentication.k8s.io/v1"


def document(name: str, server: ApiServer, command: Sequence[str]) -> dict[str, Any]:
    """Return a kubeconfig with one context, `name`. `command`: the words after `gpuctl` that print a credential."""
    cluster: dict[str, Any] = {"server": server.url}
    if server.authority:
        cluster["certificate-authority-data"] = server.authority
    plugin = {
        "apiVersion": API_VERSION,
        "command": sys.executable,
        "args": ["-P", "-m", "gpuctl", *command],
        "env": None,
        "interactiveMode": "Never",
        "provideClusterInfo": False,
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"exec": plugin}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def render(name: str, server: ApiServer, command: Sequence[str]) -> bytes:
    """Return the file's content: see `document`."""
    return yaml.safe_dump(document(name, server, command), sort_keys=False).encode()


def credential(token: str, ends_at: datetime) -> dict[str, Any]:
    """Return a token as a credential plug-in prints it."""
    ends = ends_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": API_VERSION,
        "kind": "ExecCredential",
        "spec": {},
        "status": {"expirationTimestamp": ends, "token": token},
    }
