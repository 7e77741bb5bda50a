"""Node pools: one small machine for operators and Ray's head, and the machines with GPUs, in one domain."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

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
from provision.oke import names, requests, work_requests
from provision.oke.control_plane import TAKEN_WITHIN_S, until_listed
from provision.records import CloudCluster, Resource
from provision.rented import tags
from provision.rented.interface import Ensure
from provision.rented.managed_kubernetes.zones import remembered
from provision.rented.teardown import BLOCKED_TIMEOUT_S
from provision.waiting import Clock, Say, once_unblocked, wait_until

POOL = "node-pool"
POOL_WITHIN_S = 2400.0
"""A machine with GPUs takes up to half an hour to join."""
SHOWS_WITHIN_S = 60.0
"""What OKE tells of a pool may be of before the last change for so long."""


def find(api: Api, cluster: CloudCluster, name: str) -> Json | None:
    """What OKE lists of the pool of that name. None: there is none that stays."""
    return next((view for view in pools(api, cluster) if view["name"] == name), None)


def pools(api: Api, cluster: CloudCluster) -> list[Json]:
    """All pools of the cluster that stay, the lowest id first."""
    found = [
        view
        for view in list_kind(api, POOL)
        if tags_of(view).get(tags.CLUSTER_ID) == cluster.id and is_live(view)
    ]
    return sorted(found, key=lambda view: str(view["id"]))


def with_gpus(api: Api, cluster: CloudCluster) -> list[Json]:
    """The pools of machines with GPUs."""
    return [view for view in pools(api, cluster) if view["name"] != names.CPU_POOL]


def sizes(found: Iterable[Json]) -> dict[str, int]:
    """How many machines each pool wants, by its name. Pure."""
    return {view["name"]: int(view["nodeConfigDetails"]["size"]) for view in found}


def ensure_pool(api: Api, clock: Clock, cluster: CloudCluster, body: Json, ensure: Ensure, say: Say) -> str:
    """Return the OCID of the pool; it may be seconds old."""
    name = body["name"]

    def found() -> str | None:
        view = find(api, cluster, name)
        return None if view is None else str(view["id"])

    def create(token: str) -> str:
        once_unblocked(
            f"OKE's acceptance of the node pool {name}",
            lambda: api.call("container.create_node_pool", body, opc_retry_token=token),
            timeout_s=TAKEN_WITHIN_S,
            clock=clock,
            say=say,
        )
        return until_listed(clock, f"the node pool {name}", found)

    return ensure(f"{POOL} {name}", find=found, create=create)


def scale(
    api: Api,
    clock: Clock,
    pool: Json,
    count: int,
    say: Say,
    *,
    stay: Callable[[], Collection[str]],
    timeout_s: float = POOL_WITHIN_S,
) -> None:
    """Have the pool want so many machines; nothing where it does. Waits while OKE still changes it.

    Where some are too many, those end that are not on an address that `stay` tells, the newest first. Which of those
    that it could not start it gives up is OKE's choice: they have no id. Raises CreateFailed for one that OKE began
    to end and could not.
    """
    told: set[str] = set()
    ends: list[str] = []

    def look() -> tuple[bool | None, str]:
        view = api.call("container.get_node_pool", pool["id"])
        size = view["nodeConfigDetails"]["size"]
        if size == count:
            return True, ""
        there = [node for node in _there(view) if node.get("id") and node["lifecycleState"] != "DELETING"]
        if told and (view["lifecycleState"] == "UPDATING" or any(node["id"] in told for node in there)):
            for error in chain.from_iterable(work_requests.errors_of(api, end) for end in ends):
                raise CreateFailed(
                    f"OKE could not end a machine of the node pool {pool['name']}, which is still there and billed: "
                    f"{error['message']}. `gpuctl up` tries again."
                )
            return None, f"{len(told)} of its machines end"  # the size follows
        try:
            if len(there) <= count or not count:
                api.call("container.update_node_pool", pool["id"], requests.size(count), again=True)
                return True, ""
            if size > len(there):  # or it would start others for them
                api.call("container.update_node_pool", pool["id"], requests.size(len(there)), again=True)
                return None, f"{len(there) - count} machines have to end"
            made = {one["id"]: _made(api, one["id"]) for one in there}
            for one in surplus(there, count, stay(), made)[: size - count]:
                with remembered(told, one):
                    ended = api.response("container.delete_node", pool["id"], one, is_decrement_size=True)
                if request := ended.headers.get("opc-work-request-id"):
                    ends.append(request)
        except (Blocked, Gone) as error:  # OKE changes it, or one has gone by itself
            return None, str(error)
        return None, f"{len(told)} of its machines end"

    wait_until(f"the change of the node pool {pool['name']}", look, timeout_s=timeout_s, clock=clock, say=say)


def _made(api: Api, instance: str) -> str:
    """When the machine was made, ISO 8601. Empty: Compute does not tell."""
    try:
        return str(api.hint("compute.get_instance", instance)["timeCreated"])
    except CloudError:
        return ""


def surplus(
    machines: Sequence[Json], count: int, stay: Collection[str], made: Mapping[str, str]
) -> list[str]:
    """Return the ids of those that end where `count` stay. Pure.

    Others go before those in `stay`, then those that fail, then the newest by `made`.
    """

    def worth(machine: Json) -> tuple[bool, bool]:
        return machine.get("privateIp") in stay, machine["lifecycleState"] not in ("FAILING", "FAILED")

    newest = sorted(machines, key=lambda one: made.get(one["id"], ""), reverse=True)
    ordered = sorted(newest, key=worth)
    return [str(one["id"]) for one in ordered[: max(0, len(machines) - count)]]


def wait_gone(api: Api, clock: Clock, pool: Json, count: int, say: Say) -> None:
    """Until no more than so many machines of the pool are there."""

    def look() -> tuple[bool | None, str]:
        there = len(_there(api.call("container.get_node_pool", pool["id"])))
        return (True if there <= count else None), f"{there - count} of {there} are still there"

    what = f"the end of machines of the node pool {pool['name']}"
    wait_until(what, look, timeout_s=POOL_WITHIN_S, clock=clock, say=say)


def _there(view: Json) -> list[Json]:
    return [node for node in view.get("nodes") or [] if node.get("lifecycleState") != "DELETED"]


def wait_pool(api: Api, clock: Clock, pool_id: str, name: str, count: int, say: Say) -> None:
    """Until all of its `count` machines are nodes, and those that it has too many of have gone.

    Raises Capacity or Quota as soon as OCI says that it has no machine, CreateFailed for anything else.
    """
    began = clock.now()

    def look() -> tuple[bool | None, str]:
        view = api.call("container.get_node_pool", pool_id)
        state, wanted, there = view["lifecycleState"], view["nodeConfigDetails"]["size"], _there(view)
        # Those on their way out tell of an earlier try.
        for error in refusals([node for node in there if node.get("lifecycleState") != "DELETING"]):
            raise from_message(error.get("code", ""), error["message"], "create_node_pool")
        active = sum(node.get("lifecycleState") == "ACTIVE" for node in there)
        # Somebody may have made the other pool larger.
        fits = wanted == count or name == names.CPU_POOL
        if state == "ACTIVE" and active == len(there) == wanted and fits:
            return True, ""
        if clock.now() - began > SHOWS_WITHIN_S:
            # Where OCI has no machine, this may be told here alone.
            for error in work_requests.newest_errors(api, pool_id):
                raise from_message(error["code"], error["message"], "create_node_pool")
            if state in ("FAILED", "NEEDS_ATTENTION"):
                told = view.get("lifecycleDetails") or "it gives no reason"
                raise CreateFailed(f"OKE could not make the node pool {name}: {told}.")
        going = f", {len(there) - count} have to go" if len(there) > count else ""
        return None, f"{active} of {count} machines are there{going}, its state is {state}"

    wait_until(f"the node pool {name}", look, timeout_s=POOL_WITHIN_S, clock=clock, say=say)


def refusals(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What OKE says of machines that could not be started. Pure."""
    return [error for node in nodes if (error := node.get("nodeError")) and error.get("message")]


def remove(api: Api, clock: Clock, pool: Json, say: Say) -> None:
    """Remove a pool that can't have its machines, so that they come in another domain or not at all."""
    resource = Resource(
        kind=POOL,
        id=pool["id"],
        name=pool["name"],
        tags=tags_of(pool),
        stage=KUBERNETES_KINDS[POOL].stage,
    )

    once_unblocked(
        f"the end of node pool {pool['name']}",
        lambda: deletion.delete(api, resource),
        timeout_s=ENDS_WITHIN_S + BLOCKED_TIMEOUT_S,
        clock=clock,
        say=say,
    )
