"""The plan of `up` for people and as JSON: pure, from plans made by hand."""

import io
import json
from dataclasses import replace

import pytest
from support import a_machine

from gpuctl.global_options import Options
from gpuctl.output import Output
from gpuctl.workflow.clusters import up_plan
from gpuctl.workflow.machines.setup_state import NO_SETUP, Setup
from inventories.codec import plain
from inventories.specs.gpu_driver import NO_DRIVER, DriverPlan
from inventories.specs.setup_steps import SetupStep
from inventories.specs.spec import Spec
from provision.pricing.plan_price import PlanPrice
from provision.provider import Plan, PlannedMachine
from provision.records import PlannedEnd, PlannedRequest, PlannedResource, Terms

PRICE = PlanPrice(machines_usd=8.0, disks_usd=0.0233)
PLAN = Plan(
    spec=Spec(cluster="a10"),
    provider="oci",
    region="us-ashburn-1",
    create=tuple(PlannedMachine(name=f"a10-{rank}", rank=rank, shape="VM.GPU.A10.2") for rank in (0, 1)),
    keep=(),
    price=PRICE,
    free=False,
    requests=(PlannedRequest(operation="LaunchInstance", body={"displayName": "a10-0"}),),
    resources=(
        PlannedResource(action="create", kind="instance", count=2, detail="VM.GPU.A10.2", hourly_usd=8.0),
        PlannedResource(
            action="create", kind="boot-volume", count=2, detail="200 GB each", hourly_usd=0.0233
        ),
        PlannedResource(action="use", kind="vcn", name="gpuctl", id="ocid1.vcn", detail="10.78.0.0/16"),
    ),
    ssh_cidrs=("203.0.113.7/32",),
    until_s=4 * 3600.0,
    ending="then a schedule of OCI terminates them, which ends their bill",
    image="Canonical-Ubuntu-24.04",
    image_why="the newest",
    driver=DriverPlan(source="install", version="580"),
)
SPOT = PlanPrice(machines_usd=4.6, disks_usd=0.04, varies=True, most_machines_usd=11.34)
RETAINED = a_machine(name="a10-0", host="192.0.2.1", user="ubuntu", private_ip="10.0.0.2", gpus=2)


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def shown(plan: Plan, setup: Setup = NO_SETUP) -> str:
    out = io.StringIO()
    Output(Options(), stdout=out).table(up_plan.drawn(plan, setup))
    return out.getvalue()


def test_plan_shows_resources_image_driver_and_price() -> None:
    assert (
        shown(PLAN)
        == """\
Plan for cluster a10  oci · us-ashburn-1

        resource        what                  an hour
create  2 machines      VM.GPU.A10.2            $8.00
create  2 boot volumes  200 GB each            $0.023
use     VCN             gpuctl, 10.78.0.0/16

image   Canonical-Ubuntu-24.04 (the newest)
driver  installed on the machines: Ubuntu's packages, branch 580
SSH     from 203.0.113.7/32, with a key of the cluster's own
ends    in 4 h: then a schedule of OCI terminates them, which ends their bill
price   $8.02 an hour · $24.07 for 3 h · $32.09 for the 4 h until they end
        list prices, without taxes, traffic and discounts
"""
    )


def test_a_plan_fits_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown(replace(PLAN, notes=("a note of many words " * 9,))).splitlines()
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"until_s": None, "ending": ""},
            "nothing ends these machines: a day costs $192.56 (add --ttl 4h)\n"
            "price   $8.02 an hour · $24.07 for 3 h · $192.56 a day\n",
        ),
        ({"until_s": 5400.0}, "price   $8.02 an hour · $12.03 for the 1 h 30 min until they end\n"),
        ({"until_s": 10140.0}, "ends    in 2 h 49 min: "),
        ({"until_s": 10800.0}, "price   $8.02 an hour · $24.07 for the 3 h until they end\n"),
        (
            {"price": SPOT},
            "price   $4.64 an hour · $13.92 for 3 h · $18.56 for the 4 h until they end\n"
            "        spot machines at the price of now, which changes: at most $11.38 an hour\n",
        ),
        (
            {"price": replace(SPOT, machines_usd=None)},
            "price   at most $11.38 an hour · $34.14 for 3 h · $45.52 for the 4 h until they end\n",
        ),
        (
            {"price": replace(PRICE, disks_usd=None), "until_s": None},
            "nothing ends these machines: what a day costs is not known (add --ttl 4h)\n"
            "price   not known: `gpuctl shapes --refresh-prices --provider oci` asks for it\n",
        ),
        (
            {"provider": "kubernetes", "region": None, "price": PlanPrice(machines_usd=None), "until_s": None},
            "nothing ends these machines: what a day costs is not known (`gpuctl down --cluster a10` ends them)\n"
            "price   not known\n",
        ),
        (
            {"price": replace(SPOT, most_machines_usd=None), "provider": "aws", "region": "eu-west-1"},
            "spot machines at the price of now, which changes: at most what "
            "`gpuctl shapes --refresh-prices --provider aws\n        --region eu-west-1` tells\n",
        ),
        (
            {"free": True, "price": PlanPrice(), "until_s": None},
            "SSH     from 203.0.113.7/32, with a key of the cluster's own\nprice   free\n",
        ),
        (
            {"terms": Terms(name="NVIDIA GPU-Optimized VMI", links=("https://a.example", "https://b.example"))},
            "terms   of NVIDIA GPU-Optimized VMI, accepted with a yes: https://a.example https://b.example\n",
        ),
        ({"notes": ("mind this",)}, "note    mind this\nprice   $8.02 an hour"),
        ({"driver": DriverPlan(source="image")}, "driver  the image's own\n"),
        ({"driver": DriverPlan(source="none")}, "driver  none is installed\n"),
        ({"driver": NO_DRIVER, "spec": Spec(driver="none")}, "driver  none is installed\n"),
        (
            {"driver": NO_DRIVER, "spec": Spec(driver="none"), "image": "NVIDIA GPU-Optimized VMI 26.04.1"},
            "driver  the image's own, not checked (--driver none)\n",
        ),
        (
            {"terms": Terms(name="NVIDIA GPU-Optimized VMI", links=())},
            "terms   of NVIDIA GPU-Optimized VMI, which --accept-terms accepts, or a yes on a terminal; the account",
        ),
        (
            {"ssh_cidrs": ("<your address>/32",), "ssh_unknown": "checkip does not tell (timed out)"},
            "SSH     from <your address>/32 (not known: checkip does not tell (timed out); --ssh-cidr names it)\n",
        ),
        (
            {"create": (), "requests": ()},
            "nothing to create: the machines are as asked for\n",
        ),
    ],
)  # fmt: skip
def test_plan_shows_end_time_price_terms_and_driver(change: dict[str, object], text: str) -> None:
    assert text in shown(replace(PLAN, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "question"),
    [
        ({}, "Create 2 machines ($8.02 an hour, $32.09 until they end)?"),
        (
            {"until_s": None},
            "Create 2 machines ($8.02 an hour, $192.56 a day, and nothing ends them)?",
        ),
        (
            {"create": PLAN.create[1:], "keep": (RETAINED,)},
            "Create 1 machine (2 in all: $8.02 an hour, $32.09 until they end)?",
        ),
        (
            {"end": ("i-9",)},
            "Create 2 machines and end i-9, which no rank needs ($8.02 an hour, $32.09 until they end)?",
        ),
        (
            {"create": (), "keep": (RETAINED,), "end": ("i-0abc",)},
            "End i-0abc, which no rank needs (1 in all: $8.02 an hour, $32.09 until they end)?",
        ),
        ({"price": replace(PRICE, disks_usd=None)}, "Create 2 machines (price not known)?"),
        (
            {"price": replace(SPOT, machines_usd=None)},
            "Create 2 machines (at most $11.38 an hour, $45.52 until they end)?",
        ),
        (
            {"terms": Terms(name="NVIDIA GPU-Optimized VMI", links=())},
            "Create 2 machines ($8.02 an hour, $32.09 until they end) and accept the terms of NVIDIA "
            "GPU-Optimized VMI?",
        ),
    ],
)  # fmt: skip
def test_question_names_machines_and_total_cost(change: dict[str, object], question: str) -> None:
    assert up_plan.question(replace(PLAN, **change)) == question  # type: ignore[arg-type]


def test_question_names_machines_in_use_and_all_others_that_end() -> None:
    plan = replace(PLAN, create=(), keep=(RETAINED,), end=("i-2", "i-9"))
    start = "End a10-2 with the files there and i-9, which no rank needs (1 in all: "
    assert up_plan.question(plan, {"i-2": "a10-2"}).startswith(start)


def test_plan_lists_what_machines_run_once() -> None:
    steps = (SetupStep(kind="run", text="echo one"), SetupStep(kind="fab", text="prepare --bucket b"))
    setup = Setup(steps=steps, machines=("a10-0", "a10-1"))
    lines = [line.strip() for line in shown(PLAN, setup).splitlines()]
    at = lines.index("setup   once on a10-0, a10-1:")
    assert lines[at + 1 : at + 3] == ["1. echo one", "2. gpuctl fab prepare --bucket b"]
    assert "setup" not in shown(PLAN, replace(setup, machines=()))
    assert plain(up_plan.document(PLAN, setup))["setup"] == {  # type: ignore[index, call-overload]
        "steps": [
            {"kind": "run", "text": "echo one", "folder": None},
            {"kind": "fab", "text": "prepare --bucket b", "folder": None},
        ],
        "machines": ["a10-0", "a10-1"],
    }


def test_document_lists_requests_driver_and_totals() -> None:
    document = plain(up_plan.document(PLAN))
    assert isinstance(document, dict)
    assert json.loads(json.dumps(document)) == document
    assert document["requests"] == [{"operation": "LaunchInstance", "body": {"displayName": "a10-0"}}]
    assert document["driver"] == {"source": "install", "version": "580"}
    assert document["image"] == "Canonical-Ubuntu-24.04"
    assert (document["terms"], document["until_s"]) == (None, 14400.0)
    assert (document["hourly_usd"], document["total_usd"]) == (8.0233, 32.0932)
    assert document["ssh"] == {"cidrs": ["203.0.113.7/32"], "port": 22, "unknown": None}
    endless = up_plan.document(replace(PLAN, until_s=None))
    assert (endless.until_s, endless.total_usd) == (None, 192.5592)
    unknown = up_plan.document(replace(PLAN, price=replace(PRICE, machines_usd=None)))
    assert (unknown.hourly_usd, unknown.total_usd) == (None, None)


def test_plan_shows_unknown_driver() -> None:
    plan = replace(PLAN, driver=None)
    assert "driver  not known without the account\n" in shown(plan)
    assert up_plan.document(plan, account_asked=False).driver is None


def test_requests_text_shows_one_request_per_line() -> None:
    assert up_plan.requests_text(PLAN) == '\n1 request\nLaunchInstance {"displayName": "a10-0"}'


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (30, "30 s"),
        (2700, "45 min"),
        (5400, "1 h 30 min"),
        (14400, "4 h"),
        (12600, "3 h 30 min"),
        (86400, "24 h"),
        (180000, "2 d 2 h"),
    ],
)  # fmt: skip
def test_span_formats_seconds(seconds: float, text: str) -> None:
    assert up_plan.span(seconds) == text


def test_plan_names_the_end_without_use_and_who_ends_the_bill() -> None:
    end = PlannedEnd(guard="idle", at=None, ends_bill=True)
    clause = "after 30m without use the machines shut down, which ends their bill"
    plan = replace(PLAN, until_s=None, ending="", ends=(end,), idle=clause)
    assert clause in " ".join(shown(plan).split())
    assert "nothing ends" not in shown(plan) + up_plan.question(plan)
    assert list(up_plan.standing_notes(plan))[-1] == clause
    assert plain(up_plan.document(plan))["ends"] == [{"guard": "idle", "at": None, "ends_bill": True}]  # type: ignore[index,call-overload]
    on_oci = replace(plan, ends=(replace(end, ends_bill=False),))
    assert "nothing ends these machines" in " ".join(shown(on_oci).split())
