"""The machines of instance pools: how a pool launches, attaches, detaches, replaces and terminates its members.

Each change keeps its pool in state SCALING (PROVISIONING, for a new one) until it is complete. Then `_settle`
compares the members with the size, and launches or terminates the difference.

Sources: https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/updatinginstancepool_topic-update-instance-pool-size.htm
(the order of scaling in), https://docs.oracle.com/en-us/iaas/compute-cloud-at-customer/topics/compute/creating-an-instance-pool.htm
(names; a pool without room stays SCALING), and how kubernetes/autoscaler handles that:
cluster-autoscaler/cloudprovider/oci/instancepools/oci_instance_pool_cache.go.
"""

import secrets
import string
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.fakes.oci import works
from tests.fakes.oci.api import View
from tests.fakes.oci.common import given
from tests.fakes.oci.errors import ApiError, incorrect_state, not_found
from tests.fakes.oci.instances import end_node, launch_node
from tests.fakes.oci.store import Cloud, Resource

KIND = "instancepool"
CONFIGURATION = "instanceconfiguration"


@dataclass(kw_only=True, eq=False)
class Member:
    """A machine of a pool, and the state of its membership."""

    instance: Resource
    state: str = "ATTACHING"


def new_pool(cloud: Cloud, view: View) -> Resource:
    """Add a pool, which launches its machines a moment later."""
    pool = cloud.add(
        KIND,
        view,
        state="PROVISIONING",
        own={"members": {}, "changes": 0, "size_by_schedule": None, "short": False, "retry_due": False},
    )
    _begin(cloud, pool)
    cloud.later(cloud.settings.scaling_s, partial(_complete, cloud, pool))
    return pool


def members_of(pool: Resource) -> dict[str, Member]:
    """Return the members of a pool by the OCIDs of their machines."""
    return pool.own["members"]


def pool_of(cloud: Cloud, instance: Resource) -> Resource | None:
    """Return the pool that a machine is a member of, if any."""
    pools = cloud.where(KIND)
    return next((pool for pool in pools if instance.id in members_of(pool)), None)


def must_be_idle(pool: Resource) -> None:
    """Refuse a change of a pool that is gone, ending, or has a change in progress."""
    if pool.state == "TERMINATED":
        raise not_found()
    if pool.own["changes"] or not pool.live:
        raise incorrect_state(f"The instance pool {pool.id} is in state {pool.state}.")


def attach(cloud: Cloud, pool: Resource, instance: Resource) -> Member:
    """Make a machine a member: the size grows by 1."""
    member = _add(cloud, pool, instance)
    cloud.change(pool, size=pool.view["size"] + 1)
    _begin(cloud, pool)
    cloud.later(cloud.settings.scaling_s, partial(_activate, cloud, pool, member))
    return member


def detach(cloud: Cloud, pool: Resource, member: Member, *, shrink: bool, terminate: bool) -> None:
    """Detach a machine from its pool, which replaces the machine unless the pool is to shrink."""
    member.state = "DETACHING"
    member.instance.own.pop("on_end", None)
    if shrink:
        cloud.change(pool, size=pool.view["size"] - 1)
    _begin(cloud, pool)

    def leave() -> None:
        members_of(pool).pop(member.instance.id)
        if terminate:
            end_node(cloud, member.instance)
        _complete(cloud, pool)

    cloud.later(cloud.settings.scaling_s, leave)


def resize(cloud: Cloud, pool: Resource, size: int) -> None:
    """Scale an idle pool to a size; nothing if it has that size."""
    if size == pool.view["size"] and not pool.own["short"]:
        return
    cloud.change(pool, size=size)
    _begin(cloud, pool)
    cloud.later(cloud.settings.scaling_s, partial(_complete, cloud, pool))


def resize_by_schedule(cloud: Cloud, pool: Resource, size: int) -> None:
    """Scale a pool now, or as soon as its changes in progress are complete."""
    if not pool.live:
        return
    if pool.own["changes"]:
        pool.own["size_by_schedule"] = size
    else:
        resize(cloud, pool, size)


def terminate(cloud: Cloud, pool: Resource) -> None:
    """End a pool with all its machines and their boot volumes."""
    cloud.become(pool, "TERMINATING")
    if not members_of(pool):
        cloud.later(cloud.settings.terminate_s, partial(_end, cloud, pool))
    for member in members_of(pool).values():
        end_node(cloud, member.instance)


def _end(cloud: Cloud, pool: Resource) -> None:
    cloud.become(pool, "TERMINATED")
    if on_end := pool.own.pop("on_end", None):
        on_end()
    cloud.later(cloud.settings.terminate_s, lambda: cloud.forget(pool))


def _begin(cloud: Cloud, pool: Resource) -> None:
    pool.own["changes"] += 1
    if pool.state != "PROVISIONING":
        cloud.become(pool, "SCALING")


def _complete(cloud: Cloud, pool: Resource) -> None:
    pool.own["changes"] -= 1
    if not pool.own["changes"]:
        _settle(cloud, pool)


def _settle(cloud: Cloud, pool: Resource) -> None:
    if not pool.live:
        return
    if (scheduled := pool.own["size_by_schedule"]) is not None:
        pool.own["size_by_schedule"] = None
        cloud.change(pool, size=scheduled)
    pool.own["short"] = False
    missing = pool.view["size"] - len(members_of(pool))
    if missing > 0:
        _scale_out(cloud, pool, missing)
    elif missing < 0:
        _scale_in(cloud, pool, -missing)
    if not pool.own["changes"] and not pool.own["short"]:
        cloud.become(pool, "RUNNING")


def _scale_out(cloud: Cloud, pool: Resource, count: int) -> None:
    """Launch machines. Without room for all of them the pool stays SCALING, and retries after a while."""
    work = works.start(cloud, "LaunchInstancesInPool", pool, "CREATED")
    works.go(cloud, work)
    for _ in range(count):
        try:
            instance = launch_node(cloud, _next_launch(cloud, pool))
        except ApiError as error:
            works.fail(cloud, work, error.code, error.message)
            _retry_later(cloud, pool)
            return
        member = _add(cloud, pool, instance)
        _begin(cloud, pool)
        cloud.later(cloud.settings.launch_s, partial(_activate, cloud, pool, member))
    works.done(cloud, work)


def _retry_later(cloud: Cloud, pool: Resource) -> None:
    pool.own["short"] = True
    if pool.state != "PROVISIONING":
        cloud.become(pool, "SCALING")
    if pool.own["retry_due"]:
        return

    def retry() -> None:
        pool.own["retry_due"] = False
        # With a change in progress, its completion compares members and size anyway.
        if pool.own["short"] and not pool.own["changes"]:
            _settle(cloud, pool)

    pool.own["retry_due"] = True
    cloud.later(cloud.settings.launch_s, retry)


def _scale_in(cloud: Cloud, pool: Resource, count: int) -> None:
    """Terminate machines: of the fullest availability domain, of its fullest fault domain, the oldest first."""
    for _ in range(count):
        remaining = [member for member in members_of(pool).values() if member.state != "DETACHING"]
        member = max(remaining, key=lambda member: _rank_to_end(remaining, member))
        member.state = "DETACHING"
        _begin(cloud, pool)
        end_node(cloud, member.instance)


def _rank_to_end(members: list[Member], member: Member) -> tuple[bool, int, int, int]:
    """Return a key that is highest for the machine to terminate first; a machine that is ending counts as such."""
    domain, fault = _place(member)
    places = [_place(other) for other in members]
    in_domain = sum(place[0] == domain for place in places)
    return not member.instance.live, in_domain, places.count((domain, fault)), -member.instance.number


def _place(member: Member) -> tuple[str, str]:
    view = member.instance.view
    return view["availabilityDomain"], view["faultDomain"]


def _add(cloud: Cloud, pool: Resource, instance: Resource) -> Member:
    member = Member(instance=instance)
    members_of(pool)[instance.id] = member
    instance.own["on_end"] = partial(_lose, cloud, pool, member)
    return member


def _activate(cloud: Cloud, pool: Resource, member: Member) -> None:
    if member.state == "ATTACHING":
        member.state = "ACTIVE"
    _complete(cloud, pool)


def _lose(cloud: Cloud, pool: Resource, member: Member) -> None:
    """Remove a machine that ended, by whomever. The pool replaces it unless it ended the machine itself."""
    members_of(pool).pop(member.instance.id)
    if pool.state == "TERMINATING":
        if not members_of(pool):
            _end(cloud, pool)
    elif member.state == "DETACHING":
        _complete(cloud, pool)
    else:
        _begin(cloud, pool)
        cloud.later(cloud.settings.scaling_s, partial(_complete, cloud, pool))


def _next_launch(cloud: Cloud, pool: Resource) -> View:
    """Return the launch of the pool's next machine, in the placement with the fewest machines."""
    configuration = cloud.get(CONFIGURATION, pool.view["instanceConfigurationId"])
    places = [_place(member) for member in members_of(pool).values()]
    placement = min(
        pool.view["placementConfigurations"],
        key=lambda placement: sum(place[0] == placement["availabilityDomain"] for place in places),
    )
    faults = placement.get("faultDomains") or [None]
    fault = min(faults, key=lambda fault: places.count((placement["availabilityDomain"], fault)))
    return launch_body(configuration, pool.view, placement) | given({"faultDomain": fault})


def launch_body(configuration: Resource, pool: View, placement: View) -> View:
    """Return the launch of a machine of a pool: its configuration, overridden by the placement."""
    details: dict[str, Any] = given(configuration.view["instanceDetails"].get("launchDetails") or {})
    label = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(5))
    vnic = given(details.get("createVnicDetails") or {}) | given({"subnetId": subnet_of(placement)})
    return {
        "compartmentId": pool["compartmentId"],
        **details,
        "availabilityDomain": placement["availabilityDomain"],
        "displayName": f"inst-{label}-{pool['displayName']}",
        "createVnicDetails": vnic,
        **given({"computeClusterId": placement.get("computeClusterId")}),
    }


def subnet_of(placement: View) -> str | None:
    """Return the OCID of a placement's primary subnet, if it has one."""
    subnets = placement.get("primaryVnicSubnets") or {}
    return placement.get("primarySubnetId") or subnets.get("subnetId")
