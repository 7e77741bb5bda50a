"""Node groups and their launch templates: one small machine for operators and Ray's head, the machines with GPUs."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from provision.aws.api import Api
from provision.aws.errors import KEY_REFUSED, key_hint
from provision.aws.infrastructure.find_or_create import named
from provision.aws.requests import filters, tagged
from provision.eks import names, requests
from provision.eks.infrastructure.auto_scaling import (
    NO_SCALING_GROUP,
    refusals,
    scaling_group,
    scaling_groups,
    schedule_end,
    surplus,
    terminate,
    want,
)
from provision.eks.infrastructure.control_plane import issues, once_settled
from provision.eks.lists import whole
from provision.errors import (
    Blocked,
    Capacity,
    CloudError,
    CreateFailed,
    Denied,
    Exists,
    Gone,
    Quota,
)
from provision.records import CloudCluster
from provision.rented import tags
from provision.rented.interface import Ensure
from provision.rented.managed_kubernetes.zones import remembered
from provision.waiting import Clock, Say, wait_until

GROUP_WITHIN_S = 2400.0
"""EKS itself gives up after about half an hour."""
DEGRADED_FOR_S = 300.0
"""So long a group may tell of a launch that failed, while its scaling group goes on trying."""
NO_CAPACITY = (
    "InsufficientInstanceCapacity",
    "UnfulfillableCapacity",
    "SpotMaxPriceTooLow",
    "no Spot capacity available",
)
"""What the reason of a scaling group has, where AWS has no such machine in the zone now."""
NO_QUOTA = ("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "InstanceLimitExceeded")
CHANGING = ("CREATING", "UPDATING")
"""Statuses in which EKS takes no change for now."""
FAILED = ("CREATE_FAILED", "DELETE_FAILED")
"""Statuses in which EKS takes no change any more."""


def ensure_template(
    api: Api, cluster: CloudCluster, group: str, ensure: Ensure, data: requests.Request
) -> str:
    """The id of a group's launch template with this data.

    One that an earlier `up` left may have other data: EKS makes its security group anew with each control plane.
    """
    name = names.template_name(cluster, group, names.digest(data))

    def find() -> str | None:
        which = tagged(tags.CLUSTER_ID, cluster.id)
        found = named(
            api.pages("describe_launch_templates", "LaunchTemplates", Filters=which),
            "LaunchTemplateName",
            name,
        )
        return None if found is None else str(found["LaunchTemplateId"])

    def create(token: str) -> str:
        wanted = requests.launch_template(cluster, name, data, token)
        answer = api.call("create_launch_template", again=True, settle=True, **wanted)
        return str(answer["LaunchTemplate"]["LaunchTemplateId"])

    return ensure(f"launch-template {name}", find=find, create=create)


def ensure_group(
    api: Api,
    clock: Clock,
    cluster: CloudCluster,
    group: str,
    ensure: Ensure,
    make: Callable[[str], requests.Request],
) -> None:
    """Have the node group made. `make` gives the request for a token."""

    def find() -> str | None:
        found = describe(api, cluster, group)
        return None if found is None or found["status"] == "DELETING" else group

    def create(token: str) -> str:
        try:
            once_settled(
                clock, lambda: api.call("create_nodegroup", service="eks", again=True, **make(token))
            )
        except (Blocked, Exists):
            if find() is None:
                raise
        return group

    ensure(f"node-group {group}", find=find, create=create)


def describe(api: Api, cluster: CloudCluster, group: str) -> Mapping[str, Any] | None:
    """What EKS says of a node group. None: it is not there."""
    try:
        answer = api.call(
            "describe_nodegroup",
            service="eks",
            clusterName=names.cluster_name(cluster),
            nodegroupName=group,
        )
    except Gone:
        return None
    found: Mapping[str, Any] = answer["nodegroup"]
    return found


def group_names(api: Api, cluster: CloudCluster) -> tuple[str, ...]:
    """Return the names of the cluster's node groups. Empty: it has none, or no control plane."""
    try:
        found = whole(api, "eks", "list_nodegroups", "nodegroups", clusterName=names.cluster_name(cluster))
    except Gone:
        return ()
    return tuple(sorted(found))


def gpu_groups(api: Api, cluster: CloudCluster) -> tuple[str, ...]:
    """Names of the groups of machines with GPUs that there are."""
    return tuple(group for group in group_names(api, cluster) if group != names.CPU_GROUP)


def scale(
    api: Api,
    clock: Clock,
    cluster: CloudCluster,
    group: str,
    count: int,
    say: Say,
    *,
    stay: Callable[[], Collection[str]],
    grows: bool = False,
    timeout_s: float = GROUP_WITHIN_S,
) -> None:
    """Have the group want so many machines, or fewer where it does and it `grows` not. Waits while EKS changes it.

    Where some are too many, those end that are not on an address that `stay` tells, the newest first: a scaling group
    left to itself ends the oldest. They may take minutes to end then. One that EKS could not make stays as it is.
    """
    told: set[str] = set()

    def look() -> tuple[bool | None, str]:
        found = describe(api, cluster, group)
        if found is None or found["status"] in FAILED:
            return True, ""
        status, settled = found["status"], found["scalingConfig"] == requests.scaling(count)
        if status in CHANGING:
            return (True if settled and status == "CREATING" else None), f"its status is {status}"
        if not count:
            if not settled:
                _resize(api, cluster, found, count)
            else:
                with suppress(Denied):  # who may not look has EKS's number
                    if scaling_group(api, found).wanted:
                        want(api, found, count)
            return True, ""
        now = scaling_group(api, found)
        there = (*now.coming, *now.in_service)
        if len(there) <= count:
            # After its time no action would end what starts, and this may have waited until then.
            wanted = count if grows and not is_over(cluster) else min(count, now.wanted)
            if now.wanted != wanted or found["scalingConfig"] != requests.scaling(wanted):
                _resize(api, cluster, found, wanted)
            return True, ""
        if told & set(there):
            return None, "Auto Scaling does not show yet that they end"
        if now.wanted > len(there):  # or it would start others for those that end
            _resize(api, cluster, found, len(there))
        elif now.wanted > count:  # else it ends the others itself
            for one in surplus(there, _machines(api, cluster, group), count, stay())[: now.wanted - count]:
                with remembered(told, one):
                    terminate(api, one)
        return None, f"{len(there) - count} machines have to end"

    def patiently() -> tuple[bool | None, str]:
        try:
            return look()
        except Blocked as error:
            return None, str(error)

    what = f"the change of the node group {group}"
    wait_until(what, patiently, timeout_s=timeout_s, clock=clock, say=say)


def size(api: Api, found: Mapping[str, Any]) -> int:
    """How many machines a node group wants, by Auto Scaling where it tells: EKS's number may be out of date."""
    if found["status"] not in (*CHANGING, *FAILED):
        with suppress(Denied):
            return scaling_group(api, found).wanted
    return int(found["scalingConfig"]["desiredSize"])


def _resize(api: Api, cluster: CloudCluster, found: Mapping[str, Any], count: int) -> None:
    """Have EKS change how many the node group wants; or its scaling group, where EKS would not.

    EKS's own number may be out of date, and the one that is wanted. EKS may refuse a change while a group is
    degraded, which lasts until a launch goes well.
    """
    if found["scalingConfig"] == requests.scaling(count):
        want(api, found, count)
        return
    try:
        api.call(
            "update_nodegroup_config",
            service="eks",
            again=True,
            clusterName=names.cluster_name(cluster),
            nodegroupName=found["nodegroupName"],
            scalingConfig=requests.scaling(count),
        )
    except CloudError as error:
        refused = isinstance(error, Blocked) or error.code == "InvalidRequestException"
        if found["status"] != "DEGRADED" or not refused:
            raise
        want(api, found, count)


def wait_gone(api: Api, clock: Clock, cluster: CloudCluster, group: str, count: int, say: Say) -> None:
    """Until no more than so many machines of the group are there: EKS tells only that it has begun to end them."""

    def look() -> tuple[bool | None, str]:
        there = len(_machines(api, cluster, group))
        return (True if there <= count else None), f"{there - count} of {there} are still there"

    what = f"the end of machines of the node group {group}"
    wait_until(what, look, timeout_s=GROUP_WITHIN_S, clock=clock, say=say)


def _machines(api: Api, cluster: CloudCluster, group: str) -> list[Mapping[str, Any]]:
    """The machines of the group that have not ended."""
    which = filters(instance_state_name=("pending", "running", "shutting-down", "stopping", "stopped"))
    which += tagged(tags.CLUSTER_ID, cluster.id) + tagged("Name", requests.node_name(cluster, group))
    found = api.pages("describe_instances", "Reservations", Filters=which)
    return [machine for reservation in found for machine in reservation["Instances"]]


def wait_group(
    api: Api,
    clock: Clock,
    cluster: CloudCluster,
    group: str,
    count: int,
    say: Say,
    *,
    earlier: Collection[str] = (),
) -> None:
    """Until `count` machines of the group run, and EKS has changed what it had to.

    As soon as EKS names their scaling groups, the machines' end is scheduled: the wait may be cut off. `earlier`:
    what went wrong before it was changed last, which says nothing of now. Raises Capacity or Quota as soon as
    AWS says that it has no machine, CreateFailed for what EKS gives up at. Any other launch that failed is told, and
    waited for: a scaling group tries again.
    """
    endless = {names.CPU_GROUP, group} if ends_by_itself(cluster) else set()
    degraded_since: float | None = None

    def look() -> tuple[bool | None, str]:
        nonlocal degraded_since
        found = describe(api, cluster, group)
        if found is None:
            return None, "EKS does not list it yet"
        for name in sorted(endless):
            told = found if name == group else describe(api, cluster, name)
            if told is not None and scaling_groups(told):
                schedule_end(api, cluster, told)
                endless.discard(name)
        status = found["status"]
        # EKS calls a group active that waits for machines, and degraded until it gets one after a launch that failed.
        made = status in ("ACTIVE", "DEGRADED")
        now = scaling_group(api, found) if made and count else NO_SCALING_GROUP
        running = len(now.in_service)
        # After its time, a cluster has none.
        if made and (running >= count or is_over(cluster)):
            return True, ""
        # What EKS tells comes minutes later than what Auto Scaling does, and may be of an earlier try.
        if status != "DEGRADED" or now.coming or issues(found) in earlier:
            degraded_since = None
        elif degraded_since is None:
            degraded_since = clock.now()
        lasts = degraded_since is not None and clock.now() - degraded_since >= DEGRADED_FOR_S
        if status in FAILED or lasts:
            raise failure(f"EKS could not make the node group {group}: {issues(found)}.")
        refused = [text for key, text in refusals(api, found).items() if key not in earlier]
        final = next(
            (text for text in refused if any(word in text for word in (*NO_CAPACITY, *NO_QUOTA))), None
        )
        if final is not None:
            raise failure(f"AWS could not start a machine of the node group {group}: {final}")
        there = f"{running} of {count} machines run" if made else f"its status is {status}"
        return None, "; ".join([there, *map(_with_hint, refused[:1])])

    wait_until(f"the node group {group}", look, timeout_s=GROUP_WITHIN_S, clock=clock, say=say)


def failure(text: str) -> CloudError | CreateFailed:
    """What a sentence of EKS or of a scaling group is, by the codes in it."""
    if any(word in text for word in NO_QUOTA):
        return Quota(text)
    return Capacity(text) if any(word in text for word in NO_CAPACITY) else CreateFailed(_with_hint(text))


def _with_hint(text: str) -> str:
    """Add which rights a key has to grant, where AWS ended a machine as the key of its disk may not be used."""
    return f"{text.rstrip('.')}. {key_hint(scaling=True)}" if KEY_REFUSED in text else text


def earlier_failures(api: Api, cluster: CloudCluster, group: str) -> Collection[str]:
    """What went wrong by now says nothing of what is asked for next: ids of launches, and what EKS tells."""
    found = describe(api, cluster, group)
    return () if found is None else {*refusals(api, found), issues(found)}


def ends_by_itself(cluster: CloudCluster) -> bool:
    """Whether its machines are to end at a time that has not come."""
    return cluster.expires_at is not None and not is_over(cluster)


def is_over(cluster: CloudCluster) -> bool:
    """Whether the time has come at which its machines were to end."""
    return cluster.expires_at is not None and datetime.fromisoformat(cluster.expires_at) <= datetime.now(UTC)
