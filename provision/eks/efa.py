"""EFA in pods: how many of a machine's interfaces each has, what installs them, what to know of it. Pure."""

from collections.abc import Mapping
from typing import Any

from provision.aws.requests import efa_layout
from provision.records import CloudCluster

OTHER_PARTITIONS = ("cn-", "us-gov-", "us-iso", "eu-isoe-", "eusc-")
"""Prefixes of regions whose accounts can't read the image of AWS's device plug-in."""


def in_pods(cluster: CloudCluster, facts: Mapping[str, Any]) -> int:
    """Return how many each pod has: those of its machine, where the image is the user's own.

    Ray's public image lacks what NCCL needs to use them.
    """
    if not cluster.image or (cluster.target.region or "").startswith(OTHER_PARTITIONS):
        return 0
    return _of_machine(cluster, facts)


def notes(cluster: CloudCluster, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a person should know before they say yes to a type that has EFA."""
    used, most = _of_machine(cluster, facts), len(facts["efa_cards"])
    found = []
    if most and not cluster.image:
        found.append(
            "NCCL goes over TCP between the pods: Ray's public image lacks libfabric and AWS's plug-in for NCCL "
            "(aws-ofi-nccl). The pods of an --image that has them get EFA"
        )
    if used < most:
        found.append(
            f"{used} of the {most} EFA interfaces of {cluster.shape} will be used: AWS gives a public address only "
            "to a machine with a single interface. With --no-public-ip it has all of them"
        )
    return tuple(found)


def _of_machine(cluster: CloudCluster, facts: Mapping[str, Any]) -> int:
    return sum("InterfaceType" in one for one in efa_layout(facts, public=cluster.public_ip))
