"""OCI, as it is described to the rest of gpuctl."""

from collections.abc import Sequence

from provision.cloud.description import CloudDescription
from provision.cloud.records import Offer, PlannedRequest, Target
from provision.oci.catalog import (
    PERFORMANCE_USD_PER_GB_MONTH,
    SHAPES,
    SPOT_SHARE,
    STORAGE_USD_PER_GB_MONTH,
)
from provision.pricing.price_list import Answer, Say
from provision.pricing.spending import reap_command


def _read_prices(region: str, say: Say) -> Answer:
    from provision.oci.price_list import read

    return read(region, say)


def _ending_requests(ids: Sequence[str]) -> tuple[PlannedRequest, ...]:
    keep = {"preserveBootVolume": False, "preserveDataVolumesCreatedAtLaunch": False}
    return tuple(
        PlannedRequest(operation="TerminateInstance", body={"instanceId": one} | keep) for one in ids
    )


def _ending_sentence(target: Target, offer: Offer, expires_at: str) -> str:
    reap = reap_command(target)
    if not offer.billed_when_stopped:
        return (
            f"At {expires_at} the machines power off, which ends the bill for {offer.shape}; their boot volumes "
            f"stay until `gpuctl down`, or `{reap}`."
        )
    return (
        f"At {expires_at} the machines power off, but OCI still bills a {offer.shape} that is stopped. To end "
        f"them in time, run this from cron: `*/10 * * * * {reap}`."
    )


def _ending_clause(offer: Offer) -> str:
    if offer.billed_when_stopped:
        return f"then they power off, but OCI bills a {offer.shape} that is stopped until `gpuctl down`"
    return "then they power off, and only their boot volumes are billed until `gpuctl down`"


DESCRIPTION = CloudDescription(
    name="oci",
    about="Oracle Cloud Infrastructure, as VM.GPU.A10.2",
    sdk="oci",
    control="provision.oci.cloud",
    shapes=SHAPES,
    shape_pattern=r"(VM|BM)\.[A-Za-z0-9][A-Za-z0-9._-]*",
    nvidia_shape_pattern=r"(VM|BM)\.GPU(?!\.MI[0-9]).*",  # MI shapes have AMD's GPUs
    # The name of a place, not a direction of the compass.
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
    ending_requests=_ending_requests,
    ending_sentence=_ending_sentence,
    ending_clause=_ending_clause,
)
