"""The control plane of a cluster: found by its tags, or made; its add-on, its address."""

import base64
from collections.abc import Mapping
from typing import Any

import yaml

from provision.errors import CloudError, CreateFailed, Gone, Unclear
from provision.oci.api import Api, Json
from provision.oci.resources.resource_types import is_live, list_kind, tags_of
from provision.oke import requests
from provision.records import CloudCluster
from provision.rented import tags
from provision.rented.interface import Ensure
from provision.rented.managed_kubernetes.api_server import ApiServer
from provision.waiting import Clock, PollWaits, Say, once_unblocked, wait_until

ACTIVE_WITHIN_S = 1800.0
LISTED_WITHIN_S = 60.0
"""After its call a cluster is made by a work request, whose answer names nothing yet."""
WORKS = ("ACTIVE", "UPDATING")
TAKEN_WITHIN_S = 600.0
"""While OKE changes a cluster, it may refuse the next change."""
ADDON_IS_THERE = ("CREATING", "ACTIVE", "UPDATING", "NEEDS_ATTENTION")


def find(api: Api, cluster: CloudCluster) -> Json | None:
    """What OKE lists of it. None: there is none that stays."""
    mine = [
        view
        for view in list_kind(api, "kubernetes-cluster")
        if tags_of(view).get(tags.CLUSTER_ID) == cluster.id and is_live(view)
    ]
    return min(mine, key=lambda view: str(view["id"]), default=None)


def ensure(api: Api, clock: Clock, cluster: CloudCluster, body: Json, ensure: Ensure) -> str:
    """Return its OCID; it may be seconds old."""

    def found() -> str | None:
        view = find(api, cluster)
        return None if view is None else str(view["id"])

    def create(token: str) -> str:
        api.call("container.create_cluster", body, opc_retry_token=token)
        return until_listed(clock, "the control plane", found)

    return ensure("kubernetes-cluster", find=found, create=create)


def until_listed(clock: Clock, what: str, find: Any) -> str:  # noqa: ANN401 - as Ensure has it
    """Return the id of what a work request makes, once a list has it. Raises Unclear."""
    deadline, waits = clock.now() + LISTED_WITHIN_S, PollWaits()
    while (found := find()) is None:
        if clock.now() > deadline:
            raise Unclear(f"OKE took the request, and does not list {what} after {LISTED_WITHIN_S:.0f} s.")
        clock.sleep(waits.next())
    return str(found)


def wait_active(api: Api, clock: Clock, cluster: CloudCluster, cluster_id: str, say: Say) -> None:
    """Until it works. Raises CreateFailed."""

    def look() -> tuple[bool | None, str]:
        view: Mapping[str, Any] = api.call("container.get_cluster", cluster_id)
        state = view["lifecycleState"]
        if state == "FAILED":
            raise CreateFailed(
                f"OKE could not make the control plane: {view.get('lifecycleDetails') or 'it gives no reason'}. "
                f"`gpuctl down --cluster {cluster.name}` removes what is there."
            )
        return (True if state in WORKS else None), f"its state is {state}"

    what = "the control plane, which takes OKE about ten minutes"
    wait_until(what, look, timeout_s=ACTIVE_WITHIN_S, clock=clock, say=say)


def server(api: Api, cluster_id: str) -> ApiServer:
    """Return where the API server is, as OKE writes it into a kubeconfig."""
    answer = api.call(
        "container.create_kubeconfig",
        cluster_id,
        again=True,
        create_cluster_kubeconfig_content_details={"tokenVersion": "2.0.0", "endpoint": "PUBLIC_ENDPOINT"},
    )
    told = yaml.safe_load(answer.content)["clusters"][0]["cluster"]
    authority = str(told.get("certificate-authority-data") or "")
    base64.b64decode(authority, validate=True)
    return ApiServer(url=told["server"], authority=authority)


def ensure_addon(
    api: Api, clock: Clock, cluster: CloudCluster, cluster_id: str, ensure: Ensure, say: Say
) -> None:
    """Have NVIDIA's device plug-in asked for."""

    def found() -> str | None:
        try:
            view = api.call("container.get_addon", cluster_id, requests.GPU_ADDON)
        except Gone:
            return None
        return requests.GPU_ADDON if view["lifecycleState"] in ADDON_IS_THERE else None

    def create(token: str) -> str:
        def install() -> None:
            try:
                api.call(
                    "container.install_addon", cluster_id, requests.addon(cluster), opc_retry_token=token
                )
            except CloudError:  # OKE has several words for one that is there
                if found() is None:
                    raise

        what = f"OKE's acceptance of the add-on {requests.GPU_ADDON}"
        once_unblocked(what, install, timeout_s=TAKEN_WITHIN_S, clock=clock, say=say)
        return requests.GPU_ADDON

    ensure(f"add-on {requests.GPU_ADDON}", find=found, create=create)
