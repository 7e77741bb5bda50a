"""A fake OCI with OKE, an API server that takes its tokens, and what tests of `provision.oke` ask for."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from provision.oke.service import provider
from provision.rented.managed_kubernetes.provider import ManagedKubernetes
from tests.fakes.client import FakeCloud
from tests.fakes.kube.api import KubeApi, kube_api
from tests.provision.oci.building import FastClock
from tests.provision.service_user import ServiceUser

SHAPE, GPUS = "VM.GPU.A10.2", 2


def signed_for(token: str) -> dict[str, str]:
    """Return the path and parameters of a token's address."""
    address = urlsplit(base64.urlsafe_b64decode(token).decode())
    return {"path": address.path} | {name: values[0] for name, values in parse_qs(address.query).items()}


def is_ours(token: str) -> bool:
    """Return whether OKE would accept the token, except for the signature, which cannot be checked here."""
    try:
        signed = signed_for(token)
    except ValueError:
        return False
    whole = 'headers="date (request-target) host"' in signed.get("authorization", "")
    return whole and signed["path"].startswith("/cluster_request/ocid1.okecluster.") and "date" in signed


@contextmanager
def api_server() -> Iterator[KubeApi]:
    """An API server that takes OKE's tokens, with the nodes of a cluster of three machines with GPUs."""
    with kube_api() as api:
        api.knows = is_ours
        api.world.short_names = False
        api.world.add_node("cpu-0", labels={"gpuctl/group": "cpu"})
        for number in range(3):
            labels = {"node.kubernetes.io/instance-type": SHAPE, "gpuctl/group": "gpu"}
            taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
            api.world.add_node(f"gpu-{number}", gpus=GPUS, labels=labels, taints=[taint])
        yield api


class User(ServiceUser):
    """A user of this service."""

    service, shape = "oke", SHAPE

    @property
    def provider(self) -> ManagedKubernetes:
        return provider(self.folder, clock=FastClock())


def operations(fake: FakeCloud) -> list[str]:
    """Return the changing calls, without the POST for a kubeconfig, which changes nothing."""
    return [
        call["operation"] for call in fake.calls(mutating=True) if call["operation"] != "CreateKubeconfig"
    ]
