"""The meaning of --cluster in commands about all clusters, a single one, or none."""

import json
from pathlib import Path

import pytest
from stub_cloud import StubClouds
from support import begin_run

from gpuctl.command_line import cli, root_help
from gpuctl.workflow.clusters import reap
from inventories.disk.store import Store
from provision.records import Target
from provision.rented.scan import Scanned, ScanResult
from provision.rented.tagged_clusters import FoundCluster, RegionContents

ALL = ("adopt", "clean", "clusters", "reap")
NONE = ("completion", "shapes")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    """An account with two clusters, a1 and b1."""
    shown(monkeypatch, ("a1", "a1-id", "me"), ("b1", "b1-id", "me"))


def shown(monkeypatch: pytest.MonkeyPatch, *each: tuple[str, str, str]) -> None:
    """Have the account show clusters of these names, ids and owners."""
    clusters = tuple(
        FoundCluster(
            name=name,
            id=cluster_id,
            owner=owner,
            provider="aws",
            region="region-a",
            machines=(f"{name}-machine",),
            resources=(),
            since="2026-11-22T10:00:00+00:00",
            expires_at=None,
            hourly_usd=None,
        )
        for name, cluster_id, owner in each
    )
    cloud = StubClouds().connect(Target(provider="aws"))
    region = Scanned(cloud=cloud, contents=RegionContents(clusters=clusters, network=()))
    monkeypatch.setattr(reap, "scan", lambda _scope, _price: ScanResult(scanned=(region,), failed=()))


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("reap", ["a1", "b1"]),
        ("reap a1", ["a1"]),
        ("reap --cluster a1", ["a1"]),
        ("--cluster a1 reap", ["a1"]),
        ("reap a1 --cluster a1", ["a1"]),
        ("reap --cluster b1-id", ["b1"]),
        ("reap a1 b1", ["a1", "b1"]),
    ],
)
@pytest.mark.usefixtures("account")
def test_reap_removes_only_the_cluster_that_was_named(
    words: str, chosen: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words.split(), "--dry-run", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["clusters"]
    assert [row["cluster"] for row in rows if row["chosen"]] == chosen


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("reap --cluster default", "There is no cluster 'default' of ours"),
        ("reap --cluster b1-i", "; did you mean 'b1-id'? Nothing was removed."),
        ("reap --cluster=", "There is no cluster '' of ours"),
        ("reap b1 --cluster a1", "--cluster a1 and b1 name different clusters: leave out --cluster."),
        ("reap a1 b1 --cluster a1", "--cluster a1 and a1 b1 name different clusters: leave out --cluster."),
    ],
)
@pytest.mark.usefixtures("account")
def test_reap_refuses_clusters_that_are_not_there_or_contradict(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words.split(), "--yes"]) == 2
    assert message in capsys.readouterr().err


ABOUT_RUNS = ("results", "logs", "stop", "why", "runs")


@pytest.mark.parametrize(
    "words",
    [
        *ABOUT_RUNS,
        "train",
        "train --resume",
        "bench",
        "status",
        "ssh",
        "exec -- ls",
        "top",
        "pull x",
        "ssh-config",
        "clusters",
    ],
)
def test_mistyped_cluster_gets_the_name_that_is_most_like_it(
    words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    existing = Store(home).cluster("example")
    existing.make()
    existing.inventory_path.write_text("all:\n")
    assert cli.main(["--cluster", "exmaple", *words.split()]) == 2
    errors = capsys.readouterr().err
    assert (
        errors == "error: There is no cluster exmaple; did you mean 'example'? `gpuctl clusters` lists all.\n"
    )
    assert cli.main(["--cluster", "blue", *words.split()]) == 2
    assert capsys.readouterr().err == (
        "error: There is no cluster blue. These exist: example; --cluster NAME chooses one. Create it: "
        "gpuctl up --provider local --count 2 --cluster blue\n"
    )


@pytest.mark.parametrize("words", ABOUT_RUNS)
def test_mistyped_cluster_that_was_removed_gets_its_name_where_its_runs_are_meant(
    words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_run(Store(home), "removed")
    assert cli.main(["--cluster", "remvoed", *words.split()]) == 2
    errors = capsys.readouterr().err
    assert errors == (
        "error: There is no cluster remvoed; did you mean 'removed'? `gpuctl runs --all` lists the runs of all "
        "clusters.\n"
    )


def test_down_of_a_mistyped_cluster_names_the_one_that_is_most_like_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    existing = Store(home).cluster("example")
    existing.make()
    existing.inventory_path.write_text("all:\n")
    assert cli.main(["down", "--cluster", "exmaple"]) == 0
    assert (
        "There is no cluster exmaple in the files here; did you mean 'example'? " in capsys.readouterr().err
    )


def test_help_says_what_cluster_means_to_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    for name in root_help.COMMANDS:
        assert cli.main([name, "--help"]) == 0
        help_text = " ".join(capsys.readouterr().out.split())
        assert ("Only this cluster (default: all)." in help_text) == (name in ALL), name
        if name in NONE:
            assert "--cluster" not in help_text, name


@pytest.mark.parametrize("words", ["shapes --cluster a", "--cluster a shapes", "completion bash --cluster a"])
def test_commands_about_no_cluster_refuse_to_be_given_one(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(name for name in NONE if name in words)
    assert cli.main(words.split()) == 2
    assert capsys.readouterr() == (
        "",
        f"error: gpuctl {name} is about no cluster: leave out --cluster.\n",
    )


def test_runs_of_all_clusters_are_narrowed_to_the_one_named(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for cluster in ("a", "b"):
        begin_run(Store(home), cluster)
    for words, clusters in (("--all", {"a", "b"}), ("--all --cluster b", {"b"}), ("--cluster a", {"a"})):
        assert cli.main(["runs", "--json", *words.split()]) == 0
        assert {row["cluster"] for row in json.loads(capsys.readouterr().out)["runs"]} == clusters, words


@pytest.mark.parametrize(
    ("words", "owner", "status"),
    [
        ("reap --cluster default --yes --dry-run", "me", 2),
        ("reap default --dry-run", "me", 0),
        ("reap default --yes --dry-run", "you", 2),
        ("reap second --dry-run", "you", 0),
        ("reap --dry-run", "you", 0),
    ],
)
def test_reap_refuses_a_name_that_several_clusters_have(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, owner: str, status: int
) -> None:
    shown(monkeypatch, ("default", "first", "me"), ("default", "second", owner))
    assert cli.main(words.split()) == status
    if status == 2:
        assert "2 clusters are called default:\n  first: aws, region-a, of me\n" in capsys.readouterr().err
