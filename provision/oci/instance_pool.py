"""Instance pools of OCI, and the schedule that ends their machines at the end of a cluster's time.

A shutdown from the machine's own system ends no bill on OCI, whatever the shape. When a schedule sets the size of an
instance pool to 0, OCI terminates its machines, with every computer of ours shut and no credential on the machines.
Sources: https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/restartinginstance.htm (billing of a stop),
https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/autoscalinginstancepools.htm (scaling in terminates).

A pool that is scaling refuses other changes; each change here waits for its turn. Members end only through their
pool, as it replaces each member that ends otherwise.
"""

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from provision.errors import BadCredentials, Blocked, CloudError, Denied, Gone
from provision.oci import requests
from provision.oci.api import APPEAR_TIMEOUT_S, Api, Json
from provision.oci.description import acts_at, pool_refusal
from provision.oci.infrastructure.find_or_create import ResourceMaker
from provision.oci.resources.resource_types import ENDED, ENDING, KINDS, is_live, list_kind, tags_of
from provision.records import CloudCluster, Infrastructure, Instance, Offer, ScheduledEnd
from provision.rented import tags
from provision.rented.find_or_create import Ensure
from provision.waiting import Progress, Say, poll, quiet

SHORTEST = timedelta(minutes=2)
"""Shortest time to the end for which a schedule is made: one that has passed never acts."""
SCALING_TIMEOUT_S = 900.0
"""Longest wait for a pool that is scaling."""

CHANGING = ("PROVISIONING", "SCALING")
"""States of a pool in which it takes no other change."""

_KIND = KINDS["instance-pool"]
_SCHEDULE = KINDS["autoscaling-configuration"]


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


class ScheduledEnds:
    """The ends of machines that OCI itself schedules: a `SchedulesEnd`."""

    api: Api

    def schedule_end(
        self,
        cluster: CloudCluster,
        offer: Offer,
        infrastructure: Infrastructure,
        machines: Sequence[Instance],
        ensure: Ensure,
    ) -> None:
        """Have OCI terminate the machines at the end of the cluster's time. Idempotent.

        The schedule stands before the first machine joins its pool, so that each is guarded from then on.
        Raises CloudError if OCI refuses a request; machines that joined before stay guarded.
        """
        if refusal := pool_refusal(cluster):
            raise CloudError(f"On OCI {refusal}.", operation="attach_instance_pool_instance")
        if acts_at(cluster) < datetime.now(UTC) + SHORTEST:
            raise CloudError(
                f"{cluster.expires_at} is too near for a schedule of OCI.",
                operation="create_auto_scaling_configuration",
            )
        maker = ResourceMaker(self.api, cluster, ensure)
        ids, zone = infrastructure.ids, machines[0].zone
        configuration = requests.instance_configuration(cluster, offer, infrastructure)
        configuration_id = _ensure(maker, "instance-configuration", configuration)
        body = requests.instance_pool(cluster, configuration, configuration_id, ids, zone)
        pool = InstancePool(self.api, _ensure(maker, "instance-pool", body), ensure.say)
        pool.settle()
        self._ensure_schedule(cluster, pool.id, ensure)
        members = pool.members()
        joining = [machine for machine in machines if machine.id not in members]
        if joining:
            at = f"{acts_at(cluster):%Y-%m-%d %H:%M} UTC"
            ensure.say(f"adding the machines to an instance pool, whose schedule ends them at {at} …")
        outcomes = [_join(self.api, pool, machine) for machine in joining]
        if error := next(filter(None, outcomes), None):
            raise error

    def scheduled_ends(self, cluster_id: str) -> tuple[ScheduledEnd, ...]:
        """Return the ends that OCI has scheduled for machines of a cluster, as OCI describes them now."""
        pools = {pool.id: pool for pool in live_pools(self.api, {cluster_id})}
        if not pools:
            return ()
        ends: list[ScheduledEnd] = []
        for summary in list_kind(self.api, "autoscaling-configuration"):
            pool = pools.get(str(summary["resource"].get("id")))
            if pool is not None and summary.get("isEnabled"):
                view = self.api.call(_SCHEDULE.operation("get"), summary["id"])
                times = [time for policy in view.get("policies") or () if (time := _end_of(policy))]
                members = frozenset(pool.members()) if times else frozenset()
                problem = _problem(pool.view(), len(members))
                ends += [
                    ScheduledEnd(at=time.isoformat(timespec="seconds"), machines=members, problem=problem)
                    for time in times
                ]
        return tuple(ends)

    def end_pools(self, cluster_ids: Collection[str] | None) -> None:
        """Begin to terminate the pools of these clusters with their machines. `None`: of all clusters of ours."""
        for pool in live_pools(self.api, cluster_ids):
            pool.terminate()

    def forget_ended(self, cluster_id: str, alive: Collection[str], say: Say) -> None:
        """Keep the cluster's pools from making machines in place of members that are not alive. Raises Blocked."""
        for pool in live_pools(self.api, {cluster_id}, say):
            pool.forget_ended(alive)

    def _ensure_schedule(self, cluster: CloudCluster, pool_id: str, ensure: Ensure) -> None:
        """Have the pool's one autoscaling configuration set it to 0 machines at the end of the cluster's time."""

        def find() -> str | None:
            views = list_kind(self.api, "autoscaling-configuration")
            return next((str(view["id"]) for view in views if view["resource"].get("id") == pool_id), None)

        def create(token: str) -> str:
            body = requests.autoscaling_configuration(cluster, pool_id, acts_at(cluster))
            return str(self.api.call(_SCHEDULE.operation("create"), body, opc_retry_token=token)["id"])

        configuration_id = ensure(f"autoscaling-configuration of {pool_id}", find=find, create=create)
        view: Json = self.api.call(_SCHEDULE.operation("get"), configuration_id)
        if not view.get("isEnabled"):
            self.api.call(
                "autoscaling.update_auto_scaling_configuration",
                configuration_id,
                {"isEnabled": True},
                again=True,
            )
        policy = requests.scheduled_policy(acts_at(cluster))
        policies = list(view.get("policies") or ())
        if any(_end_of(candidate) == acts_at(cluster) for candidate in policies):
            return
        ours = next(
            (candidate for candidate in policies if candidate.get("displayName") == policy["displayName"]),
            None,
        )
        if ours is None:
            self.api.call("autoscaling.create_auto_scaling_policy", configuration_id, policy)
        else:
            self.api.call(
                "autoscaling.update_auto_scaling_policy", configuration_id, ours["id"], policy, again=True
            )


def _join(api: Api, pool: InstancePool, machine: Instance) -> CloudError | None:
    """Add a machine to a pool. Returns the refusal, so that one machine keeps no other from its guard."""
    of = dict(machine.tags) | {tags.POOL: tags.MEMBER}
    try:
        # Before it joins: the tag shows the pool to a user who may not list pools.
        api.call("compute.update_instance", machine.id, {"freeformTags": of}, again=True)
        pool.attach(machine.id)
    except BadCredentials:
        raise
    except CloudError as error:
        return error
    return None


def _problem(pool: Json, members: int) -> str:
    """Return why a schedule may not act on the machines of a pool in time, as a clause. Empty: it acts."""
    state, size = pool.get("lifecycleState"), pool.get("size")
    if state == "RUNNING" and size == members:
        return ""
    return f"the instance pool is {state} with {members} of {size} machines, and may not act in time"


def _ensure(maker: ResourceMaker, kind: str, body: Json) -> str:
    """Return the id of the cluster's resource with the display name of `body`: found, or created."""
    name = body["displayName"]
    return maker.ensure(kind, f"{kind} {name}", body, fits=lambda view: view.get("displayName") == name)


def _end_of(policy: Mapping[str, object]) -> datetime | None:
    """Return the time at which a policy sets its pool to 0. `None`: another policy."""
    capacity, schedule = policy.get("capacity"), policy.get("executionSchedule")
    if not isinstance(capacity, Mapping) or not isinstance(schedule, Mapping):
        return None
    if not policy.get("isEnabled") or capacity.get("initial") != 0 or schedule.get("timezone") != "UTC":
        return None
    return requests.read_cron(str(schedule.get("expression")))
