"""Wrong input of `up`: a sentence and status 2, before any call to a cloud."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuctl.command_line import cli
from gpuctl.workflow.clusters.choose_provider import choose_provider
from inventories.disk.store import Store
from inventories.specs.spec import Spec
from provision.clouds import cloud_of
from provision.errors import RefusedPlan, UnknownProvider

Up = Callable[..., tuple[int, str, str]]


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Up:
    """`gpuctl up --dry-run` in this process, with a home of its own and no account; status, stdout, stderr."""
    for name in os.environ:
        if name.startswith(("OCI_", "AWS_", "GPUCTL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        status = cli.main(["up", *words, "--dry-run", "--ssh-cidr", "203.0.113.7/32"])
        return status, *capsys.readouterr()

    return run


@pytest.mark.parametrize(("shape", "file"), [("VM.GPU.A10.2", ".oci/config"), ("g5.12xlarge", ".aws/config")])
def test_up_refuses_a_profile_that_is_not_there_and_outlines_without_an_account(
    up: Up, tmp_path: Path, shape: str, file: str
) -> None:
    assert up("--shape", shape)[0] == 0
    assert up("--shape", shape, "--profile", "nope")[0] == 2
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text("[DEFAULT]\nregion = us-east-1\n")
    status, out, err = up("--shape", shape, "--profile", "nope", "--json")
    assert status == 2
    assert json.loads(out)["error"]["type"] == "UnknownProfile"
    assert "no profile 'nope'" in err
    (tmp_path / "spec.yaml").write_text(f"shape: {shape}\nprofile: nope\n")
    assert up("-f", "spec.yaml")[0] == 2


def test_plan_without_an_account_has_the_defaults_and_says_that_limits_are_not_checked(
    up: Up, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    config = tmp_path / "home" / "config.yaml"
    config.write_text("max_hourly_usd: 1\nttl: 8h\nidle: 30m\nregion: [us-east-2, us-ashburn-1]\n")
    status, out, err = up("--shape", "VM.GPU.A10.2", "--json")
    assert status == 0, err
    plan = json.loads(out)
    assert (plan["region"], plan["until_s"]) == ("us-ashburn-1", 8 * 3600)
    assert plan["notes"][-2:] == [
        "--region us-ashburn-1, --ttl 8h, --idle 30m: the default in ~/home/config.yaml",
        "the limits in ~/home/config.yaml are not checked: that needs the account",
    ]
    typed = json.loads(up("--shape", "g5.12xlarge", "--ttl", "none", "--region", "us-west-2", "--json")[1])
    assert (typed["region"], typed["until_s"]) == ("us-west-2", None)
    config.write_text("ttl: 8\n")
    status, _, err = up("--shape", "g5.12xlarge")
    assert (status, f"{config}:1: key 'ttl': " in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--shape", "a10"),
            "A10 is a GPU. Name a shape that has it, as in --shape VM.GPU.A10.1: VM.GPU.A10.1 (1 GPU), "
            "VM.GPU.A10.2 (2 GPUs), BM.GPU.A10.4 (4 GPUs).",
        ),
        (("--shape", "A10:8"), "No provider has a shape 'A10:8'. Like it: g5.48xlarge (8 x A10G)."),
        (("--shape", "A10:2"), "as in --shape VM.GPU.A10.2: VM.GPU.A10.2 (2 GPUs)."),
        (("--shape", "L40S", "--provider", "oci"), "as in --shape BM.GPU.L40S.4: BM.GPU.L40S.4 (4 GPUs)."),
        (("--shape", "A10.2"), "No provider has a shape 'A10.2'. Like it: VM.GPU.A10.2 (2 x A10)."),
        (("--shape", "p4d"), "Like it: p4d.24xlarge (8 x A100), p4de.24xlarge"),
        (("--shape", "BM"), ", …; `gpuctl shapes BM` lists all."),
        (("--shape", "zzz"), "No provider has a shape 'zzz'."),
        (
            ("--shape", "VM.GPU.A10.2", "--provider", "aws"),
            "VM.GPU.A10.2 is a shape of OCI: leave out --provider aws",
        ),
        (
            ("--shape", "VM.GPU.A10.2", "--region", "us-east-1"),
            "us-east-1 is a region of AWS, not of OCI. Near it is us-ashburn-1.",
        ),
        (
            ("--shape", "g5.xlarge", "--region", "eu-jovanovac-1"),
            "eu-jovanovac-1 is a region of OCI, not of AWS.",
        ),
        (
            ("--shape", "g5.xlarge", "--region", "us-esat-1"),
            "AWS has no region 'us-esat-1'; did you mean 'us-east-1'?",
        ),
        (
            ("--shape", "g5.xlarge", "--region", "useast1"),
            "AWS has no region 'useast1'; did you mean 'us-east-1'?",
        ),
        (
            ("--shape", "g5.xlarge", "--provider", "eks", "--region", "eu-wset-1"),
            "AWS has no region 'eu-wset-1'; did you mean 'eu-west-1'?",
        ),
    ],
)
def test_up_says_what_a_shape_or_region_is_that_can_not_be_meant(
    up: Up, words: tuple[str, ...], message: str
) -> None:
    status, _, err = up(*words)
    assert (status, message in err) == (2, True), err


def test_plan_without_an_account_shows_terms_and_unknown_branch(up: Up) -> None:
    _, out, _ = up("--shape", "VM.GPU.A10.2")
    assert "terms  " in out
    assert "of NVIDIA GPU-Optimized VMI, which --accept-terms accepts" in out
    _, out, err = up("--shape", "VM.GPU.A10.2", "--driver", "999", "--json")
    assert "gpuctl knows no branch 999" in err
    assert json.loads(out)["terms"] is None
    assert json.loads(up("--shape", "VM.GPU.A10.2", "--driver", "580", "--json")[1])["notes"] == []


def test_up_takes_shape_in_any_case(up: Up) -> None:
    status, out, _ = up("--shape", "vm.gpu.a10.2", "--json")
    assert status == 0
    assert json.loads(out)["create"][0]["shape"] == "VM.GPU.A10.2"


def test_regions_of_both_sdks_are_told_apart() -> None:
    import boto3
    import oci

    assert {cloud_of(region) for region in oci.regions.REGIONS} == {"oci"}
    session = boto3.Session()
    regions = [
        region
        for name in session.get_available_partitions()
        for region in session.get_available_regions("ec2", name)
    ]
    assert {cloud_of(region) for region in regions} == {"aws"}
    assert cloud_of("iad") is None


def test_cluster_of_another_provider_is_refused_with_the_command_for_a_new_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name, provider in (("default", "local"), ("default-oci", "oci")):
        store.cluster(name).make()
        store.cluster(name).journal.append("up", provider=provider)
    with pytest.raises(RefusedPlan, match="gpuctl up --cluster default-oci-2 …"):
        choose_provider(store.cluster("default"), Spec(shape="VM.GPU.A10.2"))
    with pytest.raises(UnknownProvider, match="no provider 'gcp'"):
        choose_provider(store.cluster("default"), Spec(provider="gcp"))
