"""The control plane, who may use it, and its add-ons."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from provision.aws.api import SETTLE_S, Api
from provision.eks import names, requests
from provision.eks.infrastructure.roles import partition_of, refuse_strangers
from provision.eks.lists import whole
from provision.errors import Blocked, CloudError, CreateFailed, Exists, Gone
from provision.records import CloudCluster
from provision.rented.interface import Ensure
from provision.waiting import Clock, PollWaits, Say, wait_until

ACTIVE_WITHIN_S = 2400.0
ADDON_WITHIN_S = 1200.0
NOT_SETTLED = ("InvalidParameterException", "InvalidRequestException")
"""What EKS says of a role that IAM made a moment ago."""


def ensure_control_plane(
    api: Api,
    clock: Clock,
    cluster: CloudCluster,
    role_arn: str,
    subnets: Sequence[str],
    group: str,
    ensure: Ensure,
) -> str:
    """Its name; it may be seconds old. Raises Exists for one of that name that is not this cluster's."""
    name = names.cluster_name(cluster)

    def find() -> str | None:
        found = describe(api, cluster)
        return None if found is None or found["status"] == "DELETING" else name

    def create(token: str) -> str:
        wanted = requests.control_plane(cluster, role_arn, subnets, group, token)
        try:
            once_settled(clock, lambda: api.call("create_cluster", service="eks", again=True, **wanted))
        except (Blocked, Exists):
            if find() is None:
                raise
        return name

    return ensure("kubernetes-cluster", find=find, create=create)


def describe(api: Api, cluster: CloudCluster) -> Mapping[str, Any] | None:
    """What EKS says of it. None: it is not there. Raises Exists where it is somebody else's."""
    name = names.cluster_name(cluster)
    try:
        found: Mapping[str, Any] = api.call("describe_cluster", service="eks", name=name)["cluster"]
    except Gone:
        return None
    refuse_strangers(cluster, f"Kubernetes cluster {name}", found.get("tags", {}))
    return found


def wait_active(api: Api, clock: Clock, cluster: CloudCluster, say: Say) -> Mapping[str, Any]:
    """What EKS says of it once it works. Raises CreateFailed."""

    def look() -> tuple[Mapping[str, Any] | None, str]:
        found = describe(api, cluster)
        if found is None:
            return None, "EKS does not list it yet"
        if found["status"] == "FAILED":
            raise CreateFailed(
                f"EKS could not make the control plane: {issues(found)}. `gpuctl down --cluster {cluster.name}` "
                "removes what is there."
            )
        return (
            found if found["status"] in ("ACTIVE", "UPDATING") else None
        ), f"its status is {found['status']}"

    what = "the control plane, which takes EKS about ten minutes"
    return wait_until(what, look, timeout_s=ACTIVE_WITHIN_S, clock=clock, say=say)


def public_cidrs(found: Mapping[str, Any]) -> tuple[str, ...]:
    """From where the API server is reached, beside the VPC."""
    return tuple(found["resourcesVpcConfig"].get("publicAccessCidrs") or ())


def let_in(
    api: Api, clock: Clock, cluster: CloudCluster, found: Mapping[str, Any], say: Say
) -> Mapping[str, Any]:
    """Have the API server reached from `ssh_cidrs` alone; what EKS says of it then. It takes minutes."""
    if set(public_cidrs(found)) == set(cluster.ssh_cidrs):
        return found

    def look() -> tuple[Mapping[str, Any] | None, str]:
        now = describe(api, cluster)
        if now is None or now["status"] != "ACTIVE":  # a change of before, or ours
            return None, f"its status is {now['status'] if now else 'not listed'}"
        if set(public_cidrs(now)) == set(cluster.ssh_cidrs):
            return now, ""
        try:
            api.call("update_cluster_config", service="eks", again=True, **requests.access(cluster))
        except CloudError as error:
            # EKS still changes something, or is "already at the desired configuration": an answer was lost.
            if not isinstance(error, Blocked) and "already" not in str(error):
                raise
            return None, str(error)
        return None, "EKS has begun"

    what = f"the API server to let in {', '.join(cluster.ssh_cidrs)}"
    return wait_until(what, look, timeout_s=ACTIVE_WITHIN_S, clock=clock, say=say)


def issues(found: Mapping[str, Any]) -> str:
    """What EKS says that is wrong with something of it."""
    told = [f"{one['code']}: {one['message']}" for one in found.get("health", {}).get("issues", [])]
    return "; ".join(told) or "it gives no reason"


def ensure_access(api: Api, cluster: CloudCluster, ensure: Ensure) -> None:
    """Let whoever calls use the API server: who made the cluster may already, a colleague may not."""
    principal = principal_of(api)
    name = names.cluster_name(cluster)

    def entries() -> str | None:
        found = whole(api, "eks", "list_access_entries", "accessEntries", clusterName=name)
        return principal if principal in found else None

    def create(token: str) -> str:
        with contextlib.suppress(Blocked, Exists):  # somebody was faster
            api.call(
                "create_access_entry",
                service="eks",
                again=True,
                **requests.access_entry(cluster, principal, token),
            )
        return principal

    if entries() is None:
        ensure(f"access {principal}", find=entries, create=create)
    policies = whole(
        api,
        "eks",
        "list_associated_access_policies",
        "associatedAccessPolicies",
        clusterName=name,
        principalArn=principal,
    )
    wanted = requests.admin(cluster, principal, partition_of(principal))
    if wanted["policyArn"] not in {policy["policyArn"] for policy in policies}:
        api.call("associate_access_policy", service="eks", again=True, **wanted)


def principal_of(api: Api) -> str:
    """The ARN of who calls, as IAM knows it: of an assumed role, the role's."""
    arn = str(api.call("get_caller_identity", service="sts")["Arn"])
    kind, _, rest = arn.rpartition(":")[2].partition("/")
    if kind != "assumed-role":
        return arn
    # The session's ARN lacks the role's path, as that of roles for single sign-on.
    return str(api.call("get_role", service="iam", RoleName=rest.partition("/")[0])["Role"]["Arn"])


def ensure_addons(api: Api, cluster: CloudCluster, ensure: Ensure) -> None:
    """All add-ons, asked for."""
    for name in requests.ADDONS:
        _ensure_addon(api, cluster, name, ensure)


def _ensure_addon(api: Api, cluster: CloudCluster, name: str, ensure: Ensure) -> None:
    def find() -> str | None:
        return None if _addon(api, cluster, name) is None else name

    def create(token: str) -> str:
        try:
            api.call("create_addon", service="eks", again=True, **requests.addon(cluster, name, token))
        except (Blocked, Exists):
            if find() is None:
                raise
        return name

    ensure(f"add-on {name}", find=find, create=create)


def _addon(api: Api, cluster: CloudCluster, name: str) -> Mapping[str, Any] | None:
    try:
        answer = api.call(
            "describe_addon", service="eks", clusterName=names.cluster_name(cluster), addonName=name
        )
    except Gone:
        return None
    found: Mapping[str, Any] = answer["addon"]
    return found


def wait_addons(api: Api, clock: Clock, cluster: CloudCluster, say: Say) -> None:
    """Until all of them work, which needs a node. Raises CreateFailed."""

    def look() -> tuple[bool | None, str]:
        waiting = []
        for name in requests.ADDONS:
            found = _addon(api, cluster, name)
            status = found["status"] if found else "not listed"
            if found and status == "CREATE_FAILED":
                raise CreateFailed(
                    f"EKS could not make the add-on {name}: {issues(found)}. `gpuctl up` tries again after "
                    f"`aws eks delete-addon --cluster-name {names.cluster_name(cluster)} --addon-name {name}`."
                )
            if status != "ACTIVE":
                waiting.append(f"{name} is {status}")
        return (None if waiting else True), ", ".join(waiting)

    wait_until("the add-ons", look, timeout_s=ADDON_WITHIN_S, clock=clock, say=say)


def once_settled(clock: Clock, do: Any) -> None:  # noqa: ANN401 - whatever it returns
    """Do it, again for a while where EKS does not know a role yet that IAM has just made."""
    deadline = clock.now() + SETTLE_S
    waits = PollWaits()
    while True:
        try:
            do()
            return
        except CloudError as error:
            if error.code not in NOT_SETTLED or "role" not in str(error).lower() or clock.now() > deadline:
                raise
        clock.sleep(waits.next())
