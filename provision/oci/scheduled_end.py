"""The end of a cluster's machines by OCI itself: an instance pool that a schedule sets to no machines.

A shutdown from the machine's own system ends no bill on OCI, whatever the shape. When a schedule sets the size of an
instance pool to 0, OCI terminates its machines, with every computer of ours shut and no credential on the machines.
Sources: https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/restartinginstance.htm (billing of a stop),
https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/autoscalinginstancepools.htm (scaling in terminates).
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from provision.errors import BadCredentials, CloudError
from provision.oci import requests
from provision.oci.api import Api, Json
from provision.oci.description import acts_at, pool_refusal
from provision.oci.infrastructure.find_or_create import ExistingResources
from provision.oci.instance_pool import InstancePool, live_pools
from provision.oci.resources.resource_types import KINDS, list_kind, tags_of
from provision.records import CloudCluster, Infrastructure, Instance, Offer, ScheduledEnd, Zone
from provision.rented import tags
from provision.rented.interface import Ensure
from provision.waiting import Say

SHORTEST = timedelta(minutes=2)
"""Shortest time to the end for which a schedule is made: one that has passed never acts."""


def schedule(
    api: Api,
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
    pool = InstancePool(
        api, _ensure_pool(api, cluster, offer, infrastructure, machines[0].zone, ensure), ensure.say
    )
    pool.settle()
    _ensure_schedule(api, cluster, pool.id, ensure)
    members = pool.members()
    joining = [machine for machine in machines if machine.id not in members]
    if joining:
        at = f"{acts_at(cluster):%Y-%m-%d %H:%M} UTC"
        ensure.say(f"adding the machines to an instance pool, whose schedule ends them at {at} …")
    outcomes = [_join(api, pool, machine) for machine in joining]
    if error := next(filter(None, outcomes), None):
        raise error


def scheduled(api: Api, cluster_id: str) -> tuple[ScheduledEnd, ...]:
    """Return the ends that OCI has scheduled for machines of a cluster, as OCI describes them now."""
    pools = {pool.id: pool for pool in live_pools(api, {cluster_id})}
    if not pools:
        return ()
    ends: list[ScheduledEnd] = []
    for summary in list_kind(api, "autoscaling-configuration"):
        pool = pools.get(str(summary["resource"].get("id")))
        if pool is not None and summary.get("isEnabled"):
            view = api.call(KINDS["autoscaling-configuration"].operation("get"), summary["id"])
            times = [time for policy in view.get("policies") or () if (time := _end_of(policy))]
            members = frozenset(pool.members()) if times else frozenset()
            problem = _problem(pool.view(), len(members))
            ends += [
                ScheduledEnd(at=time.isoformat(timespec="seconds"), machines=members, problem=problem)
                for time in times
            ]
    return tuple(ends)


def end_pools(api: Api, cluster_ids: Collection[str] | None) -> None:
    """Begin to terminate the pools of these clusters with their machines. `None`: of all clusters of ours."""
    for pool in live_pools(api, cluster_ids):
        pool.terminate()


def forget_ended(api: Api, cluster_id: str, alive: Collection[str], say: Say) -> None:
    """Keep the cluster's pools from making machines in place of members that are not alive. Raises Blocked."""
    for pool in live_pools(api, {cluster_id}, say):
        pool.forget_ended(alive)


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


def _ensure_pool(
    api: Api,
    cluster: CloudCluster,
    offer: Offer,
    infrastructure: Infrastructure,
    zone: Zone,
    ensure: Ensure,
) -> str:
    """Return the id of the pool for the cluster's machines in a zone: found, or created without machines."""
    configuration = requests.instance_configuration(cluster, offer, infrastructure, api.compartment)
    configuration_id = _ensure(api, cluster, "instance-configuration", configuration, ensure)
    pool = requests.instance_pool(cluster, configuration, configuration_id, infrastructure.ids, zone)
    return _ensure(api, cluster, "instance-pool", pool, ensure)


def _ensure(api: Api, cluster: CloudCluster, kind: str, body: Json, ensure: Ensure) -> str:
    """Return the id of the cluster's resource with the display name of `body`: found, or created."""
    name, existing = body["displayName"], ExistingResources(api, ())

    def is_meant(view: Json) -> bool:
        return view.get("displayName") == name and tags_of(view).get(tags.CLUSTER_ID) == cluster.id

    return ensure(f"{kind} {name}", find=existing.finder(kind, is_meant), create=existing.creator(kind, body))


def _ensure_schedule(api: Api, cluster: CloudCluster, pool_id: str, ensure: Ensure) -> None:
    """Have the pool's one autoscaling configuration set it to 0 machines at the end of the cluster's time."""
    kind = KINDS["autoscaling-configuration"]

    def find() -> str | None:
        views = list_kind(api, "autoscaling-configuration")
        return next((str(view["id"]) for view in views if view["resource"].get("id") == pool_id), None)

    def create(token: str) -> str:
        body = requests.autoscaling_configuration(cluster, pool_id, acts_at(cluster), api.compartment)
        return str(api.call(kind.operation("create"), body, opc_retry_token=token)["id"])

    configuration_id = ensure(f"autoscaling-configuration of {pool_id}", find=find, create=create)
    view: Json = api.call(kind.operation("get"), configuration_id)
    if not view.get("isEnabled"):
        api.call(
            "autoscaling.update_auto_scaling_configuration", configuration_id, {"isEnabled": True}, again=True
        )
    policy = requests.scheduled_policy(acts_at(cluster))
    policies = list(view.get("policies") or ())
    if any(_end_of(candidate) == acts_at(cluster) for candidate in policies):
        return
    ours = next(
        (candidate for candidate in policies if candidate.get("displayName") == policy["displayName"]), None
    )
    if ours is None:
        api.call("autoscaling.create_auto_scaling_policy", configuration_id, policy)
    else:
        api.call("autoscaling.update_auto_scaling_policy", configuration_id, ours["id"], policy, again=True)


def _end_of(policy: Mapping[str, object]) -> datetime | None:
    """Return the time at which a policy sets its pool to 0. `None`: another policy."""
    capacity, schedule = policy.get("capacity"), policy.get("executionSchedule")
    if not isinstance(capacity, Mapping) or not isinstance(schedule, Mapping):
        return None
    if not policy.get("isEnabled") or capacity.get("initial") != 0 or schedule.get("timezone") != "UTC":
        return None
    return requests.read_cron(str(schedule.get("expression")))
