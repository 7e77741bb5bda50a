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

LATE_FAILURES = {
    "oci": "Out of host capacity.",
    "aws": "Server.InsufficientInstanceCapacity: Insufficient capacity to satisfy instance request",
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    result: Kind = request.param
    return result


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
        (("--count", "1"), "gpuctl down"),
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


def test_up_tries_next_zone_when_first_has_no_capacity(gpuctl: CloudGpuctl) -> None:
    first, second, _ = gpuctl.kind.zones
    gpuctl.cloud.settings(capacity={gpuctl.kind.shape: {first: 0}})
    up = gpuctl.ok(*gpuctl.up_words)
    launches = [
        call for call in gpuctl.cloud.calls() if call["operation"] in ("LaunchInstance", "RunInstances")
    ]
    # OCI's capacity report is read before, so that not even that one call is lost there.
    refused = [call["code"] for call in launches if call["status"] >= 400]
    assert refused == {"oci": [], "aws": ["InsufficientInstanceCapacity"]}[gpuctl.kind.provider]
    assert {instance["place"].split("/")[0] for instance in gpuctl.cloud.live_instances()} == {second}
    assert (first in up.err) == bool(refused)


def test_up_removes_all_if_capacity_is_for_some_only(gpuctl: CloudGpuctl) -> None:
    gpuctl.cloud.settings(capacity={gpuctl.kind.shape: {"*": COUNT - 1}})
    up = gpuctl(*gpuctl.up_words)
    assert up.status == 3, up.err
    for zone in gpuctl.kind.zones:
        assert zone in up.err
    assert gpuctl.cloud.owned() == []
    assert gpuctl.cloud.state()["most_instances"] <= COUNT
    assert not (gpuctl.home / "clusters" / "default").exists()


def test_up_stops_after_first_quota_error(gpuctl: CloudGpuctl) -> None:
    gpuctl.cloud.settings(quota={gpuctl.kind.shape: COUNT - 1})
    up = gpuctl(*gpuctl.up_words)
    assert up.status == 3, up.err
    assert gpuctl.cloud.owned() == []
    tried = {call["operation"] for call in gpuctl.cloud.calls()} & {"LaunchInstance", "RunInstances"}
    refused = [
        call for call in gpuctl.cloud.calls() if call["operation"] in tried and (call["status"] or 0) >= 400
    ]
    assert len(refused) <= 1


def test_up_tries_next_zone_after_late_launch_failure(gpuctl: CloudGpuctl) -> None:
    gpuctl.cloud.settings(late_failure={gpuctl.kind.zones[0]: LATE_FAILURES[gpuctl.kind.provider]})
    gpuctl.ok(*gpuctl.up_words)
    assert {instance["place"].split("/")[0] for instance in gpuctl.cloud.live_instances()} == {
        gpuctl.kind.zones[1]
    }


@pytest.mark.parametrize("fault", ["drop_before", "drop_after", "duplicate"])
def test_up_survives_lost_replies_and_duplicate_requests(gpuctl: CloudGpuctl, fault: str) -> None:
    """The first attempt of each changing call gets the fault."""
    gpuctl.cloud.settings(list_lag_s=0.3)
    total = calls_of_a_good_run(gpuctl)
    for nth in range(1, total + 1, 2):
        gpuctl.cloud.fault(operation="*", mutating=True, nth=nth, kind=fault)
    gpuctl.ok(*gpuctl.up_words)
    assert len(gpuctl.cloud.live_instances()) == COUNT
    assert gpuctl.cloud.state()["most_instances"] == COUNT


def calls_of_a_good_run(gpuctl: CloudGpuctl) -> int:
    gpuctl.ok(*gpuctl.up_words)
    total = len(gpuctl.cloud.calls(mutating=True))
    gpuctl.ok("down", "--yes")
    assert gpuctl.cloud.owned() == []
    return total


def test_up_survives_throttling(gpuctl: CloudGpuctl) -> None:
    throttled = {
        "oci": {"status": 429, "code": "TooManyRequests"},
        "aws": {"status": 503, "code": "RequestLimitExceeded"},
    }[gpuctl.kind.provider]
    for nth in (2, 3, 7, 8, 12, 13, 14):
        gpuctl.cloud.fault(operation="*", nth=nth, kind="error", message="Slow down.", **throttled)
    gpuctl.ok(*gpuctl.up_words)
    assert len(gpuctl.cloud.live_instances()) == COUNT


def test_down_lists_live_machines_if_credentials_expire(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok(*gpuctl.up_words)
    expired = {
        "oci": {"status": 401, "code": "NotAuthenticated"},
        "aws": {"status": 400, "code": "RequestExpired"},
    }[gpuctl.kind.provider]
    gpuctl.cloud.fault(operation="Terminate*", nth=1, times=0, kind="error", message="Expired.", **expired)
    down = gpuctl("down", "--yes")
    assert down.status not in (0, 130), down.err
    for instance in gpuctl.cloud.live_instances():
        assert instance["id"] in down.err, "what is live is listed"


def test_down_and_reap_keep_resources_of_others(gpuctl: CloudGpuctl, tmp_path: Path) -> None:
    """Other users' resources with names like gpuctl's outlive `down` and `reap`."""
    gpuctl.ok(*gpuctl.up_words)
    foreign = make_foreign_network(gpuctl)
    gpuctl.ok("down", "--yes")
    gpuctl.ok("reap", "--provider", gpuctl.kind.provider, "--yes")
    assert gpuctl.cloud.owned() == []
    assert foreign in {part["id"] for part in gpuctl.cloud.state()["resources"]}


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


def test_up_dry_run_shows_full_plan_and_creates_nothing(gpuctl: CloudGpuctl) -> None:
    plan = gpuctl.ok(*gpuctl.up_words, "--dry-run").json
    assert len(plan["create"]) == COUNT
    assert plan["requests"][-1]["operation"] in ("RunInstances", "LaunchInstance")
    report = json.dumps(plan)
    assert "127.0.0.1/32" in report
    assert "PRIVATE KEY" not in report
    assert gpuctl.cloud.calls(mutating=True) == []
    assert gpuctl.cloud.owned() == []


def test_up_writes_private_key_to_its_file_only(gpuctl: CloudGpuctl) -> None:
    up = gpuctl.ok(*gpuctl.up_words, "--verbose")
    assert "PRIVATE KEY" not in up.out + up.err
    holders = [
        path.relative_to(gpuctl.home)
        for path in gpuctl.home.rglob("*")
        if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    ]
    assert holders == [Path("clusters/default/keys/id_ed25519")], "a host's key is forgotten once it is there"


def test_cloud_client_lists_the_machines_of_up_and_down(gpuctl: CloudGpuctl) -> None:
    client = find_client(gpuctl.kind)
    made = {machine["id"] for machine in gpuctl.ok(*gpuctl.up_words).json["machines"]}
    assert listed_by(client, gpuctl) == made
    gpuctl.ok("down", "--yes")
    assert listed_by(client, gpuctl) == set()


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


def listed_by(client: str, gpuctl: CloudGpuctl) -> set[str]:
    """Ids of the machines that are not gone."""
    if gpuctl.kind.client == "aws":
        answer = client_json(client, gpuctl, "ec2", "describe-instances")
        machines = [i for group in answer["Reservations"] for i in group["Instances"]]
        return {i["InstanceId"] for i in machines if i["State"]["Name"] != "terminated"}
    words = ("compute", "instance", "list", "--all", "--compartment-id", compartment_of(gpuctl))
    answer = client_json(client, gpuctl, *words) or {"data": []}
    return {i["id"] for i in answer["data"] if i["lifecycle-state"] != "TERMINATED"}


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
        made: str = client_json(client, gpuctl, *words)["Vpc"]["VpcId"]
        return made
    words = ("network", "vcn", "create", "--cidr-block", "10.9.0.0/16", "--display-name", "gpuctl")
    answer = client_json(client, gpuctl, *words, "--compartment-id", compartment_of(gpuctl))
    return str(answer["data"]["id"])


def test_up_dry_run_works_without_account(gpuctl: CloudGpuctl) -> None:
    plan = gpuctl.ok(*gpuctl.up_words, "--dry-run", env=no_credentials(gpuctl.kind))
    assert len(plan.json["create"]) == COUNT
    assert "127.0.0.1/32" in json.dumps(plan.json["requests"])
    assert not plan.json["account_asked"]
    refused = gpuctl(*gpuctl.up_words, env=no_credentials(gpuctl.kind))
    assert refused.status == 1
    assert gpuctl.cloud.calls(mutating=True) == []


def test_up_dry_run_works_without_region_and_address(gpuctl: CloudGpuctl) -> None:
    words = ("up", "--shape", gpuctl.kind.shape, "--count", "2", "--dry-run", "--json")
    nothing = {
        **no_credentials(gpuctl.kind),
        "AWS_DEFAULT_REGION": "",
        "GPUCTL_ADDRESS_URL": "http://127.0.0.1:1/",
    }
    plan = gpuctl.ok(*words, env=nothing).json
    assert plan["region"] is None
    assert plan["ssh"]["cidrs"] == ["<your address>/32"]


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


def test_reap_looks_into_every_compartment(clouds: Clouds, tmp_path: Path) -> None:
    gpuctl = clouds.as_new(KINDS["oci"], tmp_path)
    words = ("iam", "compartment", "list", "--all", "--compartment-id", compartment_of(gpuctl))
    result = client_json(find_client(gpuctl.kind), gpuctl, *words)["data"]
    inner = next(item["id"] for item in result if item["name"] == "gpu")
    gpuctl.ok(*gpuctl.up_words, "--compartment", inner)
    shutil.rmtree(gpuctl.home)
    gpuctl.ok("reap", "--provider", "oci", "--yes")
    assert gpuctl.cloud.owned() == []


def no_credentials(kind: Kind) -> dict[str, str]:
    return {
        "oci": {"OCI_CONFIG_FILE": "/nowhere", "OCI_CLI_CONFIG_FILE": "/nowhere"},
        "aws": {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
    }[kind.provider]


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


def gateways(gpuctl: CloudGpuctl) -> list[str]:
    result = ec2(gpuctl).describe_nat_gateways()["NatGateways"]
    return [gateway["NatGatewayId"] for gateway in result if gateway["State"] == "available"]


def test_up_recreates_deleted_nat_gateway(aws: CloudGpuctl) -> None:
    aws.ok(*private_words(aws))
    (old,) = gateways(aws)
    ec2(aws).delete_nat_gateway(NatGatewayId=old)
    machines = aws.cloud.live_instances()
    up = aws.ok(*private_words(aws))
    (new,) = gateways(aws)
    assert new != old
    assert f"waiting for the NAT gateway {new}" in up.err
    assert aws.cloud.live_instances() == machines
    routes = [route for table in ec2(aws).describe_route_tables()["RouteTables"] for route in table["Routes"]]
    assert [route["State"] for route in routes if route.get("NatGatewayId") == new] == ["active"]
    assert [route for route in routes if route.get("NatGatewayId") == old] == []


def test_up_reports_billed_private_network_without_machines(aws: CloudGpuctl) -> None:
    aws.ok(*private_words(aws))
    ec2(aws).terminate_instances(InstanceIds=[machine["id"] for machine in aws.cloud.live_instances()])
    aws.cloud.fault(operation="RunInstances", status=400, code="InsufficientInstanceCapacity", times=99)
    up = aws(*private_words(aws))
    assert up.status == 3
    assert "No machine is left of the attempts" in up.err
    assert "its NAT gateway, if it was made, is billed, about $0.05 an hour, until `gpuctl down" in up.err
    aws.cloud.clear_faults()
    refused = aws(*aws.up_words)
    assert refused.status == 2, refused.err
    assert "were made with another --no-public-ip" in refused.err
    assert "`gpuctl down --cluster default`" in refused.err
    aws.ok("down", "--yes")
    aws.ok(*aws.up_words)
    assert gateways(aws) == []


def test_max_cost_includes_nat_gateway_of_private_cluster(aws: CloudGpuctl) -> None:
    plain = aws.ok(*aws.up_words, "--dry-run").json["hourly_usd"]
    limit = ("--ttl", "1h", "--max-cost", f"{plain + 0.02:.4f}")
    aws.ok(*aws.up_words, *limit, "--dry-run")
    refused = aws(*private_words(aws), *limit, "--dry-run")
    assert "more than --max-cost" in refused.err
    up = aws.ok(*private_words(aws), "--ttl", "1h")
    assert "nothing is billed after that" not in up.err
    assert "NAT gateway and its address stay, and are billed, about $0.05 an hour" in up.err


def test_private_and_public_clusters_share_one_network(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok(*gpuctl.up_words)
    gpuctl.ok(*private_words(gpuctl), "--cluster", "second")
    networks = [part for part in gpuctl.cloud.owned() if part.get("kind") in ("vcn", "vpc")]
    assert len(networks) == 1
    gpuctl.ok("down", "--yes", "--cluster", "second")
    assert len(gpuctl.cloud.live_instances()) == COUNT
    # Only AWS takes money for it.
    assert ("natgateway" in kinds_of(gpuctl)) == (gpuctl.kind.provider == "oci")
    gpuctl.ok("down", "--yes")
    assert gpuctl.cloud.owned() == []


def test_up_dry_run_of_private_cluster_lists_nat_gateway_cost(gpuctl: CloudGpuctl) -> None:
    plan = gpuctl.ok(*private_words(gpuctl), "--dry-run").json
    assert "CreateNatGateway" in [request["operation"] for request in plan["requests"]]
    billed = sum(item["hourly_usd"] for item in plan["resources"])
    assert plan["hourly_usd"] == pytest.approx(billed), "the lines add up to the whole"
    assert gpuctl.cloud.calls(mutating=True) == []


MAKING_PRIVATE = {
    "oci": ("CreateNatGateway", "CreateRouteTable", "CreateSubnet", "LaunchInstance"),
    "aws": ("AllocateAddress", "CreateNatGateway", "CreateVpcEndpoint", "CreateRoute", "RunInstances"),
}
ENDING_PRIVATE = {
    "oci": ("DeleteSubnet", "DeleteRouteTable", "DeleteNatGateway", "DeleteVcn"),
    "aws": ("DeleteNatGateway", "ReleaseAddress", "DetachInternetGateway"),
}


def killed(gpuctl: CloudGpuctl, operation: str, phase: str, *words: str) -> None:
    """Run a command and kill it where it makes that call."""
    gpuctl.cloud.fault(operation=operation, nth=1, kind=phase)
    process = gpuctl.start(*words)
    held = gpuctl.cloud.held(wait_s=30)
    process.kill()
    _, output = process.communicate()
    assert held, f"{operation} was not called: {output}"
    gpuctl.cloud.release()


@pytest.mark.parametrize("phase", ["hold_before", "hold_after"])
def test_private_up_and_down_killed_at_calls_resume(gpuctl: CloudGpuctl, phase: str) -> None:
    """Each command resumes where the previous was killed; finally everything exists once, then nothing."""
    provider = gpuctl.kind.provider
    if provider == "aws":
        gpuctl.cloud.settings(nat_ready_s=1, nat_gone_s=1)
    for operation in MAKING_PRIVATE[provider]:
        killed(gpuctl, operation, phase, *private_words(gpuctl))
    gpuctl.ok(*private_words(gpuctl))
    kinds = [part.get("kind", "instance") for part in gpuctl.cloud.owned()]
    assert kinds.count("instance") == COUNT
    once = {"oci": ("natgateway", "vcn"), "aws": ("natgateway", "elastic-ip", "vpc-endpoint", "vpc")}
    assert [kinds.count(kind) for kind in once[provider]] == [1] * len(once[provider])
    for operation in ENDING_PRIVATE[provider]:
        killed(gpuctl, operation, phase, "down", "--yes")
    gpuctl.ok("down", "--yes")
    assert gpuctl.cloud.owned() == []


def test_reap_removes_what_is_left_of_a_private_network(gpuctl: CloudGpuctl) -> None:
    """A NAT gateway alone, with no cluster and no local file, is billed as well."""
    killed(gpuctl, "CreateNatGateway", "hold_after", *private_words(gpuctl))
    assert "natgateway" in kinds_of(gpuctl)
    shutil.rmtree(gpuctl.home)
    gpuctl.ok("reap", "--provider", gpuctl.kind.provider, "--yes")
    assert gpuctl.cloud.owned() == []
