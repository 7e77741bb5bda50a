"""The description of EKS, without an account. Shapes, regions and prices of machines are AWS's."""

from dataclasses import replace

from inventories.text import dollars
from provision.aws.description import DESCRIPTION as AWS
from provision.pricing.spending import reap_command
from provision.records import CloudCluster, Offer, PlannedEnd, PlannedRequest

CONTROL_PLANE_HOURLY_USD = 0.10
"""List price in every region, for versions in standard support. https://aws.amazon.com/eks/pricing/, 2026-11."""
CPU_MACHINE_USD = 0.096
"""List price of m6i.large in us-east-1. https://aws.amazon.com/ec2/pricing/on-demand/, 2026-11."""


def _end_guards(cluster: CloudCluster) -> tuple[PlannedEnd, ...]:
    if cluster.expires_at is None:
        return ()
    return (PlannedEnd(guard="scaling group", at=cluster.expires_at, ends_bill=True),)


def _ending_sentence(cluster: CloudCluster, offer: Offer) -> str:
    # EKS's guide has such actions for Capacity Blocks: https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html
    # The wish for them in EKS itself is open: https://github.com/aws/containers-roadmap/issues/1943
    return (
        f"At {cluster.expires_at} scheduled actions of scaling groups end the machines. AWS documents these for "
        "Capacity Blocks; no promise is known for other node groups, and `gpuctl status` shows whether they acted. "
        "The control plane stays, and is billed, "
        f"{dollars(CONTROL_PLANE_HOURLY_USD + offer.network_hourly_usd)} an hour, until `gpuctl down`, or "
        f"`{reap_command(cluster.target)}`, which cron can run."
    )


def _ending_clause(cluster: CloudCluster, offer: Offer) -> str:  # noqa: ARG001 - the same for all clusters
    usd = dollars(CONTROL_PLANE_HOURLY_USD + offer.network_hourly_usd)
    return (
        f"then scheduled actions are to end the machines; the control plane is billed, {usd} an hour, until "
        "`gpuctl down`"
    )


DESCRIPTION = replace(
    AWS,
    name="eks",
    about="Kubernetes on Amazon's EKS with Ray, made and removed: --provider eks --shape g5.12xlarge",
    control="provision.eks.cloud",
    base="aws",
    provider="provision.eks.service",
    shapes=(),
    fixed_hourly_usd={"kubernetes-cluster": CONTROL_PLANE_HOURLY_USD, "m6i.large": CPU_MACHINE_USD},
    default_user="ray",
    end_guards=_end_guards,
    ending_requests=lambda ids: (PlannedRequest(operation="DeleteNodegroup", body={"machines": list(ids)}),),
    ending_sentence=_ending_sentence,
    ending_clause=_ending_clause,
)
