"""Instance pools of OCI: machines that join, leave and end with a pool, and what a pool makes by itself.

A pool that is scaling refuses other changes; each change here waits for its turn. The machines of a pool are changed
through it alone, as it makes a machine in place of each member that ends without it.
"""

import secrets
from collections.abc import Callable, Collection, Mapping

from provision.errors import BadCredentials, Blocked, CloudError, Denied, Gone
from provision.oci.api import APPEAR_TIMEOUT_S, Api, Json
from provision.oci.resources.resource_types import GOING, GONE, KINDS, is_live, list_kind, tags_of
from provision.rented import tags
from provision.waiting import PollWaits, Progress, Say, quiet

SCALING_TIMEOUT_S = 900.0
"""Longest wait for a pool that is scaling."""

CHANGING = ("PROVISIONING", "SCALING")
"""States of a pool in which it takes no other change."""

_KIND = KINDS["instance-pool"]


def live_pools(api: Api, cluster_ids: Collection[str] | None, say: Say = quiet) -> list["InstancePool"]:
    """Return the live pools of these clusters. None: of all clusters of ours in the compartment.

    Empty without the right to list pools where no machine of the clusters joined one. Raises Denied where one did.
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
    """Have the pools of ours end those of the machines that are their members. Returns these.

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
        """Return the ids of the pool's machines; empty for a pool that is gone."""
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

        self._change(send, lambda: self.view().get("lifecycleState", "TERMINATED") in GOING | GONE)

    def forget_ended(self, alive: Collection[str]) -> None:
        """Take members out that are not alive, so that the pool makes no machine in their place.

        A machine that the pool is making already is waited for, and is listed when this returns.
        Raises Blocked where the pool does not come to rest.
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
        deadline = self._api.clock.now() + SCALING_TIMEOUT_S
        waits = PollWaits()
        progress = Progress(self._api.clock, self._say)
        while (view := self.view()) and not is_good(view):
            if self._api.clock.now() > deadline:
                raise Blocked(
                    f"The instance pool {self.id} {activity} for more than {SCALING_TIMEOUT_S / 60:.0f} minutes. Run "
                    "the command again, or `gpuctl down`, which removes the pool with its machines.",
                    code=str(view.get("lifecycleState")),
                )
            progress.tell(f"the instance pool {activity}")
            self._api.clock.sleep(waits.next())

    def view(self) -> Json:
        """Return the pool as OCI describes it now; empty for one that is gone."""
        try:
            view: Json = self._api.call(_KIND.operation("get"), self.id)
        except Gone:
            return {}
        return view

    def _change(self, send: Callable[[str], None], is_done: Callable[[], bool]) -> None:
        """Send a change until OCI takes it: `send` takes a token. Raises the refusal where the change is not done.

        A pool refuses changes while it is scaling; another refusal may be about what is not listed yet.
        """
        began = self._api.clock.now()
        waits = PollWaits()
        progress = Progress(self._api.clock, self._say)
        while True:
            try:
                return send(secrets.token_hex(16))
            except (Blocked, Gone) as error:
                if is_done():
                    return None
                scaling = isinstance(error, Blocked) and self.view().get("lifecycleState") in CHANGING
                patience_s = SCALING_TIMEOUT_S if scaling else APPEAR_TIMEOUT_S
                if self._api.clock.now() - began > patience_s:
                    raise
            except BadCredentials:
                raise
            except CloudError:
                if is_done():
                    return None
                raise
            progress.tell("the instance pool is scaling")
            self._api.clock.sleep(waits.next())
