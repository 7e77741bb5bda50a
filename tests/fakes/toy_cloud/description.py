"""The toy cloud, as it is described to the rest of gpuctl. Imports nothing that the cloud's own SDK needs."""

from collections.abc import Sequence

from inventories.specs.gpu_driver import NO_DRIVER
from provision.clouds import CloudDescription, PublicPrices, Shape
from provision.records import CloudCluster, Offer, PlannedEnd, PlannedRequest
from provision.waiting import Say

SHAPES = tuple(
    Shape(
        name=f"toy.{gpus}",
        provider="toy",
        gpus=gpus,
        gpu="T1",
        gpu_memory_gb=8,
        network="10",
        usd_per_hour=0.5 * gpus,
        priced_at="2026-11",
    )
    for gpus in (1, 2)
)


def _read_prices(region: str, say: Say) -> PublicPrices:
    return PublicPrices(url="https://toy.test/prices", usd_per_hour={shape.name: 0.25 for shape in SHAPES})


def _ending_requests(ids: Sequence[str]) -> tuple[PlannedRequest, ...]:
    return tuple(PlannedRequest(operation="EndMachine", body={"id": item}) for item in ids)


def _end_guards(cluster: CloudCluster) -> tuple[PlannedEnd, ...]:
    if cluster.expires_at is None:
        return ()
    return (PlannedEnd(guard="machine power-off", at=cluster.expires_at, ends_bill=True),)


def _ending_sentence(cluster: CloudCluster, offer: Offer) -> str:
    return f"At {cluster.expires_at} the machines shut down, and nothing is billed after that."


def _ending_clause(cluster: CloudCluster, offer: Offer) -> str:
    return "then they shut down, and nothing is billed any more"


DESCRIPTION = CloudDescription(
    name="toy",
    about="a cloud in this process, as toy.1",
    sdk=None,
    control="tests.fakes.toy_cloud.cloud",
    shapes=SHAPES,
    shape_pattern=r"toy\.[0-9]+",
    nvidia_shape_pattern="",
    region_pattern=r"toyland-[a-z]+",
    unsupported=frozenset({"image", "driver", "accept_terms", "spot", "subnet_id", "bastion", "compartment"}),
    price_region=None,
    read_prices=_read_prices,
    disk_usd_per_gb_month=0.01,
    default_driver=NO_DRIVER,
    end_guards=_end_guards,
    power_off_ends_bill=True,
    least_billed_s=lambda shape: 0.0,  # noqa: ARG005 - the same for all shapes
    ending_requests=_ending_requests,
    ending_sentence=_ending_sentence,
    ending_clause=_ending_clause,
)
