"""The end of a cluster's machines by OCI itself: an instance pool that a schedule sets to no machines.

A shutdown from the machine's own system ends no bill on OCI, whatever the shape. When a schedule sets the size of an
instance pool to 0, OCI terminates its machines, with every computer of ours shut and no credential on the machines.
Sources: https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/restartinginstance.htm (billing of a stop),
https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/autoscalinginstancepools.htm (scaling in terminates).

A pool replaces a member that somebody terminates: machines of a pool are ended through it (`end_members`).
"""

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from provision.cloud import tags
from provision.cloud.interface import Ensure
from provision.cloud.records import CloudCluster, Infrastructure, Instance, Offer, ScheduledEnd, Zone
from provision.errors import BadCredentials, Blocked, CloudError, Gone
from provision.oci import requests
from provision.oci.api import Api, Json
from provision.oci.description import has_autoscaling
from provision.oci.resources.resource_types import GOING, GONE, KINDS, is_live, list_kind, tags_of
from provision.retry import PollWaits

SCALING_TIMEOUT_S = 900.0
"""Longest wait for a pool that is scaling, and refuses other changes until it is done."""


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
    Raises CloudError where OCI refuses a part of it; machines that joined before stay guarded.
    """
    if not has_autoscaling(api.credentials.region):
        raise CloudError(
            f"OCI's autoscaling is not available in {api.credentials.region}, so no schedule can end machines there.",
            operation="create_auto_scaling_configuration",
        )
    zone = machines[0].zone
    pool_id = _ensure_pool(api, cluster, offer, infrastructure, zone, ensure)
    _ensure_schedule(api, cluster, pool_id, ensure)
    members = _members(api, pool_id)
    joining = [machine.id for machine in machines if machine.id not in members]
    if joining:
        ensure.say(
            f"adding the machines to an instance pool, whose schedule ends them at {acts_at(cluster)} …"
        )
    for machine_id in joining:
        _attach(api, pool_id, machine_id)


def scheduled(api: Api, cluster_id: str) -> tuple[ScheduledEnd, ...]:
    """Return the ends that OCI has scheduled for machines of a cluster, as OCI describes them now."""
    pools = {view["id"]: view for view in _pools(api) if tags_of(view).get(tags.CLUSTER_ID) == cluster_id}
    if not pools:
        return ()
    ends: list[ScheduledEnd] = []
    for summary in list_kind(api, "autoscaling-configuration"):
        pool_id = str((summary.get("resource") or {}).get("id"))
        if pool_id in pools and summary.get("isEnabled"):
            view = api.call(KINDS["autoscaling-configuration"].operation("get"), summary["id"])
            times = [time for policy in view.get("policies") or () if (time := _end_of(policy))]
            if times:
                ends.append(ScheduledEnd(at=min(times), machines=frozenset(_members(api, pool_id))))
    return tuple(ends)


def end_members(api: Api, ids: Collection[str]) -> frozenset[str]:
    """Have the instance pools of ours end those of the machines that are their members. Returns these.

    A pool of which all machines are to end is terminated with them; of another one only these leave and are
    terminated, and its size shrinks with them. So no pool makes a machine in their place.
    """
    ending: set[str] = set()
    for pool in _pools(api):
        members = _members(api, pool["id"])
        chosen = sorted(members & set(ids))
        if members and len(chosen) == len(members):
            _terminate(api, pool["id"])
        else:
            for machine_id in chosen:
                _detach(api, pool["id"], machine_id)
        ending |= set(chosen)
    return frozenset(ending)


def forget_ended(api: Api, cluster_id: str, alive: Collection[str]) -> None:
    """Have the cluster's pools forget members that are not alive, so that they make no machine in their place.

    A machine that a pool is making already is waited for, and then listed as any other: the caller ends what no
    rank needs. Raises Blocked where a pool does not come to rest.
    """
    for pool in _pools(api):
        if tags_of(pool).get(tags.CLUSTER_ID) == cluster_id:
            _wait_until_scaled(api, pool["id"])
            for machine_id in sorted(_members(api, pool["id"]) - set(alive)):
                _detach(api, pool["id"], machine_id)
            _wait_until_whole(api, pool["id"])


def acts_at(cluster: CloudCluster) -> str:
    """Return the time at which the schedule acts: the end of the cluster's time, rounded up to a minute."""
    assert cluster.expires_at is not None
    return minute_of(cluster.expires_at).isoformat(timespec="seconds")


def minute_of(expires_at: str) -> datetime:
    """Return the first whole minute that is not before a time in ISO 8601: schedules of OCI know no seconds."""
    end = datetime.fromisoformat(expires_at).astimezone(UTC)
    minute = end.replace(second=0, microsecond=0)
    return minute if minute == end else minute + timedelta(minutes=1)


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
    pool_id = _ensure(api, cluster, "instance-pool", pool, ensure)
    _wait_until_scaled(api, pool_id)
    return pool_id


def _ensure(api: Api, cluster: CloudCluster, kind: str, body: Json, ensure: Ensure) -> str:
    """Return the id of the cluster's resource with the display name of `body`: found, or created."""
    name = body["displayName"]

    def find() -> str | None:
        views = [view for view in list_kind(api, kind) if is_live(view) and view.get("displayName") == name]
        ids = [str(view["id"]) for view in views if tags_of(view).get(tags.CLUSTER_ID) == cluster.id]
        return min(ids, default=None)

    def create(token: str) -> str:
        view = api.settled(lambda: api.call(KINDS[kind].operation("create"), body, opc_retry_token=token))
        return str(view["id"])

    return ensure(f"{kind} {name}", find=find, create=create)


def _ensure_schedule(api: Api, cluster: CloudCluster, pool_id: str, ensure: Ensure) -> None:
    """Have the pool's one autoscaling configuration set it to 0 machines at the end of the cluster's time."""
    kind = KINDS["autoscaling-configuration"]

    def find() -> str | None:
        views = list_kind(api, "autoscaling-configuration")
        return next((str(view["id"]) for view in views if view["resource"].get("id") == pool_id), None)

    def create(token: str) -> str:
        body = requests.autoscaling_configuration(
            cluster, pool_id, minute_of(acts_at(cluster)), api.compartment
        )
        return str(api.call(kind.operation("create"), body, opc_retry_token=token)["id"])

    configuration_id = ensure(f"autoscaling-configuration of {pool_id}", find=find, create=create)
    view: Json = api.call(kind.operation("get"), configuration_id)
    if not view.get("isEnabled"):
        api.call(
            "autoscaling.update_auto_scaling_configuration", configuration_id, {"isEnabled": True}, again=True
        )
    policy = requests.scheduled_policy(minute_of(acts_at(cluster)))
    policies = list(view.get("policies") or ())
    if any(_end_of(found) == acts_at(cluster) for found in policies):
        return
    ours = next((found for found in policies if found.get("displayName") == policy["displayName"]), None)
    if ours is None:
        api.call("autoscaling.create_auto_scaling_policy", configuration_id, policy)
    else:
        api.call("autoscaling.update_auto_scaling_policy", configuration_id, ours["id"], policy, again=True)


def _end_of(policy: Mapping[str, object]) -> str | None:
    """Return the time at which a policy sets its pool to 0, ISO 8601, UTC. None: it does not."""
    capacity, schedule = policy.get("capacity"), policy.get("executionSchedule")
    if not isinstance(capacity, Mapping) or not isinstance(schedule, Mapping):
        return None
    if not policy.get("isEnabled") or capacity.get("initial") != 0 or schedule.get("timezone") != "UTC":
        return None
    end = requests.read_cron(str(schedule.get("expression")))
    return None if end is None else end.isoformat(timespec="seconds")


def _pools(api: Api) -> list[Json]:
    """Return the live instance pools of ours in the compartment."""
    views = list_kind(api, "instance-pool")
    return [view for view in views if is_live(view) and tags.is_clusters(tags_of(view))]


def _members(api: Api, pool_id: str) -> set[str]:
    """Return the ids of the machines of a pool; empty for a pool that is gone."""
    try:
        views = api.listed("management.list_instance_pool_instances", instance_pool_id=pool_id)
    except Gone:
        if any(view["id"] == pool_id and is_live(view) for view in list_kind(api, "instance-pool")):
            raise
        return set()
    return {str(view["id"]) for view in views}


def _attach(api: Api, pool_id: str, machine_id: str) -> None:
    """Add a machine to a pool, which grows by it."""

    def send(token: str) -> None:
        body = {"instanceId": machine_id}
        api.call("management.attach_instance_pool_instance", pool_id, body, opc_retry_token=token)

    _change(api, pool_id, send, lambda: machine_id in _members(api, pool_id))


def _detach(api: Api, pool_id: str, machine_id: str) -> None:
    """Terminate a machine and take it out of its pool, which shrinks by it."""

    def send(token: str) -> None:
        body = {"instanceId": machine_id, "isDecrementSize": True, "isAutoTerminate": True}
        api.call("management.detach_instance_pool_instance", pool_id, body, opc_retry_token=token)

    _change(api, pool_id, send, lambda: machine_id not in _members(api, pool_id))


def _terminate(api: Api, pool_id: str) -> None:
    """Terminate a pool with its machines."""

    def send(token: str) -> None:  # noqa: ARG001 - the call takes none
        api.call(KINDS["instance-pool"].operation("delete"), pool_id, again=True)

    _change(api, pool_id, send, lambda: _state(api, pool_id) in GOING | GONE, settles=False)


def _change(
    api: Api, pool_id: str, send: Callable[[str], None], is_done: Callable[[], bool], *, settles: bool = True
) -> None:
    """Send a change until OCI takes it, as a pool that is scaling refuses it, and wait until the pool has settled.

    `send` takes a token. Raises the refusal where `is_done` does not see the change.
    """
    deadline = api.clock.now() + SCALING_TIMEOUT_S
    waits = PollWaits()
    while True:
        try:
            send(secrets.token_hex(16))
            break
        except BadCredentials:
            raise
        except CloudError as error:
            if is_done():
                break
            if not isinstance(error, Blocked) or api.clock.now() > deadline:
                raise
        api.clock.sleep(waits.next())
    if settles:
        _wait_until_scaled(api, pool_id)


def _wait_until_scaled(api: Api, pool_id: str) -> None:
    """Wait until a pool takes the next change. Raises Blocked at the deadline."""
    deadline = api.clock.now() + SCALING_TIMEOUT_S
    waits = PollWaits()
    while (state := _state(api, pool_id)) in ("PROVISIONING", "SCALING"):
        if api.clock.now() > deadline:
            raise Blocked(f"The instance pool {pool_id} is still {state}.", code=state)
        api.clock.sleep(waits.next())


def _wait_until_whole(api: Api, pool_id: str) -> None:
    """Wait until a pool has as many machines as its size says: one that lacks some is about to make them."""
    deadline = api.clock.now() + SCALING_TIMEOUT_S
    waits = PollWaits()
    while (size := int(api.call(KINDS["instance-pool"].operation("get"), pool_id)["size"])) > len(
        _members(api, pool_id)
    ):
        if api.clock.now() > deadline:
            raise Blocked(f"The instance pool {pool_id} has less than its {size} machines.", code="NotWhole")
        api.clock.sleep(waits.next())
    _wait_until_scaled(api, pool_id)


def _state(api: Api, pool_id: str) -> str:
    """Return the state of a pool; TERMINATED for one that is gone."""
    try:
        view: Json = api.call(KINDS["instance-pool"].operation("get"), pool_id)
    except Gone:
        return "TERMINATED"
    return str(view.get("lifecycleState"))
