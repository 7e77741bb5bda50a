"""A fake AWS with EKS, an API server that takes its tokens, and what tests of `provision.eks` ask for."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

from provision.eks.cloud import EksCloud
from provision.eks.service import provider
from provision.eks.tokens import CLUSTER_HEADER, PREFIX
from provision.records import Target
from provision.rented.managed_kubernetes.provider import ManagedKubernetes
from tests.fakes.client import FakeCloud
from tests.fakes.kube.api import KubeApi, kube_api
from tests.provision.aws.building import FastClock
from tests.provision.service_user import ServiceUser


def signed_for(token: str) -> dict[str, str]:
    """Return the parameters of a token's address."""
    text = token.removeprefix(PREFIX)
    address = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}


def is_ours(token: str) -> bool:
    """Return whether EKS would accept the token."""
    if not token.startswith(PREFIX):
        return False
    signed = signed_for(token)
    of_cluster = CLUSTER_HEADER in signed["X-Amz-SignedHeaders"].split(";")
    return of_cluster and signed["Action"] == "GetCallerIdentity" and int(signed["X-Amz-Expires"]) <= 900


@contextmanager
def api_server() -> Iterator[KubeApi]:
    """An API server that takes EKS's tokens, with the nodes of a cluster of three g5.12xlarge."""
    with kube_api() as api:
        api.knows = is_ours
        api.world.add_node("cpu-0", labels={"gpuctl/group": "cpu"})
        for number in range(3):
            labels = {"node.kubernetes.io/instance-type": "g5.12xlarge", "gpuctl/group": "gpu"}
            taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
            api.world.add_node(f"gpu-{number}", gpus=4, efa=1, labels=labels, taints=[taint])
        yield api


class User(ServiceUser):
    """A user of this service."""

    service, shape = "eks", "g5.12xlarge"

    @property
    def provider(self) -> ManagedKubernetes:
        return provider(self.folder, clock=FastClock())


def region_of(fake: FakeCloud) -> EksCloud:
    """Return the account as `reap` sees it, without any files."""
    assert fake
    return EksCloud(replace(Target(provider="eks"), region="us-east-1"), clock=FastClock())


def operations(fake: FakeCloud) -> list[str]:
    """Return the changing calls."""
    return [call["operation"] for call in fake.calls(mutating=True)]
