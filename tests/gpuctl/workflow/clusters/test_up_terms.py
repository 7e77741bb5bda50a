"""Acceptance of an image's terms in `up`: only by a typed yes or --accept-terms."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuctl.app import App
from gpuctl.command_results.clusters import UpResult
from gpuctl.errors import Declined, Usage
from gpuctl.global_options import Options
from gpuctl.output import Output
from gpuctl.workflow.clusters.up import plan, up
from gpuctl.workflow.machines.inventory_files import HostKeys
from gpuctl.workflow.runs.unfinished_runs import ClusterRuns
from inventories.errors import InvalidInput
from inventories.specs.gpu_driver import DriverPlan
from inventories.specs.spec import Spec
from provision.provider import Plan
from tests.fakes.client import FakeCloud, start_fake

VMI = "NVIDIA GPU-Optimized VMI 26.04.1"
ORACLE = "Oracle-Linux-9.6-Gen2-GPU-2026.06.30-0"
SUBSCRIBE = "CreateAppCatalogSubscription"
TERMS = "https://cloudmarketplace.oracle.com/marketplace/oracle-terms-of-use"


class Tty(io.StringIO):
    """A terminal, as far as anybody asks."""

    def isatty(self) -> bool:
        return True


class Command:
    """`gpuctl up` with an account on a fake OCI. `typed`: the user's input; `None`: no terminal."""

    def __init__(self, fake: FakeCloud, *, typed: str | None, yes: bool = False) -> None:
        options = Options(yes=yes)
        self.fake = fake
        self.app = App(options)
        self.said = Tty() if typed is not None else io.StringIO()
        stdin = Tty(f"{typed}\n") if typed is not None else io.StringIO()
        self.app.__dict__["output"] = Output(options, stdin=stdin, stdout=io.StringIO(), stderr=self.said)

    def __call__(self, **fields: Any) -> UpResult:
        spec = Spec(shape="VM.GPU.A10.2", count=1, ssh_cidr="127.0.0.1/32", **fields)
        return up(self.app, spec, HostKeys(files=(), accept_new=False), runs=ClusterRuns(), wait=False)

    def plan(self, **fields: Any) -> Plan:
        return plan(self.app, Spec(shape="VM.GPU.A10.2", count=1, ssh_cidr="127.0.0.1/32", **fields))[0]

    @property
    def subscriptions(self) -> int:
        return len([call for call in self.fake.calls(SUBSCRIBE) if call["status"] == 200])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCloud]:
    with start_fake("oci", tmp_path_factory.mktemp("cloud")) as fake:
        yield fake


@pytest.fixture
def fake(running: FakeCloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCloud:
    for name in os.environ:
        if name.startswith(("OCI_", "GPUCTL_")):
            monkeypatch.delenv(name)
    for name, value in {**running.env, "GPUCTL_HOME": str(tmp_path), "GPUCTL_CONSISTENCY_S": "0.2"}.items():
        monkeypatch.setenv(name, value)
    running.reset()
    running.settings(launch_s=0.05, terminate_s=0.05)
    return running


@pytest.mark.parametrize(
    ("typed", "yes", "fields", "user", "subscriptions", "messages"),
    [
        ("yes", False, {}, "ubuntu", 1, [VMI, TERMS, "and accept the terms of"]),
        ("yes", False, {"accept_terms": True}, "ubuntu", 1, [VMI, TERMS]),
        (
            "no",
            True,
            {},
            "opc",
            0,
            [ORACLE, "is not taken: the terms are not accepted (add --accept-terms)"],
        ),
        (
            None,
            True,
            {},
            "opc",
            0,
            [ORACLE, "is not taken: the terms are not accepted (add --accept-terms)"],
        ),
        (None, True, {"accept_terms": True}, "ubuntu", 1, [VMI, TERMS]),
    ],
)
def test_up_accepts_image_terms_by_typed_yes_or_option_only(
    fake: FakeCloud,
    typed: str | None,
    yes: bool,
    fields: dict[str, Any],
    user: str,
    subscriptions: int,
    messages: list[str],
) -> None:
    command = Command(fake, typed=typed, yes=yes)
    document = command(**fields)
    assert {machine.user for machine in document.machines} == {user}
    assert command.subscriptions == subscriptions
    assert [words for words in messages if words not in command.said.getvalue()] == []


def test_up_without_consent_accepts_and_creates_nothing(fake: FakeCloud) -> None:
    with pytest.raises(Declined):
        Command(fake, typed="no")()
    with pytest.raises(Usage, match="--yes"):
        Command(fake, typed=None)(accept_terms=True)
    with pytest.raises(InvalidInput, match="--accept-terms"):
        Command(fake, typed=None, yes=True)(image="marketplace:NVIDIA GPU-Optimized VMI")
    assert fake.calls(mutating=True) == []


def test_up_dry_run_shows_image_and_terms_without_creating(fake: FakeCloud) -> None:
    on_terminal = Command(fake, typed="").plan()
    assert on_terminal.image == VMI
    assert on_terminal.terms.links[0] == TERMS
    in_a_pipe = Command(fake, typed=None).plan()
    assert (in_a_pipe.image, in_a_pipe.terms) == (ORACLE, None)
    assert "--accept-terms" in in_a_pipe.image_why
    with_terms = Command(fake, typed=None).plan(accept_terms=True)
    assert with_terms.image == VMI
    assert with_terms.driver == DriverPlan(source="image")
    assert fake.calls(mutating=True) == []


def test_plan_says_that_terms_were_accepted_before(fake: FakeCloud) -> None:
    Command(fake, typed=None, yes=True)(accept_terms=True)
    later = Command(fake, typed=None).plan(cluster="second")
    assert (later.image, later.terms) == (VMI, None)
    assert later.image_why == "it brings the driver; its terms were accepted before in this account"


def test_up_takes_next_image_if_account_may_not_accept_terms(fake: FakeCloud) -> None:
    fake.settings(refused_by_policy=[SUBSCRIBE])
    command = Command(fake, typed=None, yes=True)
    document = command(accept_terms=True)
    assert {machine.user for machine in document.machines} == {"opc"}
    output = command.said.getvalue()
    assert "manage app-catalog-listing in tenancy" in output
    assert f"The next image is taken: {ORACLE}" in output
    assert output.endswith("default-0 is not prepared yet: `gpuctl up` continues\n"), "nobody waited for it"


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["hold_before", "hold_after"])
def test_up_killed_while_accepting_terms_completes_when_rerun(fake: FakeCloud, phase: str) -> None:
    fake.fault(operation=SUBSCRIBE, kind=phase)
    words = [
        "up",
        "--shape",
        "VM.GPU.A10.2",
        "--ssh-cidr",
        "127.0.0.1/32",
        "--no-wait",
        "--yes",
        "--accept-terms",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "gpuctl", *words], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as killed:
        assert fake.held(wait_s=60) is not None
        killed.kill()
    fake.release()
    document = Command(fake, typed=None, yes=True)(accept_terms=True)
    assert {machine.user for machine in document.machines} == {"ubuntu"}
    kinds = [resource["kind"] for resource in fake.state()["resources"]]
    assert kinds.count("appcatalogsubscription") == 1
