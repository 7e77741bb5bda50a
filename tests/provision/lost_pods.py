"""Machines of pods that are lost."""

from provision.kubernetes.ray_cluster import RANK
from tests.fakes.kube.api import KubeApi


def lose_first_machine(kube: KubeApi, *, second_on: str) -> None:
    """Lose the pod of rank 0, for which no other one comes; that of rank 1 is on the node with this address."""
    pods = {pod["metadata"]["labels"].get(RANK): pod for pod in kube.world.store.listed("pods")}
    pods["1"]["status"]["hostIP"] = second_on
    kube.world.images["*"] = "slow"
    kube.world.store.delete("pods", pods["0"]["metadata"]["namespace"], pods["0"]["metadata"]["name"])
