"""Checks of `doctor` for EKS. Read-only: IAM simulates the calls."""

from collections.abc import Callable

from inventories.errors import InvalidInput
from inventories.text import plural
from provision.aws import checks, quotas
from provision.aws.api import Api
from provision.eks import offers, requests, resources
from provision.eks.control_plane import principal_of
from provision.errors import CloudError, Denied, ProvisionError
from provision.findings import Finding, refusal, run_checks
from provision.records import CloudCluster

_NEEDED = {
    "autoscaling": "DescribeAutoScalingGroups DescribeScalingActivities DescribeScheduledActions "
    "PutScheduledUpdateGroupAction TerminateInstanceInAutoScalingGroup "
    "UpdateAutoScalingGroup",
    "ec2": "AssociateRouteTable AttachInternetGateway AuthorizeSecurityGroupEgress "
    "AuthorizeSecurityGroupIngress CreateInternetGateway CreateLaunchTemplate "
    "CreatePlacementGroup CreateRoute CreateRouteTable CreateSecurityGroup CreateSubnet "
    "CreateTags CreateVpc DeleteInternetGateway DeleteLaunchTemplate DeleteNetworkInterface "
    "DeletePlacementGroup DeleteRouteTable DeleteSecurityGroup DeleteSubnet DeleteVolume "
    "DeleteVpc DescribeLaunchTemplateVersions DetachInternetGateway DisassociateRouteTable "
    "ModifySubnetAttribute ModifyVpcAttribute ReplaceRoute RevokeSecurityGroupIngress "
    "RunInstances",
    "eks": "AssociateAccessPolicy CreateAccessEntry CreateAddon CreateCluster CreateNodegroup "
    "DeleteCluster DeleteNodegroup TagResource UpdateClusterConfig UpdateNodegroupConfig",
    "elasticloadbalancing": "DeleteLoadBalancer",
    "iam": "AttachRolePolicy CreateRole CreateServiceLinkedRole DeleteInstanceProfile DeleteRole "
    "DeleteRolePolicy DetachRolePolicy PassRole RemoveRoleFromInstanceProfile TagRole",
    "logs": "DeleteLogGroup",
}
NEEDED = tuple(f"{service}:{action}" for service, actions in _NEEDED.items() for action in actions.split())
"""Actions of `up` and `down`, or of EKS with the caller's rights: all that change something, and further reads."""
_ADDRESSES = (
    "AllocateAddress CreateNatGateway CreateVpcEndpoint DeleteNatGateway DeleteVpcEndpoints "
    "ModifyVpcEndpoint ReleaseAddress"
)
NEEDED_WITHOUT_ADDRESSES = tuple(f"ec2:{action}" for action in _ADDRESSES.split())
"""Further actions with --no-public-ip."""


def check(api: Api, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
    """Return all findings."""
    todo: dict[str, Callable[[], Finding]] = {
        "permissions to read": lambda: _reading(api),
        "permissions to change": lambda: _changing(api, cluster),
        "key of disks": lambda: checks.disk_key(api, scaling=True),
        f"shape and quota for {count} {cluster.shape}": lambda: _shape(api, cluster, count),
    }
    return (checks.sdk(), *run_checks(todo))


def _reading(api: Api) -> Finding:
    try:
        clusters = [resource for resource in resources.resources(api) if resource.kind == requests.CLUSTER]
    except Denied as error:
        return Finding(ok=False, detail=str(error), fix="Ask whoever runs the account to allow it.")
    return Finding(ok=True, detail=f"In {api.region}: {plural(len(clusters), 'cluster')} of gpuctl.")


def _changing(api: Api, cluster: CloudCluster) -> Finding:
    """Return the finding on the caller's rights, by IAM's simulation."""
    needed = NEEDED if cluster.public_ip else (*NEEDED, *NEEDED_WITHOUT_ADDRESSES)
    try:
        results = api.pages(
            "simulate_principal_policy",
            "EvaluationResults",
            service="iam",
            PolicySourceArn=principal_of(api),
            ActionNames=list(needed),
        )
    except CloudError as error:
        return Finding(ok=None, detail=f"IAM does not tell: {error}")
    denied = [result["EvalActionName"] for result in results if result["EvalDecision"] != "allowed"]
    if not denied:
        return Finding(ok=True, detail=f"All of {len(results)} actions are allowed.")
    listed = ", ".join(sorted(denied))
    fix = f"Ask whoever runs the account to allow {listed}."
    return Finding(ok=False, detail=f"Not allowed: {listed}.", fix=fix)


def _shape(api: Api, cluster: CloudCluster, count: int) -> Finding:
    try:
        offer = offers.find(api, cluster)
        offers.refuse_over_quota(api, cluster, offer, count)
    except (ProvisionError, InvalidInput) as error:
        return refusal(error)
    quota = quotas.instance_quota(api, cluster.shape, spot=cluster.spot)
    known = f"the quota '{quota.name}' is {quota.vcpus:g} vCPUs" if quota and quota.vcpus is not None else ""
    zones = ", ".join(str(zone) for zone in offer.zones)
    detail = f"{offer.gpus} GPUs each, in {zones}; {known or 'its quota is not known'}."
    return Finding(ok=True, detail=detail)
