"""Node pools: one small machine for operators and Ray's head, and the machines with GPUs, in one domain."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from inventories.text import plural
from provision.errors import Blocked, CloudError, CreateFailed, Gone
from provision.oci.api import Api, Json
from provision.oci.errors import from_message
from provision.oci.resources import deletion
from provision.oci.resources.resource_types import (
    ENDS_WITHIN_S,
    KUBERNETES_KINDS,
    is_live,
    list_kind,
    tags_of,
)
from provision.oke import requests
from provision.oke.control_plane import TAKEN_WITHIN_S, wait_listed
from provision.records import CloudCluster, Resource
from provision.rented import tags
from provision.rented.find_or_create import Ensure
from provision.rented.managed_kubernetes.zones import GROUP_WITHIN_S, remembered
from provision.rented.teardown import BLOCKED_TIMEOUT_S
from provision.waiting import Waiting

POOL = "node-pool"
OUTDATED_FOR_S = 60.0
"""Longest time that OKE describes a pool as before the last change."""
FAILED_REQUESTS = ("FAILED", "CANCELED")


@dataclass(frozen=True, kw_only=True)
class NodePools(Waiting):
    """The node pools of a cluster."""

    api: Api
    cluster: CloudCluster

    def find(self, name: str) -> Json | None:
        """Return OKE's view of the live pool of that name. `None`: not in OKE's list."""
        return next((view for view in self._live() if view["name"] == name), None)

    def gpu_sizes(self) -> dict[str, int]:
        """Return the desired size of each live pool with GPUs, by its name."""
        return {
            view["name"]: int(view["nodeConfigDetails"]["size"])
            for view in self._live()
            if view["name"] != requests.CPU_POOL
        }

    def ensure(self, body: Json, ensure: Ensure) -> str:
        """Find or create a pool, without a wait. Returns its OCID."""
        name = body["name"]

        def find() -> str | None:
            view = self.find(name)
            return None if view is None else str(view["id"])

        def create(token: str) -> str:
            self.once_unblocked(
                f"OKE's acceptance of the node pool {name}",
                lambda: self.api.call("container.create_node_pool", body, opc_retry_token=token),
                TAKEN_WITHIN_S,
            )
            return wait_listed(self.clock, f"the node pool {name}", find)

        return ensure(f"{POOL} {name}", find=find, create=create)

    def scale(
        self,
        pool: Json,
        count: int,
        *,
        staying_addresses: Callable[[], Collection[str]],
        timeout_s: float = GROUP_WITHIN_S,
    ) -> None:
        """Set the pool's size to `count`, and wait while OKE changes it.

        Of too many machines, the newest end that are not at a staying address. OKE itself chooses among machines
        that it could not start: they have no id. Raises CreateFailed for a machine that OKE began to end and could
        not.
        """
        ending: set[str] = set()
        work_requests: list[str] = []
        title, update = pool["name"], "container.update_node_pool"

        def scaled() -> tuple[bool | None, str]:
            view = self.api.call("container.get_node_pool", pool["id"])
            size = view["nodeConfigDetails"]["size"]
            if size == count:
                return True, ""
            machines = [
                node for node in _existing(view) if node.get("id") and node["lifecycleState"] != "DELETING"
            ]
            undecided = view["lifecycleState"] == "UPDATING" or any(node["id"] in ending for node in machines)
            if ending and undecided:
                for error in chain.from_iterable(map(self._errors_of, work_requests)):
                    raise CreateFailed(
                        f"OKE could not end a machine of the node pool {title}, which is still there and billed: "
                        f"{error['message']}. `gpuctl up` tries again."
                    )
                return None, f"{len(ending)} of its machines end"  # the size follows
            try:
                if len(machines) <= count or not count:
                    self.api.call(update, pool["id"], requests.size(count), again=True)
                    return True, ""
                if size > len(machines):  # or it would start others for the ending ones
                    self.api.call(update, pool["id"], requests.size(len(machines)), again=True)
                    return None, f"{plural(len(machines) - count, 'machine')} still to end"
                made = {node["id"]: self._made_at(node["id"]) for node in machines}
                for machine in surplus(machines, count, staying_addresses(), made)[: size - count]:
                    with remembered(ending, machine):
                        ended = self.api.response(
                            "container.delete_node", pool["id"], machine, is_decrement_size=True
                        )
                    if request := ended.headers.get("opc-work-request-id"):
                        work_requests.append(request)
            except (Blocked, Gone) as error:  # OKE changes it, or a machine has ended already
                return None, str(error)
            return None, f"{len(ending)} of its machines end"

        self.wait_until(f"the change of the node pool {title}", scaled, timeout_s)

    def scale_down(
        self, name: str, count: int, staying_addresses: Callable[[], Collection[str]], timeout_s: float
    ) -> None:
        """Scale the pool of that name down to `count` machines, if it exists."""
        if pool := self.find(name):
            self.scale(pool, count, staying_addresses=staying_addresses, timeout_s=timeout_s)

    def wait_gone(self, name: str, count: int) -> None:
        """Wait until at most `count` machines of the pool exist, if it exists."""
        pool = self.find(name)
        if pool is None:
            return

        def ended() -> tuple[bool | None, str]:
            existing = len(_existing(self.api.call("container.get_node_pool", pool["id"])))
            return (True if existing <= count else None), f"{existing - count} of {existing} still to end"

        self.wait_until(f"the end of machines of the node pool {name}", ended, GROUP_WITHIN_S)

    def wait_running(self, pool_id: str, name: str, count: int) -> None:
        """Wait until all `count` machines are nodes, and excess machines have ended.

        Raises Capacity or Quota as soon as OCI reports that it has no machine, CreateFailed for any other failure.
        """
        began = self.clock.now()

        def running() -> tuple[bool | None, str]:
            view = self.api.call("container.get_node_pool", pool_id)
            state, size, machines = (
                view["lifecycleState"],
                view["nodeConfigDetails"]["size"],
                _existing(view),
            )
            # Errors of machines that are being deleted are of an earlier try.
            staying = [node for node in machines if node.get("lifecycleState") != "DELETING"]
            for error in refusals(staying):
                raise from_message(error.get("code", ""), error["message"], "create_node_pool")
            active = sum(node.get("lifecycleState") == "ACTIVE" for node in machines)
            # A user may have made the other pool larger.
            fits = size == count or name == requests.CPU_POOL
            if state == "ACTIVE" and active == len(machines) == size and fits:
                return True, ""
            if self.clock.now() - began > OUTDATED_FOR_S:
                # Sometimes only a work request reports that OCI has no machine.
                for error in self._newest_errors(pool_id):
                    raise from_message(error["code"], error["message"], "create_node_pool")
                if state in ("FAILED", "NEEDS_ATTENTION"):
                    reason = view.get("lifecycleDetails") or "it gives no reason"
                    raise CreateFailed(f"OKE could not make the node pool {name}: {reason}.")
            excess = f", {len(machines) - count} have to go" if len(machines) > count else ""
            return None, f"{active} of {count} machines are there{excess}, its state is {state}"

        self.wait_until(f"the node pool {name}", running, GROUP_WITHIN_S)

    def remove(self, name: str) -> None:
        """Remove a pool that can't have its machines, so that they come up in another domain or not at all."""
        pool = self.find(name)
        if pool is None:
            return
        resource = Resource(
            kind=POOL, id=pool["id"], name=name, tags=tags_of(pool), stage=KUBERNETES_KINDS[POOL].stage
        )
        self.once_unblocked(
            f"the end of node pool {name}",
            lambda: deletion.delete(self.api, resource),
            ENDS_WITHIN_S + BLOCKED_TIMEOUT_S,
        )

    def _live(self) -> list[Json]:
        """Return all live pools of the cluster, the lowest id first."""
        views = [
            view
            for view in list_kind(self.api, POOL)
            if tags_of(view).get(tags.CLUSTER_ID) == self.cluster.id and is_live(view)
        ]
        return sorted(views, key=lambda view: str(view["id"]))

    def _made_at(self, instance: str) -> str:
        """Return the time of the machine's creation, ISO 8601. Empty: not known."""
        try:
            return str(self.api.hint("compute.get_instance", instance)["timeCreated"])
        except CloudError:
            return ""

    def _errors_of(self, request: str) -> list[Json]:
        """Return `code` and `message` of a failed work request's errors. Empty: it did not fail, or no answer."""
        try:
            if self.api.hint("container.get_work_request", request)["status"] not in FAILED_REQUESTS:
                return []
            errors = self.api.list_all("container.list_work_request_errors", self.api.compartment, request)
        except CloudError:
            return []
        return errors or [{"code": "", "message": "it gives no reason"}]

    def _newest_errors(self, pool: str) -> list[Json]:
        """Return the errors of the pool's last work request."""
        try:
            listed = self.api.listed(
                "container.list_work_requests", resource_id=pool, resource_type="NODEPOOL"
            )
        except CloudError:
            return []
        newest = max(listed, key=lambda request: str(request.get("timeAccepted") or ""), default=None)
        return [] if newest is None else self._errors_of(newest["id"])


def surplus(
    machines: Sequence[Json], count: int, staying_addresses: Collection[str], made: Mapping[str, str]
) -> list[str]:
    """Return the ids of the machines to end, so that `count` stay. Pure.

    First machines at other addresses than the staying ones, then failing machines, then the newest by `made`.
    """

    def worth(machine: Json) -> tuple[bool, bool]:
        healthy = machine["lifecycleState"] not in ("FAILING", "FAILED")
        return machine.get("privateIp") in staying_addresses, healthy

    newest = sorted(machines, key=lambda machine: made.get(machine["id"], ""), reverse=True)
    ordered = sorted(newest, key=worth)
    return [str(machine["id"]) for machine in ordered[: max(0, len(machines) - count)]]


def refusals(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return OKE's errors of machines that it could not start. Pure."""
    return [error for node in nodes if (error := node.get("nodeError")) and error.get("message")]


def _existing(view: Json) -> list[Json]:
    return [node for node in view.get("nodes") or [] if node.get("lifecycleState") != "DELETED"]
