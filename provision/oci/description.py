"""The description of OCI, without an account."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from provision.clouds import CloudDescription, PublicPrices
from provision.oci.catalog import (
    PERFORMANCE_USD_PER_GB_MONTH,
    SHAPES,
    SPOT_SHARE,
    STORAGE_USD_PER_GB_MONTH,
    bill_continues_when_stopped,
    may_have_rdma,
)
from provision.pricing.spending import reap_command
from provision.records import CloudCluster, Offer, PlannedEnd, PlannedRequest
from provision.waiting import Say


def _read_prices(region: str, say: Say) -> PublicPrices:
    from provision.oci.price_list import read

    return read(region, say)


def _ending_requests(ids: Sequence[str]) -> tuple[PlannedRequest, ...]:
    keep = {"preserveBootVolume": False, "preserveDataVolumesCreatedAtLaunch": False}
    return tuple(
        PlannedRequest(operation="TerminateInstance", body={"instanceId": machine_id} | keep)
        for machine_id in ids
    )


POWER_OFF_AFTER = timedelta(minutes=10)
"""Time between the end of a cluster's time and the power-off of its machines.

A pool starts members that power off (https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/restartinginstancepool.htm),
so its schedule has to act first.
"""


def least_billed_s(shape: str) -> float:
    """Return the shortest time that a machine is billed for: an hour on bare metal, else a minute.

    Source, a copy of Oracle's blog of 2020:
    https://the-report.cloud/oracle-announcing-per-second-billing-for-compute-and-autonomous-database
    """
    return 3600.0 if shape.startswith("BM.") else 60.0


def may_join_pool(cluster: CloudCluster) -> bool:
    """Return whether Oracle's pages let machines of the cluster join an instance pool with a schedule.

    The pages do not mention members of compute clusters: `up` tries it, and prints the result.
    """
    rdma = may_have_rdma(cluster.shape) and cluster.first_count != 1
    return not rdma and not pool_refusal(cluster)


def pool_refusal(cluster: CloudCluster) -> str:
    """Return why machines of the cluster can't have a schedule, as a clause. Empty: OCI may take them.

    Source: https://docs.oracle.com/en-us/iaas/Content/Compute/Concepts/preemptible.htm
    """
    if cluster.spot:
        return "preemptible machines can't join an instance pool"
    if not has_autoscaling(cluster.target.region):
        return f"OCI has no autoscaling in {cluster.target.region}"
    return ""


def has_autoscaling(region: str | None) -> bool:
    """Return whether a region has the autoscaling service: realms of the US Government have not.

    Source: https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/autoscalinginstancepools.htm
    """
    return not (region or "").startswith(("us-gov-", "us-langley-", "us-luke-"))


def acts_at(cluster: CloudCluster) -> datetime:
    """Return the time at which a schedule ends the machines: the first whole minute not before the cluster's end.

    Schedules of OCI know no seconds: https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/autoscalinginstancepools.htm
    """
    assert cluster.expires_at is not None
    end = datetime.fromisoformat(cluster.expires_at).astimezone(UTC)
    minute = end.replace(second=0, microsecond=0)
    return minute if minute == end else minute + timedelta(minutes=1)


def _end_guards(cluster: CloudCluster) -> tuple[PlannedEnd, ...]:
    if cluster.expires_at is None:
        return ()
    off = (datetime.fromisoformat(cluster.expires_at) + POWER_OFF_AFTER).isoformat(timespec="seconds")
    # A shutdown from the machine's own system ends no bill, whatever the shape:
    # https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/restartinginstance.htm
    power_off = PlannedEnd(guard="machine power-off", at=off, ends_bill=False)
    if not may_join_pool(cluster):
        return (power_off,)
    at = acts_at(cluster).isoformat(timespec="seconds")
    return (PlannedEnd(guard="cloud schedule", at=at, ends_bill=True), power_off)


def _ending_sentence(cluster: CloudCluster, offer: Offer) -> str:  # noqa: ARG001 - the same for all shapes
    if not may_join_pool(cluster):
        return (
            f"After {cluster.expires_at} the machines power off, which ends no bill on OCI. To end them in time, run "
            f"this from cron: `*/10 * * * * {reap_command(cluster.target)}`."
        )
    return (
        f"At {acts_at(cluster):%Y-%m-%d %H:%M} UTC a schedule of OCI terminates the machines, which ends their bill, "
        "also with this computer off. `gpuctl down` removes the rest."
    )


def _ending_clause(cluster: CloudCluster, offer: Offer) -> str:  # noqa: ARG001 - the same for all shapes
    if not may_join_pool(cluster):
        return (
            "the machines only power off, which ends no bill on OCI: they are billed until `gpuctl down`, or this "
            f"line of cron: */10 * * * * {reap_command(cluster.target)}"
        )
    return "then a schedule of OCI terminates them, which ends their bill"


DESCRIPTION = CloudDescription(
    name="oci",
    about="Oracle Cloud Infrastructure, as VM.GPU.A10.2",
    sdk="oci",
    control="provision.oci.cloud",
    shapes=SHAPES,
    shape_pattern=r"(VM|BM)\.[A-Za-z0-9][A-Za-z0-9._-]*",
    nvidia_shape_pattern=r"(VM|BM)\.GPU(?!\.MI[0-9]).*",  # MI shapes have AMD's GPUs
    # Names of places, not directions of the compass.
    region_pattern=r"[a-z]{2,4}(-[a-z]+)*-(?!(central|(north|south)?(east|west)|north|south)-)[a-z]+-[0-9]+",
    regions={
        "Virginia": "us-ashburn-1",
        "Midwest": "us-chicago-1",
        "California": "us-sanjose-1",
        "Western US": "us-phoenix-1",
        "Montreal": "ca-montreal-1",
        "São Paulo": "sa-saopaulo-1",
        "London": "uk-london-1",
        "Paris": "eu-paris-1",
        "Frankfurt": "eu-frankfurt-1",
        "Zurich": "eu-zurich-1",
        "Stockholm": "eu-stockholm-1",
        "Tokyo": "ap-tokyo-1",
        "Seoul": "ap-seoul-1",
        "Osaka": "ap-osaka-1",
        "Singapore": "ap-singapore-1",
        "Sydney": "ap-sydney-1",
        "Mumbai": "ap-mumbai-1",
    },
    price_region=None,
    read_prices=_read_prices,
    disk_usd_per_gb_month=STORAGE_USD_PER_GB_MONTH + PERFORMANCE_USD_PER_GB_MONTH,
    spot_share=SPOT_SHARE,
    end_guards=_end_guards,
    least_billed_s=least_billed_s,
    bills_stopped=bill_continues_when_stopped,
    ending_requests=_ending_requests,
    ending_sentence=_ending_sentence,
    ending_clause=_ending_clause,
)
