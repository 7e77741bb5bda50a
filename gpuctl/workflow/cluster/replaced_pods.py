"""Pods that KubeRay makes in the place of lost ones: a job takes them in by itself, by an `up`.

On virtual machines that is left to a person, as another one costs money.
"""

from collections.abc import Sequence

from gpuctl.options import App
from gpuctl.text import plural
from gpuctl.workflow.cluster.up import NO_HOST_KEYS, up
from gpuctl.workflow.connect import load_inventory
from inventories.disk.store import ClusterFolder
from inventories.errors import GpuctlError
from inventories.machine import Machine
from inventories.spec import Spec
from provision.provider_registry import in_pods


def wait_for_replaced_pods(app: App, folder: ClusterFolder) -> None:
    """Wait until the cluster has all its pods again, and take them in; say why where it can't have them.

    Nothing where its machines are no pods.
    """
    if not in_pods(load_inventory(folder, empty=True).provider):
        return
    app.output.say("waiting until all pods are there again")
    try:
        _take_in(app, folder)
    except (GpuctlError, OSError) as error:
        app.output.say(f"note: not all of them are: {error}")


def take_in_ready_pods(app: App, folder: ClusterFolder) -> None:
    """Take in the pods that are ready and no machine yet, where the cluster then has all; else nothing happens.

    Raises GpuctlError and OSError where that can't be looked at, or they can't be taken in.
    """
    if not in_pods(load_inventory(folder, empty=True).provider):
        return
    from provision.kubernetes.replaced_pods import ready_pods

    if ready := ready_pods(folder):
        app.output.say(f"{plural(ready, 'pod')} came in the place of lost ones")
        _take_in(app, folder)


def tell_of_lost_pods(app: App, folder: ClusterFolder, machines: Sequence[Machine]) -> None:
    """Say which of the machines that a Ray driver had are lost pods: Ray goes on without them, and names none."""
    try:
        if not in_pods(folder.load().provider):
            return
        from provision.kubernetes.replaced_pods import lost_pods

        lost = lost_pods(folder, machines)
    except GpuctlError as error:
        app.output.say(f"note: whether all pods are still there is not known: {error}")
        return
    for machine in lost:
        app.output.say(
            f"note: {machine.name} was lost: the pod {machine.id} is gone. Ray goes on without it, and "
            "`gpuctl up` takes in the one in its place."
        )


def _take_in(app: App, folder: ClusterFolder) -> None:
    count = len(load_inventory(folder, empty=True).machines)
    up(app, Spec(cluster=folder.name, count=count), NO_HOST_KEYS, for_run=True)
