"""`up` on machines that somebody stopped: what they cost, and whether they can be started again."""

from dataclasses import replace

import pytest

from provision.errors import RefusedPlan
from provision.records import CloudCluster, Instance, Target, Zone
from provision.rented.planning.spec_checks import refuse_stopped

CLUSTER = CloudCluster(
    name="demo",
    id="1",
    owner="ann@desk",
    created_at="2026-11-27T13:30:00+00:00",
    target=Target(provider="oci", region="eu-frankfurt-1"),
    shape="VM.GPU.A10.2",
)
MACHINE = Instance(
    id="m-0",
    tags={},
    rank=0,
    state="stopped",
    shape="VM.GPU.A10.2",
    zone=Zone(name="a"),
    launched_at="2026-11-27T13:31:00+00:00",
)
AWS = replace(CLUSTER, target=Target(provider="aws", region="us-east-1"), shape="g5.xlarge")
START = "Start them in the cloud's console and run `gpuctl up` again, or remove the cluster with"
DOWN = "`gpuctl down --cluster demo`."


@pytest.mark.parametrize(
    ("cluster", "spot", "advice"),
    [
        (CLUSTER, False, f"{START} {DOWN}"),
        (replace(CLUSTER, shape="BM.GPU.H100.8"), False, f"They are billed as if they ran. {START} {DOWN}"),
        (CLUSTER, True, f"Spot machines can't be started again: remove the cluster with {DOWN}"),
        (AWS, False, f"{START} {DOWN}"),
    ],
)
def test_up_refuses_stopped_machines_with_their_bill_and_the_way_out(
    cluster: CloudCluster, spot: bool, advice: str
) -> None:
    with pytest.raises(RefusedPlan) as error:
        refuse_stopped(cluster, [replace(MACHINE, spot=spot)])
    assert str(error.value) == f"These machines are stopped: m-0. {advice}"


def test_up_takes_machines_that_run() -> None:
    refuse_stopped(CLUSTER, [replace(MACHINE, state="running"), replace(MACHINE, state="pending")])
