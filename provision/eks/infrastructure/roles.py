"""IAM's roles of the control plane and of the nodes. A role has a name of its own, so that there is one at most."""

from collections.abc import Mapping

from provision.aws.api import Api
from provision.eks import names, requests
from provision.eks.lists import whole
from provision.errors import Exists, Gone
from provision.records import CloudCluster
from provision.rented import tags
from provision.rented.interface import Ensure


def ensure_role(api: Api, cluster: CloudCluster, what: str, ensure: Ensure) -> str:
    """The ARN of the role, with the policies that it needs. Raises Exists for a role that is not this cluster's."""
    name = names.role_name(cluster, what)

    def find() -> str | None:
        try:
            role = api.call("get_role", service="iam", RoleName=name)["Role"]
        except Gone:
            return None
        refuse_strangers(cluster, f"role {name}", {tag["Key"]: tag["Value"] for tag in role.get("Tags", [])})
        return str(role["Arn"])

    def create(_: str) -> str:
        try:
            made = api.call("create_role", service="iam", again=False, **requests.role(cluster, what))
        except Exists:
            found = find()
            if found is None:
                raise
            return found
        return str(made["Role"]["Arn"])

    arn = ensure(f"role {what}", find=find, create=create)
    attached = whole(api, "iam", "list_attached_role_policies", "AttachedPolicies", RoleName=name)
    have = {policy["PolicyArn"] for policy in attached}
    for policy in requests.policies(what, partition_of(arn)):
        if policy not in have:
            api.call(
                "attach_role_policy", service="iam", again=True, settle=True, RoleName=name, PolicyArn=policy
            )
    return arn


def partition_of(arn: str) -> str:
    """`aws`, `aws-cn`, …"""
    return arn.split(":")[1]


def refuse_strangers(cluster: CloudCluster, what: str, of: Mapping[str, str]) -> None:
    """Raise Exists for something of that name that is not this cluster's."""
    if of.get(tags.CLUSTER_ID) != cluster.id:
        raise Exists(
            f"The {what} is there already, and was not made for cluster '{cluster.name}'. Nothing was changed. "
            "Remove it, or make a cluster of another name with `--cluster NAME`."
        )
