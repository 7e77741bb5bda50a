"""Autoscaling configurations of instance pools, and their schedules.

A schedule acts by the fake's calendar: the clock of this machine, and what tests have advanced it.

Sources: https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/autoscalinginstancepools.htm (one configuration a
pool, at most 50 scheduled policies), the SDK's models (`initial` is the size of a scheduled policy, seconds are 0),
https://docs.oracle.com/en-us/iaas/compute-cloud-at-customer/topics/compute/multiple-schedule-management.htm (policies
at the same time; OCI's software at a customer's site),
https://docs.oracle.com/iaas/tools/oci-cli/3.6.1/oci_cli_docs/cmdref/autoscaling.html (US Government).
"""

from datetime import UTC, datetime
from functools import partial

from tests.fakes.oci import cron
from tests.fakes.oci.account import is_government
from tests.fakes.oci.api import Handler, Reply, Request, View, page, shown
from tests.fakes.oci.common import given, in_compartment, named
from tests.fakes.oci.errors import conflict, invalid, missing, not_found
from tests.fakes.oci.pool_members import KIND as POOL
from tests.fakes.oci.pool_members import resize_by_schedule
from tests.fakes.oci.store import PART_SHARE, Cloud, Resource, must_be_live

KIND = "autoscalingconfiguration"
POLICY = "autoscalingpolicy"
MAX_POLICIES = 50
SCHEDULED = "scheduled"


def create_configuration(cloud: Cloud, request: Request) -> Reply:
    """CreateAutoScalingConfiguration: one a pool."""
    body = request.body
    in_compartment(cloud, body)
    pool = cloud.get(POOL, body["resource"]["id"])
    must_be_live(pool, "The instance pool")
    for other in cloud.where(KIND):
        if other.view["resource"]["id"] == pool.id:
            raise conflict(f"The instance pool {pool.id} has the autoscaling configuration {other.id}.")
    if not 1 <= len(body["policies"]) <= MAX_POLICIES:
        raise invalid(f"policies has {len(body['policies'])} entries; 1 to {MAX_POLICIES} are allowed")
    for policy in body["policies"]:
        _check_policy(cloud, policy)
    configuration = cloud.add(
        KIND,
        {
            **named(body, KIND, len(cloud.all(KIND)) + 1),
            "resource": body["resource"],
            "isEnabled": body.get("isEnabled") is not False,
            "coolDownInSeconds": body.get("coolDownInSeconds"),
        },
    )
    for policy in body["policies"]:
        _add_policy(cloud, configuration, policy)
    pool.own["on_end"] = partial(_remove_later, cloud, configuration)
    return shown(configuration, made=True)


def _remove_later(cloud: Cloud, configuration: Resource) -> None:
    cloud.later(cloud.settings.terminate_s * PART_SHARE, lambda: _remove(cloud, configuration))


def _remove(cloud: Cloud, configuration: Resource) -> None:
    for policy in _policies(cloud, configuration):
        cloud.forget(policy)
    cloud.forget(configuration)


def get_configuration(cloud: Cloud, request: Request) -> Reply:
    """GetAutoScalingConfiguration: with its policies."""
    return shown(cloud.get(KIND, request.target))


def list_configurations(cloud: Cloud, request: Request) -> Reply:
    """ListAutoScalingConfigurations: without their policies."""
    rows = [
        (number, {name: value for name, value in view.items() if name != "policies"})
        for number, view in cloud.rows(KIND)
    ]
    return page(request, rows, size=cloud.settings.page_size)


def update_configuration(cloud: Cloud, request: Request) -> Reply:
    """UpdateAutoScalingConfiguration: name, tags, and whether its policies act."""
    configuration = cloud.get(KIND, request.target)
    cloud.change(configuration, **given(request.body))
    return shown(configuration, made=True)


def delete_configuration(cloud: Cloud, request: Request) -> Reply:
    """DeleteAutoScalingConfiguration: its pool stays as it is."""
    configuration = cloud.get(KIND, request.target)
    pool = cloud.any(configuration.view["resource"]["id"])
    if pool is not None:
        pool.own.pop("on_end", None)
    _remove(cloud, configuration)
    return Reply(status=204)


def create_policy(cloud: Cloud, request: Request) -> Reply:
    """CreateAutoScalingPolicy: one more schedule of a configuration."""
    configuration = cloud.get(KIND, request.target)
    if len(_policies(cloud, configuration)) >= MAX_POLICIES:
        raise invalid(f"The autoscaling configuration {configuration.id} has {MAX_POLICIES} policies.")
    _check_policy(cloud, request.body)
    return shown(_add_policy(cloud, configuration, request.body), made=True)


def update_policy(cloud: Cloud, request: Request) -> Reply:
    """UpdateAutoScalingPolicy: a new schedule begins to count now."""
    policy = _policy(cloud, request)
    changes = given(request.body)
    _check_policy(cloud, policy.view | changes, new="executionSchedule" in changes)
    cloud.change(policy, **changes)
    if "executionSchedule" in changes:
        _plan(cloud, policy)
    _show_policies(cloud, cloud.get(KIND, request.path["autoScalingConfigurationId"]))
    return shown(policy, made=True)


def _policies(cloud: Cloud, configuration: Resource) -> list[Resource]:
    return [policy for policy in cloud.all(POLICY) if policy.own["configuration"] is configuration]


def _policy(cloud: Cloud, request: Request) -> Resource:
    configuration = cloud.get(KIND, request.path["autoScalingConfigurationId"])
    policy = cloud.get(POLICY, request.path["autoScalingPolicyId"])
    if policy.own["configuration"] is not configuration:
        raise not_found()
    return policy


def _add_policy(cloud: Cloud, configuration: Resource, body: View) -> Resource:
    view = {
        "displayName": body.get("displayName") or f"{POLICY}{len(cloud.all(POLICY)) + 1:06d}",
        "policyType": body["policyType"],
        "isEnabled": body.get("isEnabled") is not False,
        "capacity": given(body["capacity"]),
        "executionSchedule": body["executionSchedule"],
    }
    policy = cloud.add(POLICY, view, own={"configuration": configuration, "next": None})
    _plan(cloud, policy)
    _show_policies(cloud, configuration)
    return policy


def _show_policies(cloud: Cloud, configuration: Resource) -> None:
    cloud.change(configuration, policies=[policy.view for policy in _policies(cloud, configuration)])


def _check_policy(cloud: Cloud, body: View, *, new: bool = True) -> None:
    """Refuse a policy that this service does not have, and a schedule that never acts."""
    if body["policyType"] != SCHEDULED:
        raise invalid(f"policyType: this service has no policies of type {body['policyType']}")
    if body.get("resourceAction"):
        raise invalid("resourceAction: this service has no power actions")
    size = (body.get("capacity") or {}).get("initial")
    if size is None:
        raise missing("capacity.initial is required")
    if size < 0:
        raise invalid(f"capacity.initial must be at least 0: {size}")
    schedule = body["executionSchedule"]
    if new and cron.parse(schedule["expression"]).next_after(_now(cloud)) is None:
        raise invalid(f"executionSchedule.expression '{schedule['expression']}' never acts")


def _now(cloud: Cloud) -> datetime:
    return datetime.fromtimestamp(cloud.control.calendar_s(), UTC)


def _plan(cloud: Cloud, policy: Resource) -> None:
    """Note when a policy acts next, and look again at that time."""
    expression = policy.view["executionSchedule"]["expression"]
    policy.own["next"] = cron.parse(expression).next_after(_now(cloud))
    _wake(cloud, policy)


def _wake(cloud: Cloud, policy: Resource) -> None:
    if policy.own["next"] is not None:
        wait_s = (policy.own["next"] - _now(cloud)).total_seconds()
        cloud.timers.after(max(0.0, wait_s), lambda: run_schedules(cloud))


def run_schedules(cloud: Cloud) -> None:
    """Run the policies whose time has come, in the order of their times.

    Of policies with the same time only the one with the largest size runs.
    """
    with cloud.lock:
        now = _now(cloud)
        due = [policy for policy in cloud.all(POLICY) if policy.own["next"] and policy.own["next"] <= now]
        acting: dict[tuple[datetime, str], Resource] = {}
        for policy in sorted(due, key=_size):
            configuration: Resource = policy.own["configuration"]
            if configuration.view["isEnabled"] and policy.view["isEnabled"]:
                acting[policy.own["next"], configuration.view["resource"]["id"]] = policy
            _plan(cloud, policy)
        for (_, pool_id), policy in sorted(acting.items(), key=lambda entry: entry[0]):
            if (pool := cloud.any(pool_id)) is not None:
                resize_by_schedule(cloud, pool, _size(policy))


def _size(policy: Resource) -> int:
    return policy.view["capacity"]["initial"]


def advance(cloud: Cloud) -> None:
    """Follow a calendar that tests have advanced."""
    with cloud.lock:
        run_schedules(cloud)
        for policy in cloud.all(POLICY):
            _wake(cloud, policy)


def _outside_government(handler: Handler) -> Handler:
    def handle(cloud: Cloud, request: Request) -> Reply:
        if is_government(cloud.account.region):
            raise not_found()
        return handler(cloud, request)

    return handle


HANDLERS: dict[str, Handler] = {
    name: _outside_government(handler)
    for name, handler in {
        "CreateAutoScalingConfiguration": create_configuration,
        "GetAutoScalingConfiguration": get_configuration,
        "ListAutoScalingConfigurations": list_configurations,
        "UpdateAutoScalingConfiguration": update_configuration,
        "DeleteAutoScalingConfiguration": delete_configuration,
        "CreateAutoScalingPolicy": create_policy,
        "UpdateAutoScalingPolicy": update_policy,
    }.items()
}
