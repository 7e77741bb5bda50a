"""The control plane of a cluster: found by its tags, or created; its add-on, its API server."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from provision.errors import CloudError, CreateFailed, Gone, Unclear
from provision.oci.api import Api, Json
from provision.oci.resources.resource_types import is_live, list_kind, tags_of
from provision.oke import requests
from provision.records import CloudCluster
from provision.rented import tags
from provision.rented.find_or_create import Ensure
from provision.rented.managed_kubernetes.api_server import ApiServer
from provision.waiting import Clock, Waiting, first_result

ACTIVE_WITHIN_S = 1800.0
LISTED_WITHIN_S = 60.0
"""A work request makes the cluster after the call, whose answer has no id yet."""
WORKING = ("ACTIVE", "UPDATING")
TAKEN_WITHIN_S = 600.0
"""Longest time that OKE refuses the next change while it changes a cluster."""
ADDON_EXISTS = ("CREATING", "ACTIVE", "UPDATING", "NEEDS_ATTENTION")


@dataclass(frozen=True, kw_only=True)
class ControlPlane(Waiting):
    """The control plane of a cluster."""

    api: Api
    cluster: CloudCluster

    def find(self) -> Json | None:
        """Return OKE's view of the cluster. `None`: OKE lists no live one."""
        views = [
            view
            for view in list_kind(self.api, "kubernetes-cluster")
            if tags_of(view).get(tags.CLUSTER_ID) == self.cluster.id and is_live(view)
        ]
        return min(views, key=lambda view: str(view["id"]), default=None)

    def ensure(self, body: Json, ensure: Ensure) -> str:
        """Find or create the control plane, without a wait. Returns its OCID."""

        def find() -> str | None:
            view = self.find()
            return None if view is None else str(view["id"])

        def create(token: str) -> str:
            self.api.call("container.create_cluster", body, opc_retry_token=token)
            return wait_listed(self.clock, "the control plane", find)

        return ensure("kubernetes-cluster", find=find, create=create)

    def wait_active(self, cluster_id: str) -> None:
        """Wait until the control plane works. Raises CreateFailed."""

        def active() -> tuple[bool | None, str]:
            view: Mapping[str, Any] = self.api.call("container.get_cluster", cluster_id)
            state = view["lifecycleState"]
            if state == "FAILED":
                reason = view.get("lifecycleDetails") or "it gives no reason"
                raise CreateFailed(
                    f"OKE could not make the control plane: {reason}. `gpuctl down --cluster {self.cluster.name}` "
                    "removes what is there."
                )
            return (True if state in WORKING else None), f"its state is {state}"

        title = "the control plane, which takes OKE about ten minutes"
        self.wait_until(title, active, ACTIVE_WITHIN_S)

    def server(self, cluster_id: str) -> ApiServer:
        """Return the API server, as OKE writes it into a kubeconfig."""
        answer = self.api.call(
            "container.create_kubeconfig",
            cluster_id,
            again=True,
            create_cluster_kubeconfig_content_details={
                "tokenVersion": "2.0.0",
                "endpoint": "PUBLIC_ENDPOINT",
            },
        )
        cluster = yaml.safe_load(answer.content)["clusters"][0]["cluster"]
        authority = str(cluster.get("certificate-authority-data") or "")
        base64.b64decode(authority, validate=True)
        return ApiServer(url=cluster["server"], authority=authority)

    def ensure_addon(self, cluster_id: str, ensure: Ensure) -> None:
        """Install NVIDIA's device plug-in, unless it exists."""
        name = requests.GPU_ADDON

        def find() -> str | None:
            try:
                view = self.api.call("container.get_addon", cluster_id, name)
            except Gone:
                return None
            return name if view["lifecycleState"] in ADDON_EXISTS else None

        def create(token: str) -> str:
            def install() -> None:
                body = requests.addon(self.cluster)
                try:
                    self.api.call("container.install_addon", cluster_id, body, opc_retry_token=token)
                except CloudError:  # OKE has several codes for an existing add-on
                    if find() is None:
                        raise

            title = f"OKE's acceptance of the add-on {name}"
            self.once_unblocked(title, install, TAKEN_WITHIN_S)
            return name

        ensure(f"add-on {name}", find=find, create=create)


def wait_listed(clock: Clock, title: str, find: Callable[[], str | None]) -> str:
    """Return the id of the resource of a work request, once a list has it. Raises Unclear."""
    resource_id = first_result(clock, find, LISTED_WITHIN_S)
    if resource_id is None:
        raise Unclear(f"OKE took the request, and does not list {title} after {LISTED_WITHIN_S:.0f} s.")
    return resource_id
