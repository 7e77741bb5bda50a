"""Test what `adopt` decides before it changes a file."""

import json
import socket
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support import a_machine, an_inventory

from gpuctl.errors import Usage
from gpuctl.workflow.clusters.adopt import (
    inventory_of,
    refuse_doubtful,
    refuse_other,
    removal,
    unused_networks,
)
from inventories.disk.store import ClusterFolder, Store
from inventories.errors import NewerFormat
from provision.errors import NoAnswer
from provision.kubernetes.record import KubernetesCluster
from provision.kubernetes.record import save as save_pod_record
from provision.records import CloudCluster, Target
from provision.rented.scan import Failed, Scanned, ScanResult, Scope
from provision.rented.state import CloudState
from provision.rented.tagged_clusters import FoundCluster, RegionContents

MINE, OTHER = "ab" * 8, "cd" * 8


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    return Store(tmp_path).cluster("default")


def found(provider: str = "aws", cluster_id: str = MINE) -> FoundCluster:
    return FoundCluster(
        name="default",
        id=cluster_id,
        owner="me@there",
        provider=provider,
        region="us-east-1",
        machines=("i-1",),
        resources=(),
        since=None,
        expires_at=None,
        hourly_usd=1.0,
    )


def save(folder: ClusterFolder, cluster_id: str = MINE, provider: str = "aws") -> None:
    target = Target(provider=provider, region="us-east-1")
    CloudState(folder).save(
        CloudCluster(name="default", id=cluster_id, owner="", created_at="", target=target, shape="p5")
    )


def save_pods(folder: ClusterFolder, cluster_id: str) -> None:
    made = KubernetesCluster(
        name="default", id=cluster_id, owner="", created_at="", context="c", server="", image="i"
    )
    save_pod_record(folder, made)


@pytest.mark.parametrize("provider", ["local", "hosts", "aws", "kubernetes"])
def test_name_of_a_cluster_of_another_provider_is_refused(folder: ClusterFolder, provider: str) -> None:
    folder.save(an_inventory(provider=provider))
    with pytest.raises(Usage, match=f"of provider {provider}"):
        refuse_other(folder, found("eks"))
    folder.inventory_path.unlink()
    folder.journal.append("up", provider=provider)
    with pytest.raises(Usage, match=f"of provider {provider}"):
        refuse_other(folder, found("eks"))


def test_name_of_another_cluster_of_the_provider_is_refused(folder: ClusterFolder) -> None:
    save(folder, OTHER)
    with pytest.raises(Usage, match="Another cluster is called default"):
        refuse_other(folder, found())
    save(folder, MINE, "eks")
    save_pods(folder, MINE[:6])
    refuse_other(folder, found("eks"))
    save_pods(folder, OTHER[:6])
    with pytest.raises(Usage, match="Another cluster is called default"):
        refuse_other(folder, found("eks"))


def test_record_of_a_newer_gpuctl_is_refused_and_torn_one_is_not(folder: ClusterFolder) -> None:
    save(folder, MINE)
    record = folder.path / "cloud.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"format": 99}))
    with pytest.raises(NewerFormat):
        refuse_other(folder, found())
    record.write_text("{")
    refuse_other(folder, found())


@pytest.mark.parametrize(
    ("user", "made_by", "doubt"),
    [
        ("ada", "ada@desk", ""),
        ("ada", "bob@desk", "is another user's"),
        ("root", "root@elsewhere", "may be anybody's, as many are called root"),
        ("root", f"root@{socket.gethostname()}", ""),
    ],
)
def test_cluster_that_may_be_somebody_elses_needs_its_id(
    monkeypatch: pytest.MonkeyPatch, user: str, made_by: str, doubt: str
) -> None:
    monkeypatch.setenv("LOGNAME", user)
    cluster = replace(found(), owner=made_by)
    with pytest.raises(Usage, match=doubt) if doubt else nullcontext():
        refuse_doubtful(cluster, only=True)
    with pytest.raises(Usage, match="not every place could be looked at"):
        refuse_doubtful(cluster, only=False)


def test_price_of_an_inventory_stays_with_its_machines() -> None:
    cluster = replace(found(), most_hourly_usd=1.1, since="2026-11-21T06:00:00+00:00")
    first = inventory_of("default", [a_machine()], cluster, None)
    assert (first.hourly_usd, first.created_at) == (1.1, cluster.since)
    before = replace(first, hourly_usd=1.05, created_at="2026-11-20T06:00:00+00:00")
    again = inventory_of("default", [a_machine()], cluster, before)
    assert (again.hourly_usd, again.created_at) == (1.05, before.created_at)
    other = inventory_of("default", [a_machine(), a_machine(id="i-2", rank=1)], cluster, before)
    assert (other.hourly_usd, other.created_at) == (1.1, before.created_at)


def place(region: str, *clusters: FoundCluster, account: str = "1", network: str = "vpc 1") -> Scanned:
    """Return a place with a network of gpuctl's."""
    target = Target(provider="aws", region=region, account=account)
    contents = RegionContents(clusters=clusters, network=(network,) if network else ())
    return Scanned(cloud=cast("Any", SimpleNamespace(target=target)), contents=contents)


def test_unused_network_is_named_with_the_command_that_finds_it() -> None:
    unused, of_account = place("eu-west-1"), place("us-east-1", account="2")
    silent = Target(provider="eks", region="us-west-2", account="1")
    result = ScanResult(
        scanned=(
            place("us-east-1", found()),
            of_account,
            unused,
            place("eu-west-3", network=""),
            place("us-west-2"),
        ),
        failed=(Failed(target=silent, error=NoAnswer("no answer")),),
    )
    assert unused_networks(result) == [of_account, unused]
    assert removal([unused], Scope()) == "gpuctl reap --expired --region eu-west-1"
    scope = Scope(profile="our team", compartment="ocid1")
    options = "--region us-east-1 --region eu-west-1 --profile 'our team' --compartment ocid1"
    assert removal([of_account, unused], scope) == f"gpuctl reap --expired {options}"
