"""The control plane, IAM's roles, the access to the API server, and the add-ons."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.aws.api import SETTLE_S, Api
from provision.eks import requests
from provision.errors import Blocked, CloudError, CreateFailed, Exists, Gone
from provision.records import CloudCluster
from provision.rented import tags
from provision.rented.find_or_create import Ensure
from provision.waiting import Clock, Waiting, retry_while

ACTIVE_WITHIN_S = 2400.0
ADDON_WITHIN_S = 1200.0
NOT_SETTLED = ("InvalidParameterException", "InvalidRequestException")
"""Codes with which EKS refuses a role that IAM made a moment ago."""
WORKING = ("ACTIVE", "UPDATING")
"""States of a control plane whose API server answers."""


@dataclass(frozen=True, kw_only=True)
class ControlPlane(Waiting):
    """The control plane of a cluster."""

    api: Api
    cluster: CloudCluster

    def ensure(self, role_arn: str, subnets: Sequence[str], group: str, ensure: Ensure) -> None:
        """Find or create the control plane, without a wait. Raises Exists for another owner's of that name."""
        name = self.cluster.kubernetes_name

        def send(token: str) -> None:
            request = requests.control_plane(self.cluster, role_arn, subnets, group, token)
            once_settled(
                self.clock, lambda: self.api.call("create_cluster", service="eks", again=True, **request)
            )

        def exists() -> bool:
            described = self.describe()
            return described is not None and described["status"] != "DELETING"

        ensure_named(ensure, "kubernetes-cluster", name, exists, send)

    def describe(self) -> Mapping[str, Any] | None:
        """Return EKS's description. `None`: EKS has no such cluster. Raises Exists for somebody else's."""
        try:
            name = self.cluster.kubernetes_name
            described: Mapping[str, Any] = self.api.call("describe_cluster", service="eks", name=name)
        except Gone:
            return None
        plane: Mapping[str, Any] = described["cluster"]
        refuse_strangers(self.cluster, f"Kubernetes cluster {name}", plane.get("tags", {}))
        return plane

    def wait_active(self) -> Mapping[str, Any]:
        """Wait until the control plane works, and return EKS's description. Raises CreateFailed."""

        def working() -> tuple[Mapping[str, Any] | None, str]:
            plane = self.describe()
            if plane is None:
                return None, "EKS does not list it yet"
            if plane["status"] == "FAILED":
                raise CreateFailed(
                    f"EKS could not make the control plane: {issues(plane)}. `gpuctl down --cluster "
                    f"{self.cluster.name}` removes what is there."
                )
            return (plane if plane["status"] in WORKING else None), f"its status is {plane['status']}"

        return self.wait_until(
            "the control plane, which takes EKS about ten minutes", working, ACTIVE_WITHIN_S
        )

    def let_in(self, plane: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change the ranges that reach the API server to `ssh_cidrs`. Returns the new description after minutes."""
        if set(public_cidrs(plane)) == set(self.cluster.ssh_cidrs):
            return plane

        def changed() -> tuple[Mapping[str, Any] | None, str]:
            now = self.describe()
            if now is None or now["status"] != "ACTIVE":  # an earlier change is in progress, or ours
                return None, f"its status is {now['status'] if now else 'not listed'}"
            if set(public_cidrs(now)) == set(self.cluster.ssh_cidrs):
                return now, ""
            try:
                request = requests.access(self.cluster)
                self.api.call("update_cluster_config", service="eks", again=True, **request)
            except CloudError as error:
                # EKS still changes something, or is "already at the desired configuration": an answer was lost.
                if not isinstance(error, Blocked) and "already" not in str(error):
                    raise
                return None, str(error)
            return None, "EKS has begun"

        ranges = ", ".join(self.cluster.ssh_cidrs)
        return self.wait_until(f"the API server to let in {ranges}", changed, ACTIVE_WITHIN_S)

    def ensure_access(self, ensure: Ensure) -> None:
        """Give the caller access to the API server: a colleague of the maker has no access yet."""
        principal = principal_of(self.api)

        def find() -> str | None:
            entries = self.api.pages(
                "list_access_entries",
                "accessEntries",
                service="eks",
                clusterName=self.cluster.kubernetes_name,
            )
            return principal if principal in entries else None

        def create(token: str) -> str:
            request = requests.access_entry(self.cluster, principal, token)
            with contextlib.suppress(Blocked, Exists):  # another process was faster
                self.api.call("create_access_entry", service="eks", again=True, **request)
            return principal

        if find() is None:
            ensure(f"access {principal}", find=find, create=create)
        policies = self.api.pages(
            "list_associated_access_policies",
            "associatedAccessPolicies",
            service="eks",
            clusterName=self.cluster.kubernetes_name,
            principalArn=principal,
        )
        request = requests.admin(self.cluster, principal, partition_of(principal))
        if request["policyArn"] not in {policy["policyArn"] for policy in policies}:
            self.api.call("associate_access_policy", service="eks", again=True, **request)

    def ensure_addons(self, ensure: Ensure) -> None:
        """Find or create all add-ons."""
        for addon in requests.ADDONS:

            def send(token: str, addon: str = addon) -> None:
                request = requests.addon(self.cluster, addon, token)
                self.api.call("create_addon", service="eks", again=True, **request)

            def exists(addon: str = addon) -> bool:
                return self._addon(addon) is not None

            ensure_named(ensure, f"add-on {addon}", addon, exists, send)

    def wait_addons(self) -> None:
        """Wait until all add-ons work, which needs a node. Raises CreateFailed."""

        def working() -> tuple[bool | None, str]:
            waiting = []
            for name in requests.ADDONS:
                addon = self._addon(name)
                status = addon["status"] if addon else "not listed"
                if addon and status == "CREATE_FAILED":
                    raise CreateFailed(
                        f"EKS could not make the add-on {name}: {issues(addon)}. `gpuctl up` tries again after `aws "
                        f"eks delete-addon --cluster-name {self.cluster.kubernetes_name} --addon-name {name}`."
                    )
                if status != "ACTIVE":
                    waiting.append(f"{name} is {status}")
            return (None if waiting else True), ", ".join(waiting)

        self.wait_until("the add-ons", working, ADDON_WITHIN_S)

    def _addon(self, name: str) -> Mapping[str, Any] | None:
        try:
            answer = self.api.call(
                "describe_addon", service="eks", clusterName=self.cluster.kubernetes_name, addonName=name
            )
        except Gone:
            return None
        addon: Mapping[str, Any] = answer["addon"]
        return addon


def public_cidrs(plane: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the address ranges outside the VPC that reach the API server."""
    return tuple(plane["resourcesVpcConfig"].get("publicAccessCidrs") or ())


def issues(described: Mapping[str, Any]) -> str:
    """Return EKS's health issues of a resource, in words."""
    listed = described.get("health", {}).get("issues", [])
    return "; ".join(f"{issue['code']}: {issue['message']}" for issue in listed) or "it gives no reason"


def principal_of(api: Api) -> str:
    """Return the caller's ARN as IAM has it: for an assumed role, the role's."""
    arn = str(api.call("get_caller_identity", service="sts")["Arn"])
    kind, _, rest = arn.rpartition(":")[2].partition("/")
    if kind != "assumed-role":
        return arn
    # The session's ARN lacks the role's path, such as that of roles for single sign-on.
    return str(api.call("get_role", service="iam", RoleName=rest.partition("/")[0])["Role"]["Arn"])


def ensure_role(api: Api, cluster: CloudCluster, role: str, ensure: Ensure) -> str:
    """Return the ARN of the role, with its policies. Raises Exists for a role of another cluster.

    A role's name has the cluster's id, so that at most one exists.
    """
    name = requests.role_name(cluster, role)

    def find() -> str | None:
        try:
            described = api.call("get_role", service="iam", RoleName=name)["Role"]
        except Gone:
            return None
        pairs = {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}
        refuse_strangers(cluster, f"role {name}", pairs)
        return str(described["Arn"])

    def create(_: str) -> str:
        try:
            made = api.call("create_role", service="iam", again=False, **requests.role(cluster, role))
        except Exists:
            arn = find()
            if arn is None:
                raise
            return arn
        return str(made["Role"]["Arn"])

    arn = ensure(f"role {role}", find=find, create=create)
    attached = api.pages("list_attached_role_policies", "AttachedPolicies", service="iam", RoleName=name)
    have = {policy["PolicyArn"] for policy in attached}
    for policy in requests.policies(role, partition_of(arn)):
        if policy not in have:
            api.call(
                "attach_role_policy", service="iam", again=True, settle=True, RoleName=name, PolicyArn=policy
            )
    return arn


def partition_of(arn: str) -> str:
    """Return the partition of an ARN, such as `aws` or `aws-cn`."""
    return arn.split(":")[1]


def refuse_strangers(cluster: CloudCluster, title: str, of: Mapping[str, str]) -> None:
    """Raise Exists for a resource of that name whose tags are not this cluster's."""
    if of.get(tags.CLUSTER_ID) != cluster.id:
        raise Exists(
            f"The {title} is there already, and was not made for cluster '{cluster.name}'. Nothing was changed. "
            "Remove it, or make a cluster of another name with `--cluster NAME`."
        )


def ensure_named(
    ensure: Ensure, kind: str, name: str, exists: Callable[[], bool], send: Callable[[str], object]
) -> None:
    """Find or create a resource of a unique name, also if another process makes it first."""

    def create(token: str) -> str:
        try:
            send(token)
        except (Blocked, Exists):
            if not exists():
                raise
        return name

    ensure(kind, find=lambda: name if exists() else None, create=create)


def once_settled(clock: Clock, do: Callable[[], object]) -> None:
    """Call `do`, again for a while if EKS does not know a role yet that IAM has just made."""

    def unknown_role(error: CloudError) -> bool:
        return error.code in NOT_SETTLED and "role" in str(error).lower()

    retry_while(clock, do, unknown_role, SETTLE_S)
