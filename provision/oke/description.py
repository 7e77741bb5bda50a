"""The description of OKE, without an account. Shapes, regions and prices of machines are OCI's."""

from dataclasses import replace

from inventories.text import dollars
from provision.oci.description import DESCRIPTION as OCI
from provision.pricing.spending import reap_command
from provision.records import CloudCluster, Offer, PlannedRequest

CONTROL_PLANE_HOURLY_USD = 0.10
"""List price of an enhanced cluster. https://www.oracle.com/cloud/price-list/, 2026-11."""
CPU_SHAPE, CPU_OCPUS, CPU_MEMORY_GB = "VM.Standard.E4.Flex", 2, 16
"""The machine of the operators and Ray's head: 4 vCPUs, 16 GB."""
CPU_MACHINE_USD = CPU_OCPUS * 0.025 + CPU_MEMORY_GB * 0.0015
"""By the list price of its OCPUs and GB. https://www.oracle.com/cloud/price-list/, 2026-11."""


def _ending_sentence(cluster: CloudCluster, offer: Offer) -> str:  # noqa: ARG001 - the same for all shapes
    return (
        f"At {cluster.expires_at} nothing ends by itself: OKE's nodes and its control plane "
        f"({dollars(CONTROL_PLANE_HOURLY_USD)} an hour) are billed until `gpuctl down`. To end them in time, run "
        f"this from cron: `*/10 * * * * {reap_command(cluster.target)}`."
    )


DESCRIPTION = replace(
    OCI,
    name="oke",
    about="Kubernetes on Oracle's OKE with Ray, made and removed: --provider oke --shape VM.GPU.A10.2",
    control="provision.oke.cloud",
    base="oci",
    provider="provision.oke.service",
    shapes=(),
    fixed_hourly_usd={"kubernetes-cluster": CONTROL_PLANE_HOURLY_USD, CPU_SHAPE: CPU_MACHINE_USD},
    default_user="ray",
    end_guards=lambda cluster: (),  # noqa: ARG005 - OKE has none
    ending_requests=lambda ids: (PlannedRequest(operation="DeleteNodePool", body={"machines": list(ids)}),),
    ending_sentence=_ending_sentence,
    ending_clause=lambda cluster, offer: (  # noqa: ARG005 - the same for all clusters
        "nodes and control plane are billed until `gpuctl down`, or `gpuctl reap --expired` from cron"
    ),
)
