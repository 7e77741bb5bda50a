"""Instance pools of OCI: machines that join, leave and end with a pool, and what a pool makes by itself.

A pool that is scaling refuses other changes; each change here waits for its turn. The machines of a pool are changed
through it alone, as it makes a machine in place of each member that ends without it.
"""

import secrets
from collections.abc import Callable, Collection

from provision.cloud import tags
from provision.errors import BadCredentials, Blocked, CloudError, Gone
from provision.oci.api import APPEAR_TIMEOUT_S, Api, Json
from provision.oci.resources.resource_types import GOING, GONE, KINDS, is_live, list_kind, tags_of
from provision.progress import Progress
from provision.provider import Say, quiet
from provision.retry import PollWaits

SCALING_TIMEOUT_S = 900.0
"""Longest wait for a pool that is scaling."""

_KIND = KINDS["instance-pool"]


def live_pools(api: Api, cluster_id: str | None = None, say: Say = quiet) -> "list[InstancePool]":
    """Return the live pools of a cluster, or of all clusters of ours in the compartment."""
    views = [view for view in list_kind(api, "instance-pool") if is_live(view)]
    ours = [view for view in views if tags.is_clusters(tags_of(view))]
    return [
        InstancePool(api, view["id"], say)
        for view in ours
        if cluster_id in (None, tags_of(view).get(tags.CLUSTER_ID))
    ]


def end_members(api: Api, ids: Collection[str]) -> frozenset[str]:
    """Have the pools of ours end those of the machines that are their members. Returns these.

    A pool of which all machines are to end is terminated with them; of another one only these leave and are
    terminated, and its size shrinks with them.
    """
    ending: set[str] = set()
    for pool in live_pools(api):
        members = pool.members()
        chosen = sorted(members & set(ids))
        if members and len(chosen) == len(members):
            pool.terminate()
        else:
            for machine_id in chosen:
                pool.terminate_member(machine_id)
        ending |= set(chosen)
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

        self._change(send, lambda: self._view().get("lifecycleState") in GOING | GONE)

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
        self._wait(lambda view: view.get("lifecycleState") not in ("PROVISIONING", "SCALING"), "is scaling")

    def _wait(self, is_good: Callable[[Json], bool], what: str) -> None:
        deadline = self._api.clock.now() + SCALING_TIMEOUT_S
        waits = PollWaits()
        progress = Progress(self._api.clock, self._say)
        while (view := self._view()) and not is_good(view):
            if self._api.clock.now() > deadline:
                raise Blocked(
                    f"The instance pool {self.id} {what} for more than {SCALING_TIMEOUT_S / 60:.0f} minutes. Run the "
                    "command again, or `gpuctl down`, which removes the pool with its machines.",
                    code=str(view.get("lifecycleState")),
                )
            progress.tell(f"the instance pool {what}")
            self._api.clock.sleep(waits.next())

    def _view(self) -> Json:
        """Return the pool as OCI describes it now; empty for one that is gone."""
        try:
            view: Json = self._api.call(_KIND.operation("get"), self.id)
        except Gone:
            return {}
        return view

    def _change(self, send: Callable[[str], None], is_done: Callable[[], bool]) -> None:
        """Send a change until OCI takes it: `send` takes a token. Raises the refusal where the change is not done."""
        began = self._api.clock.now()
        waits = PollWaits()
        progress = Progress(self._api.clock, self._say)
        while True:
            try:
                return send(secrets.token_hex(16))
            except BadCredentials:
                raise
            except CloudError as error:
                if is_done():
                    return None
                patience_s = {Blocked: SCALING_TIMEOUT_S, Gone: APPEAR_TIMEOUT_S}.get(type(error), 0.0)
                if self._api.clock.now() - began > patience_s:
                    raise
            progress.tell("the instance pool is scaling")
            self._api.clock.sleep(waits.next())
