"""Instance pools of OCI: machines that join, leave and end with a pool, and machines that a pool makes itself.

A pool that is scaling refuses other changes; each change here waits for its turn. Members end only through their
pool, as it replaces each member that ends otherwise.
"""

import secrets
from collections.abc import Callable, Collection, Mapping

from provision.errors import BadCredentials, Blocked, CloudError, Denied, Gone
from provision.oci.api import APPEAR_TIMEOUT_S, Api, Json
from provision.oci.resources.resource_types import ENDED, ENDING, KINDS, is_live, list_kind, tags_of
from provision.rented import tags
from provision.waiting import Progress, Say, poll, quiet

SCALING_TIMEOUT_S = 900.0
"""Longest wait for a pool that is scaling."""

CHANGING = ("PROVISIONING", "SCALING")
"""States of a pool in which it takes no other change."""

_KIND = KINDS["instance-pool"]


def live_pools(api: Api, cluster_ids: Collection[str] | None, say: Say = quiet) -> list["InstancePool"]:
    """Return the live pools of these clusters. `None`: of all clusters of ours in the compartment.

    Without the right to list pools: empty if no machine of the clusters joined one, else raises Denied.
    """

    def is_meant(of: Mapping[str, str]) -> bool:
        return tags.is_clusters(of) and (cluster_ids is None or of[tags.CLUSTER_ID] in cluster_ids)

    try:
        views = list_kind(api, "instance-pool")
    except Denied:
        machines = [tags_of(view) for view in api.listed("compute.list_instances")]
        if any(is_meant(of) and tags.POOL in of for of in machines):
            raise
        return []
    return [InstancePool(api, view["id"], say) for view in views if is_live(view) and is_meant(tags_of(view))]


def end_members(api: Api, ids: Collection[str]) -> frozenset[str]:
    """End the members of our pools among the machines. Returns their ids.

    They leave their pool and are terminated, and its size shrinks with them.
    """
    machines = [view for view in api.listed("compute.list_instances") if view["id"] in ids]
    clusters = {of.get(tags.CLUSTER_ID, "") for of in map(tags_of, machines) if tags.POOL in of}
    ending: set[str] = set()
    for pool in live_pools(api, clusters) if clusters else ():
        chosen = pool.members() & set(ids)
        for machine_id in sorted(chosen):
            pool.terminate_member(machine_id)
        ending |= chosen
    return frozenset(ending)


class InstancePool:
    """A pool; `say` takes a line of progress for waits of minutes."""

    def __init__(self, api: Api, pool_id: str, say: Say = quiet) -> None:
        self.id = pool_id
        self._api = api
        self._say = say

    def members(self) -> set[str]:
        """Return the ids of the pool's machines. Empty: the pool does not exist any more."""
        try:
            views = self._api.listed("management.list_instance_pool_instances", instance_pool_id=self.id)
        except Gone:
            if any(view["id"] == self.id and is_live(view) for view in list_kind(self._api, "instance-pool")):
                raise
            return set()
        return {str(view["id"]) for view in views}

    def attach(self, machine_id: str) -> None:
        """Add a machine, by which the pool grows."""

        def send(token: str) -> None:
            body = {"instanceId": machine_id}
            self._api.call("management.attach_instance_pool_instance", self.id, body, opc_retry_token=token)

        self._change(send, lambda: machine_id in self.members())
        self.settle()

    def terminate_member(self, machine_id: str) -> None:
        """Terminate a machine and take it out of the pool, which shrinks by it."""

        def send(token: str) -> None:
            body = {"instanceId": machine_id, "isDecrementSize": True, "isAutoTerminate": True}
            self._api.call("management.detach_instance_pool_instance", self.id, body, opc_retry_token=token)

        self._change(send, lambda: machine_id not in self.members())
        self.settle()

    def terminate(self) -> None:
        """Begin to terminate the pool with its machines."""

        def send(token: str) -> None:  # noqa: ARG001 - the call takes none
            self._api.call(_KIND.operation("delete"), self.id, again=True)

        self._change(send, lambda: self.view().get("lifecycleState", "TERMINATED") in ENDING | ENDED)

    def forget_ended(self, alive: Collection[str]) -> None:
        """Remove dead members, so that the pool makes no machine in their place.

        Waits for a machine that the pool is making already, which is listed when this returns. Raises Blocked if the
        pool continues to scale.
        """
        self.settle()
        for machine_id in sorted(self.members() - set(alive)):
            self.terminate_member(machine_id)
        self._wait(lambda view: int(view["size"]) <= len(self.members()), "makes a machine for a lost one")
        self.settle()

    def settle(self) -> None:
        """Wait until the pool takes the next change. Raises Blocked at the deadline."""
        self._wait(lambda view: view.get("lifecycleState") not in CHANGING, "is scaling")

    def _wait(self, is_good: Callable[[Json], bool], activity: str) -> None:
        """Wait until the pool is good. `activity`: a clause on the pool. Raises Blocked at the deadline."""
        progress = Progress(self._api.clock, self._say)
        for _ in poll(self._api.clock, SCALING_TIMEOUT_S):
            view = self.view()
            if not view or is_good(view):
                return
            progress.tell(f"the instance pool {activity}")
        raise Blocked(
            f"The instance pool {self.id} {activity} for more than {SCALING_TIMEOUT_S / 60:.0f} minutes. Run "
            "the command again, or `gpuctl down`, which removes the pool with its machines.",
            code=str(view.get("lifecycleState")),
        )

    def view(self) -> Json:
        """Return the pool as OCI describes it now. Empty: the pool does not exist any more."""
        try:
            view: Json = self._api.call(_KIND.operation("get"), self.id)
        except Gone:
            return {}
        return view

    def _change(self, send: Callable[[str], None], is_done: Callable[[], bool]) -> None:
        """Send a change until OCI takes it: `send` takes a token. Raises the refusal if the change is not done.

        A pool refuses changes while it is scaling; another refusal may be about an unlisted resource.
        """
        progress = Progress(self._api.clock, self._say)
        began = self._api.clock.now()
        for _ in poll(self._api.clock):
            try:
                send(secrets.token_hex(16))
                return
            except BadCredentials:
                raise
            except CloudError as error:
                if is_done():
                    return
                if not isinstance(error, Blocked | Gone):
                    raise
                scaling = isinstance(error, Blocked) and self.view().get("lifecycleState") in CHANGING
                timeout_s = SCALING_TIMEOUT_S if scaling else APPEAR_TIMEOUT_S
                if self._api.clock.now() - began > timeout_s:
                    raise
            progress.tell("the instance pool is scaling")
