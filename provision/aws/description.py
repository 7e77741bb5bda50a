"""The description of AWS, without an account."""

from inventories.specs.gpu_driver import DriverPlan
from inventories.text import dollars
from provision.aws.catalog import (
    ADDRESS_HOURLY_USD,
    GP3_USD_PER_GB_MONTH,
    NAT_HOURLY_USD,
    PRICE_REGION,
    SHAPES,
)
from provision.clouds import CloudDescription, PublicPrices
from provision.pricing.spending import reap_command
from provision.records import CloudCluster, Offer, PlannedEnd, PlannedRequest
from provision.waiting import Say


def _read_prices(region: str, say: Say) -> PublicPrices:
    from provision.aws.price_list import read

    return read(region, say)


def _end_guards(cluster: CloudCluster) -> tuple[PlannedEnd, ...]:
    # InstanceInitiatedShutdownBehavior is `terminate`:
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_ChangingInstanceInitiatedShutdownBehavior.html
    if cluster.expires_at is None:
        return ()
    return (PlannedEnd(guard="machine power-off", at=cluster.expires_at, ends_bill=True),)


def _ending_sentence(cluster: CloudCluster, offer: Offer) -> str:
    ended = f"At {cluster.expires_at} the machines shut down, which terminates them"
    if not offer.network_hourly_usd:
        return f"{ended}: nothing is billed after that."
    return (
        f"{ended}. The private network's NAT gateway and its address stay, and are billed, about "
        f"{dollars(offer.network_hourly_usd)} an hour, until `gpuctl down`, or "
        f"`{reap_command(cluster.target)}`, which cron can run."
    )


def _ending_clause(cluster: CloudCluster, offer: Offer) -> str:  # noqa: ARG001 - the same for all clusters
    if offer.network_hourly_usd:
        return "then they terminate; the NAT gateway and its address are billed until `gpuctl down`"
    return "then they terminate, and nothing is billed any more"


DESCRIPTION = CloudDescription(
    name="aws",
    about="Amazon Web Services, as g5.12xlarge",
    sdk="boto3",
    control="provision.aws.cloud",
    shapes=SHAPES,
    shape_pattern=r"(?=[a-z0-9-]*[0-9])[a-z][a-z0-9-]*"
    r"\.(nano|micro|small|medium|large|[0-9]*xlarge|metal(-[0-9]+xl)?)",
    nvidia_shape_pattern=r"(?!g4ad\.)(p|gr?)[0-9].*",  # g4ad has AMD's GPUs
    region_pattern=r"[a-z]{2,4}(-[a-z]+)*-(central|(north|south)?(east|west)|north|south)-[0-9]+",
    regions={
        "Virginia": "us-east-1",
        "Midwest": "us-east-2",
        "California": "us-west-1",
        "Western US": "us-west-2",
        "Montreal": "ca-central-1",
        "São Paulo": "sa-east-1",
        "London": "eu-west-2",
        "Paris": "eu-west-3",
        "Frankfurt": "eu-central-1",
        "Zurich": "eu-central-2",
        "Stockholm": "eu-north-1",
        "Tokyo": "ap-northeast-1",
        "Seoul": "ap-northeast-2",
        "Osaka": "ap-northeast-3",
        "Singapore": "ap-southeast-1",
        "Sydney": "ap-southeast-2",
        "Mumbai": "ap-south-1",
    },
    unsupported=frozenset({"accept_terms", "compartment"}),
    price_region=PRICE_REGION,
    read_prices=_read_prices,
    disk_usd_per_gb_month=GP3_USD_PER_GB_MONTH,
    address_hourly_usd=ADDRESS_HOURLY_USD,
    fixed_hourly_usd={"nat-gateway": NAT_HOURLY_USD, "elastic-ip": ADDRESS_HOURLY_USD},
    default_driver=DriverPlan(source="image"),
    end_guards=_end_guards,
    power_off_ends_bill=True,
    # Linux, by the second from the state `running` on:
    # https://github.com/awsdocs/amazon-ec2-user-guide/blob/master/doc_source/ec2-instance-lifecycle.md
    least_billed_s=lambda shape: 60.0,  # noqa: ARG005 - the same for all types
    ending_requests=lambda ids: (
        PlannedRequest(operation="TerminateInstances", body={"InstanceIds": list(ids)}),
    ),
    ending_sentence=_ending_sentence,
    ending_clause=_ending_clause,
)
