"""Test OCI and AWS from end to end against fakes of their APIs: resources made, costs, and their removal."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from clouds import COUNT, KINDS, PRIVATE, CloudGpuctl, Clouds, Kind, cloud_gpuctl
from support import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def gpuctl(kind: Kind, clouds: Clouds, tmp_path: Path) -> Iterator[CloudGpuctl]:
    """Yield gpuctl with an empty account; gpuctl's resources must be gone at the end."""
    command = clouds.as_new(kind, tmp_path)
    yield command
    command.cloud.clear_faults()
    for cluster in sorted((command.home / "clusters").glob("*")):
        command.ok("down", "--yes", "--cluster", cluster.name)
    assert command.cloud.owned() == []


@pytest.mark.parametrize(
    "kind", [pytest.param(KINDS["oci"], marks=pytest.mark.whole), KINDS["aws"]], ids=["oci", "aws"]
)
def test_up_train_and_down_complete_on_fake_cloud(kind: Kind, tmp_path: Path) -> None:
    with cloud_gpuctl(kind, tmp_path, hosts=True) as gpuctl:
        spec = {
            "shape": kind.shape,
            "count": COUNT,
            "ssh_cidr": "127.0.0.1/32",
            "python": sys.executable,
            "network": {"ssh_port": gpuctl.cloud.settings()["ssh_port"]},
            # The fake clouds' machines lack the GPUs of their shapes.
            "driver": "none",
        }
        gpuctl.script("cloud.yaml", yaml.safe_dump(spec))
        up = gpuctl.ok("up", "-f", "cloud.yaml", "--yes", "--json").json
        assert [machine["rank"] for machine in up["machines"]] == [0, 1]
        assert up["provider"] == kind.provider
        assert up["region"] == kind.region
        assert up["hourly_usd"] > 0
        again = gpuctl.ok("up", "-f", "cloud.yaml", "--yes", "--json")
        assert again.json["machines"] == up["machines"]
        assert "nothing changed" in again.err

        refused = gpuctl("train", "--json")
        assert (refused.status, "--device cpu" in refused.err) == (1, True), "the shape's GPUs are not there"
        trained = gpuctl.ok("train", "--mode", "torchrun", "--device", "cpu", "--json", timeout_s=170).json
        assert trained["status"] == "succeeded"
        assert trained["world_size"] == COUNT
        assert trained["train"]["accuracy"] >= 0.95
        assert trained["cost_usd"] > 0
        assert gpuctl.ok("results", "--json").json == {"runs": [trained]}

        down = gpuctl.ok("down", "--yes", "--json").json
        assert down["leftovers"] == []
        assert gpuctl.cloud.owned() == []
        assert gpuctl.ok("down").status == 0


def test_up_adds_missing_machines_and_refuses_other_changes(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok(*gpuctl.up_words)
    made = len(gpuctl.cloud.calls(mutating=True))
    again = gpuctl.ok(*gpuctl.up_words)
    assert "nothing changed" in again.err
    assert len(gpuctl.cloud.calls(mutating=True)) == made
    more = gpuctl.ok("up", "--count", "3", "--ssh-cidr", "127.0.0.1/32", "--no-wait", "--yes", "--json").json
    assert [machine["rank"] for machine in more["machines"]] == [0, 1, 2]
    assert len({instance["place"].split("/")[0] for instance in gpuctl.cloud.live_instances()}) == 1
    other = "VM.GPU.A10.1" if gpuctl.kind.provider == "oci" else "g5.xlarge"
    for words, named in (
        (("--count", "1"), "default-1"),
        (("--shape", other), "--shape"),
        (("--image", "another"), "--image"),
    ):
        refused = gpuctl("up", *words, "--ssh-cidr", "127.0.0.1/32", "--yes")
        assert refused.status == 2, refused.err
        assert named in refused.err
    assert len(gpuctl.cloud.live_instances()) == 3


def test_up_replaces_machine_terminated_elsewhere(gpuctl: CloudGpuctl) -> None:
    first = gpuctl.ok(*gpuctl.up_words).json["machines"]
    end_from_outside(gpuctl, first[1]["id"])
    shown = gpuctl.ok("status", "--json").json["machines"]
    assert [machine["state"] for machine in shown] == ["running", "gone"]
    second = gpuctl.ok(*gpuctl.up_words).json["machines"]
    assert second[0]["id"] == first[0]["id"]
    assert second[1]["id"] != first[1]["id"]
    assert gpuctl.cloud.state()["most_instances"] == COUNT


def test_down_and_reap_keep_resources_of_others(gpuctl: CloudGpuctl, tmp_path: Path) -> None:
    """Other users' resources with names like gpuctl's outlive `down` and `reap`."""
    gpuctl.ok(*gpuctl.up_words)
    foreign = make_foreign_network(gpuctl)
    gpuctl.ok("down", "--yes")
    gpuctl.ok("reap", "--provider", gpuctl.kind.provider, "--yes")
    assert gpuctl.cloud.owned() == []
    assert foreign in {part["id"] for part in gpuctl.cloud.state()["resources"]}


def test_reap_lists_and_removes_with_no_local_state(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok(*gpuctl.up_words)
    shutil.rmtree(gpuctl.home)
    words = ("reap", "--provider", gpuctl.kind.provider)
    (result,) = gpuctl.ok(*words, "--dry-run", "--json").json["clusters"]
    assert result["cluster"] == "default"
    assert len(result["machines"]) == COUNT
    assert result["hourly_usd"] > 0
    assert result["age_s"] >= 0
    assert len(gpuctl.cloud.live_instances()) == COUNT, "a dry run"
    expired = gpuctl.ok(*words, "--expired", "--yes", "--json").json
    assert expired["removed"] == []
    assert len(gpuctl.cloud.live_instances()) == COUNT
    assert gpuctl(*words).status == 2, "without a terminal it needs --yes"
    gpuctl.ok(*words, "--yes")
    assert gpuctl.cloud.owned() == []


def test_up_enforces_max_cost_and_records_ttl(gpuctl: CloudGpuctl) -> None:
    refused = gpuctl(*gpuctl.up_words, "--max-cost", "1", "--ttl", "4h")
    assert refused.status == 2
    assert "--max-cost" in refused.err
    assert gpuctl.cloud.calls(mutating=True) == []
    gpuctl.ok(*gpuctl.up_words, "--max-cost", "1000", "--ttl", "4h")
    (result,) = gpuctl.ok("reap", "--provider", gpuctl.kind.provider, "--dry-run", "--json").json["clusters"]
    assert result["expires_at"] is not None
    shown = gpuctl.ok("status", "--json").json
    assert shown["hourly_usd"] > 0
    assert shown["cost_usd"] is not None
    gpuctl.ok(*gpuctl.up_words, "--max-cost", "1000", "--ttl", "4h")


def test_up_writes_private_key_to_its_file_only(gpuctl: CloudGpuctl) -> None:
    up = gpuctl.ok(*gpuctl.up_words, "--verbose")
    assert "PRIVATE KEY" not in up.out + up.err
    holders = [
        path.relative_to(gpuctl.home)
        for path in gpuctl.home.rglob("*")
        if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    ]
    assert holders == [Path("clusters/default/keys/id_ed25519")], "a host's key is forgotten once it is there"


def test_doctor_checks_cloud_credentials(gpuctl: CloudGpuctl) -> None:
    result = gpuctl("doctor", "--shape", gpuctl.kind.shape, "--count", "2", "--ttl", "4h", "--json")
    assert result.status == 0, result.err
    document = result.json
    assert any("credential" in finding["what"].lower() for finding in document["findings"]), document
    assert gpuctl.cloud.owned() == []
    bad = gpuctl("doctor", "--shape", gpuctl.kind.shape, env=broken_credentials(gpuctl.kind))
    assert bad.status == 1
    assert "✗" in bad.err


def broken_credentials(kind: Kind) -> dict[str, str]:
    return {
        "oci": {"OCI_CONFIG_FILE": "/nowhere", "OCI_CLI_CONFIG_FILE": "/nowhere"},
        "aws": {"AWS_ACCESS_KEY_ID": "AKIAWRONG", "AWS_SECRET_ACCESS_KEY": "wrong"},
    }[kind.provider]


def find_client(kind: Kind) -> str:
    folder = os.environ.get("GPUCTL_CLOUD_CLIENTS", "")
    result = shutil.which(kind.client, path=folder) or shutil.which(kind.client)
    if result is None:
        pytest.skip(f"there is no `{kind.client}` command, in $GPUCTL_CLOUD_CLIENTS or on the PATH")
    return result


def client_json(client: str, gpuctl: CloudGpuctl, *words: str) -> Any:
    """Return the parsed answer of the cloud's own command line."""
    env = {
        **gpuctl.env,
        "OCI_CLI_SUPPRESS_FILE_PERMISSIONS_WARNING": "True",
        "SUPPRESS_LABEL_WARNING": "True",
    }
    endpoint = ["--endpoint", gpuctl.cloud.url] if gpuctl.kind.client == "oci" else ["--output", "json"]
    config = ["--config-file", env["OCI_CONFIG_FILE"]] if gpuctl.kind.client == "oci" else []
    done = subprocess.run(
        [client, *words, *endpoint, *config], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout or "null")


def compartment_of(gpuctl: CloudGpuctl) -> str:
    text = Path(gpuctl.cloud.env["OCI_CONFIG_FILE"]).read_text()
    return next(line.split("=", 1)[1].strip() for line in text.splitlines() if line.startswith("tenancy"))


def end_from_outside(gpuctl: CloudGpuctl, instance: str) -> None:
    """End a machine as a user of the console would, and wait until it has ended."""
    client = find_client(gpuctl.kind)
    if gpuctl.kind.client == "aws":
        client_json(client, gpuctl, "ec2", "terminate-instances", "--instance-ids", instance)
    else:
        client_json(client, gpuctl, "compute", "instance", "terminate", "--force", "--instance-id", instance)
    wait_for(
        lambda: instance not in {i["id"] for i in gpuctl.cloud.live_instances()}, what="the machine's end"
    )


def make_foreign_network(gpuctl: CloudGpuctl) -> str:
    """Create another user's network, named like gpuctl's; return its id."""
    client = find_client(gpuctl.kind)
    if gpuctl.kind.client == "aws":
        named = "ResourceType=vpc,Tags=[{Key=Name,Value=gpuctl}]"
        words = ("ec2", "create-vpc", "--cidr-block", "10.9.0.0/16", "--tag-specifications", named)
        return client_json(client, gpuctl, *words)["Vpc"]["VpcId"]
    words = ("network", "vcn", "create", "--cidr-block", "10.9.0.0/16", "--display-name", "gpuctl")
    answer = client_json(client, gpuctl, *words, "--compartment-id", compartment_of(gpuctl))
    return str(answer["data"]["id"])


def test_up_reports_what_happens_at_end_of_ttl(gpuctl: CloudGpuctl) -> None:
    up = gpuctl.ok(*gpuctl.up_words, "--ttl", "90m")
    assert {"oci": "a schedule of OCI terminates", "aws": "terminates them"}[gpuctl.kind.provider] in up.err
    assert any(end["ends_bill"] for end in up.json["ends"])
    again = gpuctl("up", "--ttl", "5h", "--ssh-cidr", "127.0.0.1/32", "--yes")
    assert again.status == 2, "the machines' own timers can't be changed"
    assert "--ttl" in again.err


def test_up_warns_where_nothing_in_the_cloud_ends_the_bill(clouds: Clouds, tmp_path: Path) -> None:
    oci = clouds.as_new(KINDS["oci"], tmp_path)
    up = oci.ok(*oci.up_words, "--spot", "--ttl", "4h")
    (warning,) = [line for line in up.err.splitlines() if line.startswith("warning: ")]
    assert "Nothing in the cloud ends these machines" in warning
    assert re.search(r"\$\d+\.\d\d a day, until `gpuctl down", warning)
    assert re.search(r"`\*/10 \* \* \* \* \S*gpuctl reap --expired --yes --provider oci", warning)
    assert not any(end["ends_bill"] for end in up.json["ends"])
    assert oci.ok("status", "--json").json["expires_at"] is None
    assert "nothing ends these machines: a day costs $" in oci.ok("status").out
    oci.ok("down", "--yes")
    assert oci.cloud.owned() == []


def test_status_shows_what_a_killed_up_has_made(gpuctl: CloudGpuctl) -> None:
    launch = {"oci": "LaunchInstance", "aws": "RunInstances"}[gpuctl.kind.provider]
    gpuctl.cloud.fault(operation=launch, nth=1, kind="hold_after")
    process = gpuctl.start(*gpuctl.up_words)
    assert gpuctl.cloud.held(wait_s=30)
    process.kill()
    process.communicate()
    gpuctl.cloud.release()
    made = {instance["id"] for instance in gpuctl.cloud.live_instances()}
    shown = gpuctl.ok("status", "--json")
    assert {machine["id"] for machine in shown.json["machines"]} == made
    assert "gpuctl down" in shown.err
    assert shown.json["hourly_usd"] > 0, "it is billed"
    [listed] = gpuctl.ok("status", "--all", "--json").json["clusters"]
    assert (listed["state"], listed["problem"], len(listed["machines"])) == ("unfinished", None, len(made))
    assert "unfinished" in gpuctl.ok("clusters").out


def private_words(gpuctl: CloudGpuctl) -> tuple[str, ...]:
    """`up` of private machines."""
    return (*gpuctl.up_words, *PRIVATE)


def kinds_of(gpuctl: CloudGpuctl) -> set[str]:
    return {part.get("kind", "instance") for part in gpuctl.cloud.owned()}


@pytest.fixture
def aws(clouds: Clouds, tmp_path: Path) -> Iterator[CloudGpuctl]:
    """Yield gpuctl with an AWS account, whose private network is billed; it must be empty at the end."""
    command = clouds.as_new(KINDS["aws"], tmp_path)
    yield command
    command.cloud.clear_faults()
    command("down", "--yes")
    assert command.cloud.owned() == []


def ec2(gpuctl: CloudGpuctl) -> Any:
    """Return Amazon's client, as another user of the account."""
    return boto3.client(
        "ec2",
        endpoint_url=gpuctl.cloud.url,
        region_name=gpuctl.kind.region,
        aws_access_key_id=gpuctl.cloud.env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=gpuctl.cloud.env["AWS_SECRET_ACCESS_KEY"],
    )


def test_max_cost_includes_nat_gateway_of_private_cluster(aws: CloudGpuctl) -> None:
    plain = aws.ok(*aws.up_words, "--dry-run").json["hourly_usd"]
    limit = ("--ttl", "1h", "--max-cost", f"{plain + 0.02:.4f}")
    aws.ok(*aws.up_words, *limit, "--dry-run")
    refused = aws(*private_words(aws), *limit, "--dry-run")
    assert "more than --max-cost" in refused.err
    up = aws.ok(*private_words(aws), "--ttl", "1h")
    assert "nothing is billed after that" not in up.err
    assert "NAT gateway and its address stay, and are billed, about $0.05 an hour" in up.err


def killed(gpuctl: CloudGpuctl, operation: str, phase: str, *words: str) -> None:
    """Run a command and kill it where it makes that call."""
    gpuctl.cloud.fault(operation=operation, nth=1, kind=phase)
    process = gpuctl.start(*words)
    held = gpuctl.cloud.held(wait_s=30)
    process.kill()
    _, output = process.communicate()
    assert held, f"{operation} was not called: {output}"
    gpuctl.cloud.release()


def test_reap_removes_what_is_left_of_a_private_network(gpuctl: CloudGpuctl) -> None:
    """A NAT gateway alone, with no cluster and no local file, is billed as well."""
    killed(gpuctl, "CreateNatGateway", "hold_after", *private_words(gpuctl))
    assert "natgateway" in kinds_of(gpuctl)
    shutil.rmtree(gpuctl.home)
    gpuctl.ok("reap", "--provider", gpuctl.kind.provider, "--yes")
    assert gpuctl.cloud.owned() == []


def test_up_removes_all_if_capacity_is_for_some_only(gpuctl: CloudGpuctl) -> None:
    gpuctl.cloud.settings(capacity={gpuctl.kind.shape: {"*": COUNT - 1}})
    up = gpuctl(*gpuctl.up_words)
    assert up.status == 3, up.err
    for zone in gpuctl.kind.zones:
        assert zone in up.err
    assert gpuctl.cloud.owned() == []
    assert gpuctl.cloud.state()["most_instances"] <= COUNT
    assert not (gpuctl.home / "clusters" / "default").exists()


def test_down_keeps_shared_network_until_last_cluster(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok(*gpuctl.up_words)
    gpuctl.ok(*gpuctl.up_words, "--cluster", "second")
    networks = [part for part in gpuctl.cloud.owned() if part.get("kind") in ("vcn", "vpc")]
    assert len(networks) == 1
    first = gpuctl.ok("down", "--yes")
    assert "second" in first.err, "it says for whom the network stays"
    assert len(gpuctl.cloud.live_instances()) == COUNT
    gpuctl.ok("down", "--yes", "--cluster", "second")
    assert gpuctl.cloud.owned() == []


def test_up_replaces_ssh_address_in_firewall_rules(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok(*gpuctl.up_words)
    words = ("up", "--ssh-cidr", "127.0.0.9/32", "--no-wait", "--yes")
    gpuctl.ok(*words)
    kinds = {"oci": "NetworkSecurityGroupSecurityRules", "aws": "SecurityGroupIngress"}
    changed = [
        call["operation"]
        for call in gpuctl.cloud.calls(mutating=True)
        if kinds[gpuctl.kind.provider] in call["operation"]
    ]
    assert len(changed) == 3, "made, added, removed"
    made = len(gpuctl.cloud.calls(mutating=True))
    gpuctl.ok(*words)
    assert len(gpuctl.cloud.calls(mutating=True)) == made


def test_private_cluster_is_created_once_and_removed(gpuctl: CloudGpuctl) -> None:
    up = gpuctl.ok(*private_words(gpuctl))
    machines = up.json["machines"]
    assert [machine["host"] for machine in machines] == [machine["private_ip"] for machine in machines]
    assert all(machine["host"] for machine in machines)
    assert ("$0.045 an hour" in up.err) == (gpuctl.kind.provider == "aws"), "what costs money is told"
    made = len(gpuctl.cloud.calls(mutating=True))
    gpuctl.ok(*private_words(gpuctl))
    assert len(gpuctl.cloud.calls(mutating=True)) == made
    gpuctl.ok("down", "--yes")
    assert gpuctl.cloud.owned() == []
