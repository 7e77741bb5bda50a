"""Checks of `doctor` for EKS. Read-only: IAM simulates the calls."""

from collections.abc import Callable

from inventories.errors import InvalidInput
from inventories.text import plural
from provision.aws import checks, quotas
from provision.aws.api import Api
from provision.eks import listing, offers, requests
from provision.eks.control_plane import principal_of
from provision.errors import CloudError, Denied, ProvisionError
from provision.findings import Finding, refusal, run_checks
from provision.records import CloudCluster

NEEDED = (
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeScalingActivities",
    "autoscaling:DescribeScheduledActions",
    "autoscaling:PutScheduledUpdateGroupAction",
    "autoscaling:TerminateInstanceInAutoScalingGroup",
    "autoscaling:UpdateAutoScalingGroup",
    "ec2:AssociateRouteTable",
    "ec2:AttachInternetGateway",
    "ec2:AuthorizeSecurityGroupEgress",
    "ec2:AuthorizeSecurityGroupIngress",
    "ec2:CreateInternetGateway",
    "ec2:CreateLaunchTemplate",
    "ec2:CreatePlacementGroup",
    "ec2:CreateRoute",
    "ec2:CreateRouteTable",
    "ec2:CreateSecurityGroup",
    "ec2:CreateSubnet",
    "ec2:CreateTags",
    "ec2:CreateVpc",
    "ec2:DeleteInternetGateway",
    "ec2:DeleteLaunchTemplate",
    "ec2:DeleteNetworkInterface",
    "ec2:DeletePlacementGroup",
    "ec2:DeleteRouteTable",
    "ec2:DeleteSecurityGroup",
    "ec2:DeleteSubnet",
    "ec2:DeleteVolume",
    "ec2:DeleteVpc",
    "ec2:DescribeLaunchTemplateVersions",
    "ec2:DetachInternetGateway",
    "ec2:DisassociateRouteTable",
    "ec2:ModifySubnetAttribute",
    "ec2:ModifyVpcAttribute",
    "ec2:ReplaceRoute",
    "ec2:RevokeSecurityGroupIngress",
    "ec2:RunInstances",
    "eks:AssociateAccessPolicy",
    "eks:CreateAccessEntry",
    "eks:CreateAddon",
    "eks:CreateCluster",
    "eks:CreateNodegroup",
    "eks:DeleteCluster",
    "eks:DeleteNodegroup",
    "eks:TagResource",
    "eks:UpdateClusterConfig",
    "eks:UpdateNodegroupConfig",
    "elasticloadbalancing:DeleteLoadBalancer",
    "iam:AttachRolePolicy",
    "iam:CreateRole",
    "iam:CreateServiceLinkedRole",
    "iam:DeleteInstanceProfile",
    "iam:DeleteRole",
    "iam:DeleteRolePolicy",
    "iam:DetachRolePolicy",
    "iam:PassRole",
    "iam:RemoveRoleFromInstanceProfile",
    "iam:TagRole",
    "logs:DeleteLogGroup",
)
"""Actions of `up` and `down`, or of EKS with the caller's rights: all that change something, and further reads."""
NEEDED_WITHOUT_ADDRESSES = (
    "ec2:AllocateAddress",
    "ec2:CreateNatGateway",
    "ec2:CreateVpcEndpoint",
    "ec2:DeleteNatGateway",
    "ec2:DeleteVpcEndpoints",
    "ec2:ModifyVpcEndpoint",
    "ec2:ReleaseAddress",
)
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
        clusters = [resource for resource in listing.resources(api) if resource.kind == requests.CLUSTER]
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
