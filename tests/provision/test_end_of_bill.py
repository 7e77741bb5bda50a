"""Texts and mechanisms for the end of a cluster's time: all statements on the end of a bill, each with its source."""

from dataclasses import dataclass, replace

import pytest

from provision.clouds import describe
from provision.records import CloudCluster, Offer, Target

AT = "2026-11-27T17:30:00+00:00"
LATER = "2026-11-27T17:40:00+00:00"
OFFER = Offer(
    shape="",
    gpus=1,
    image_id="image",
    image_name="image",
    user="ubuntu",
    disk_gb=200,
    zones=(),
    hourly_usd=None,
)
NAT = replace(OFFER, network_hourly_usd=0.05)
REAP = "gpuctl reap --expired --yes --provider"


def cluster(provider: str, shape: str, region: str, **fields: object) -> CloudCluster:
    made = CloudCluster(
        name="demo",
        id="1",
        owner="ann@desk",
        created_at="2026-11-27T13:30:00+00:00",
        target=Target(provider=provider, region=region),
        shape=shape,
        expires_at=AT,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cluster, its texts, its mechanisms (name, time, whether it ends the bill), and the pages that say so."""

    cluster: CloudCluster
    offer: Offer = OFFER
    sentence: str
    clause: str
    guards: tuple[tuple[str, str, bool], ...]
    sources: tuple[str, ...]


OCI_STOP = "https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/restartinginstance.htm"
OCI_BILL = "https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/resource-billing-stopped-instances.htm"
OCI_POOL = "https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/autoscalinginstancepools.htm"
OCI_RESTARTS = "https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/restartinginstancepool.htm"
AWS_STOP = (
    "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_ChangingInstanceInitiatedShutdownBehavior.html"
)
AWS_NAT = "https://aws.amazon.com/vpc/pricing/"
EKS_PRICE = "https://aws.amazon.com/eks/pricing/"
EKS_GROUPS = "https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html"
OKE_PRICE = "https://www.oracle.com/cloud/price-list/"

SCHEDULED = Case(
    cluster=cluster("oci", "VM.GPU.A10.2", "eu-frankfurt-1"),
    sentence="At 2026-11-27 17:30 UTC a schedule of OCI terminates the machines, which ends their bill, "
    "also with this computer off. `gpuctl down` removes the rest.",
    clause="then a schedule of OCI terminates them, which ends their bill",
    guards=(("cloud schedule", AT, True), ("machine power-off", LATER, False)),
    sources=(OCI_STOP, OCI_BILL, OCI_POOL, OCI_RESTARTS),
)
NOT_SCHEDULED = Case(
    cluster=cluster("oci", "VM.GPU.A10.2", "eu-frankfurt-1", spot=True),
    sentence=f"After {AT} the machines power off, which ends no bill on OCI. To end them in time, run this from "
    f"cron: `*/10 * * * * {REAP} oci --region eu-frankfurt-1`.",
    clause="the machines only power off, which ends no bill on OCI: they are billed until `gpuctl down`, or this "
    f"line of cron: */10 * * * * {REAP} oci --region eu-frankfurt-1",
    guards=(("machine power-off", LATER, False),),
    sources=(OCI_STOP, OCI_BILL, OCI_POOL),
)
CASES = {
    "oci": SCHEDULED,
    "oci bare metal": replace(SCHEDULED, cluster=cluster("oci", "BM.GPU.A10.4", "eu-frankfurt-1")),
    "oci preemptible": NOT_SCHEDULED,
    "oci rdma": replace(NOT_SCHEDULED, cluster=cluster("oci", "BM.GPU.H100.8", "eu-frankfurt-1")),
    "oci us government": replace(
        NOT_SCHEDULED,
        cluster=cluster("oci", "VM.GPU.A10.2", "us-langley-1"),
        sentence=NOT_SCHEDULED.sentence.replace("eu-frankfurt-1", "us-langley-1"),
        clause=NOT_SCHEDULED.clause.replace("eu-frankfurt-1", "us-langley-1"),
    ),
    "aws": Case(
        cluster=cluster("aws", "g5.12xlarge", "us-east-1"),
        sentence=f"At {AT} the machines shut down, which terminates them: nothing is billed after that.",
        clause="then they terminate, and nothing is billed any more",
        guards=(("machine power-off", AT, True),),
        sources=(AWS_STOP,),
    ),
    "aws private": Case(
        cluster=cluster("aws", "g5.12xlarge", "us-east-1", public_ip=False),
        offer=NAT,
        sentence=f"At {AT} the machines shut down, which terminates them. The private network's NAT gateway and its "
        "address stay, and are billed, about $0.05 an hour, until `gpuctl down`, or "
        f"`{REAP} aws --region us-east-1`, which cron can run.",
        clause="then they terminate; the NAT gateway and its address are billed until `gpuctl down`",
        guards=(("machine power-off", AT, True),),
        sources=(AWS_STOP, AWS_NAT),
    ),
    "eks": Case(
        cluster=cluster("eks", "g5.12xlarge", "us-east-1"),
        offer=NAT,
        sentence=f"At {AT} scheduled actions of scaling groups end the machines. AWS documents these for "
        "Capacity Blocks; no promise is known for other node groups, and `gpuctl status` shows whether they acted. "
        "The control plane stays, and is billed, $0.15 an hour, until `gpuctl down`, or "
        f"`{REAP} eks --region us-east-1`, which cron can run.",
        clause="then scheduled actions are to end the machines; the control plane is billed, $0.15 an hour, until "
        "`gpuctl down`",
        guards=(("scaling group", AT, True),),
        sources=(EKS_PRICE, EKS_GROUPS),
    ),
    "oke": Case(
        cluster=cluster("oke", "VM.GPU.A10.2", "eu-frankfurt-1"),
        sentence=f"At {AT} nothing ends by itself: OKE's nodes and its control plane ($0.10 an hour) are billed "
        "until `gpuctl down`. To end them in time, run this from cron: "
        f"`*/10 * * * * {REAP} oke --region eu-frankfurt-1`.",
        clause="nodes and control plane are billed until `gpuctl down`, or `gpuctl reap --expired` from cron",
        guards=(),
        sources=(OKE_PRICE,),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_texts_and_mechanisms_of_the_end_are_as_the_vendors_pages_say(name: str) -> None:
    case = CASES[name]
    cloud = describe(case.cluster.target.provider)
    assert cloud.ending_sentence(case.cluster, case.offer) == case.sentence
    assert cloud.ending_clause(case.cluster, case.offer) == case.clause
    guards = tuple((end.guard, end.at, end.ends_bill) for end in cloud.end_guards(case.cluster))
    assert guards == case.guards
    assert case.sources


@pytest.mark.parametrize("name", CASES)
def test_cluster_without_time_limit_has_no_mechanism(name: str) -> None:
    case = CASES[name]
    assert describe(case.cluster.target.provider).end_guards(replace(case.cluster, expires_at=None)) == ()


def test_cron_line_names_where_the_machines_are() -> None:
    target = Target(
        provider="oci", region="us-ashburn-1", compartment="ocid1.compartment.oc1..a", profile="my own"
    )
    placed = replace(NOT_SCHEDULED.cluster, target=target)
    where = "--region us-ashburn-1 --compartment ocid1.compartment.oc1..a --profile 'my own'"
    assert f"`*/10 * * * * {REAP} oci {where}`" in describe("oci").ending_sentence(placed, OFFER)
