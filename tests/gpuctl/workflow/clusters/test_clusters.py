"""`gpuctl clusters`: its rows from providers and files, and their display."""

import io
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import a_machine

from gpuctl.command_line import cli
from gpuctl.command_results.clusters import ClusterSummary
from gpuctl.global_options import Options
from gpuctl.output import Output
from gpuctl.tables.clusters import clusters_table
from gpuctl.workflow.clusters.clusters import LiveState, describe, state_of, totals
from inventories.disk.store import Store
from inventories.machine import Inventory, Machine, MachineInfo, MachineState
from provision.records import CloudCluster, Target
from provision.rented.state import CloudState

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
BEGAN = "2026-11-22T10:00:00+00:00"
MACHINE = a_machine(name="n-0", gpus=1)


def machines(*states: MachineState) -> list[Machine]:
    return [replace(MACHINE, rank=at, state=state) for at, state in enumerate(states)]


def shown(*states: MachineState) -> tuple[MachineInfo, ...]:
    return tuple(machine.public() for machine in machines(*states))


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (("running", "running"), "running"),
        (("gone", "gone"), "gone"),
        (("running", "gone"), "partial"),
        (("running", "unknown"), "partial"),
        (("unknown",), "unknown"),
        ((), "gone"),
    ],
)
def test_state_of_derives_cluster_state_from_machines(states: tuple[MachineState, ...], state: str) -> None:
    assert state_of(machines(*states)) == state


def summary(cluster: str, **facts: Any) -> ClusterSummary:
    known: dict[str, Any] = {
        "cluster": cluster,
        "provider": "aws",
        "region": "us-east-1",
        "shape": "g5.12xlarge",
        "state": "running",
        "machines": shown("running", "running"),
        "hourly_usd": 11.344,
        "cost_usd": 22.69,
        "created_at": BEGAN,
        "age_s": 7200,
        "expires_at": None,
        "ends": (),
        "billed": True,
        "runs": (),
        "unheard": {},
        "problem": None,
    }
    return ClusterSummary(**known | facts)


FREE = {"provider": "local", "region": None, "billed": False, "hourly_usd": 0.0, "cost_usd": 0.0}
NOT_KNOWN = {
    "state": "unknown",
    "machines": None,
    "hourly_usd": None,
    "cost_usd": None,
    "age_s": None,
    "problem": "its file is torn",
}
CLUSTERS = (
    summary("big"),
    summary(
        "timed",
        expires_at="2026-11-22T13:30:00+00:00",
        state="partial",
        machines=shown("running", "gone"),
        runs=("20261122-110000-aaaa",),
    ),
    summary("late", expires_at="2026-11-22T11:00:00+00:00"),
    summary("torn", **NOT_KNOWN),
    summary(
        "mine",
        **FREE,
        shape="local",
        unheard={"20261122-110000-bbbb": ("n-1",)},
        runs=("20261122-110000-bbbb",),
    ),
)


def drawn(*summaries: ClusterSummary, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    Output(Options(), stdout=out).table(clusters_table(summaries, totals(summaries), NOW))
    return out.getvalue()


def test_clusters_table_shows_state_cost_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        drawn(*CLUSTERS, width=110, monkeypatch=monkeypatch)
        == """\
cluster  provider  region     state    machines              an hour  so far  age        ends           runs
big      aws       us-east-1  running  2 x g5.12xlarge        $11.34  $22.69  2 h 0 min  never             -
timed    aws       us-east-1  partial  1 of 2 x g5.12xlarge   $11.34  $22.69  2 h 0 min  in 1 h 30 min     1
late     aws       us-east-1  running  2 x g5.12xlarge        $11.34  $22.69  2 h 0 min  over              -
torn     aws       us-east-1  unknown  -                           -       -  -          -                 -
mine     local     -          running  2                        free    free  2 h 0 min  -                 1

5 clusters, 7 machines, at least $34.03 an hour, at least $68.07 so far
big: nothing ends it: it is billed until gpuctl down --cluster big
timed: run 20261122-110000-aaaa is running
mine: run 20261122-110000-bbbb may be at work on n-1; gpuctl stop 20261122-110000-bbbb ends it
"""
    )


@pytest.mark.parametrize("width", [80, 100])
def test_clusters_table_fits_terminal_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(*CLUSTERS, width=width, monkeypatch=monkeypatch)
    table = text.split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= width
    for word in ("big", "partial", "$11.34", "never"):
        assert word in table


def test_clusters_table_of_free_clusters_omits_end_column(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(summary("mine", **FREE, shape="local"), width=100, monkeypatch=monkeypatch)
    assert text == (
        "cluster  provider  state    machines  an hour  so far  age\n"
        "mine     local     running  2            free    free  2 h 0 min\n"
        "\n"
        "1 cluster, 2 machines\n"
    )


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    return Store(tmp_path / "home")


@pytest.fixture
def listening() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def save(store: Store, name: str, *ports: int, provider: str = "hosts", **facts: Any) -> None:
    some = tuple(
        replace(MACHINE, name=f"{name}-{rank}", rank=rank, port=port, id=f"{name}-{rank}")
        for rank, port in enumerate(ports)
    )
    store.cluster(name).save(
        Inventory(cluster=name, provider=provider, created_at=BEGAN, machines=some, **facts)
    )


def test_clusters_lists_unreadable_clusters_as_unknown(
    store: Store, listening: int, capsys: pytest.CaptureFixture[str]
) -> None:
    save(store, "answers", listening, hourly_usd=0.0)
    save(store, "halves", listening, 1, hourly_usd=0.0)
    save(store, "torn", listening)
    store.cluster("torn").inventory_path.write_text("all: [")
    save(store, "lost", listening, provider="aws", region="us-east-1", shape="g5.xlarge", hourly_usd=1.006)
    assert cli.main(["clusters", "--json"]) == 4
    out, err = capsys.readouterr()
    clusters = {row["cluster"]: row for row in json.loads(out)["clusters"]}
    assert list(clusters) == ["torn", "lost", "answers", "halves"]
    states = {name: (row["provider"], row["state"]) for name, row in clusters.items()}
    assert states == {
        "answers": ("hosts", "running"),
        "halves": ("hosts", "partial"),
        "torn": (None, "unknown"),
        "lost": ("aws", "unknown"),
    }
    keys = {"cluster", "provider", "state", "machines", "hourly_usd", "cost_usd", "age_s", "runs"}
    assert all(keys <= set(row) for row in clusters.values())
    assert clusters["torn"]["machines"] is None
    assert [row["state"] for row in clusters["lost"]["machines"]] == ["unknown"]
    assert (clusters["lost"]["hourly_usd"], clusters["lost"]["cost_usd"]) == (1.006, None)
    assert [row["state"] for row in clusters["halves"]["machines"]] == ["running", "unknown"]
    assert "note: torn: " in err
    assert "inventory.yaml:1: this can't be read as YAML" in err
    assert "cloud.json' is missing" in err


def test_status_all_shows_machines_of_each_cluster(
    store: Store, listening: int, capsys: pytest.CaptureFixture[str]
) -> None:
    save(store, "one", listening)
    save(store, "two", listening)
    assert cli.main(["status", "--all"]) == 0
    out, _ = capsys.readouterr()
    assert out.count("rank  name") == 2
    store.cluster("two").inventory_path.write_text("all: [")
    assert cli.main(["status", "--all"]) == 4
    out, err = capsys.readouterr()
    assert "one-0" in out
    assert "note: two: " in err


def test_clusters_table_bills_no_hourly_cost_for_gone_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    deleted = summary("over", state="gone", machines=shown("gone", "gone"), hourly_usd=0.0)
    table = drawn(deleted, summary("big"), width=110, monkeypatch=monkeypatch)
    row = next(line for line in table.splitlines() if line.startswith("over"))
    assert row.split()[7:] == ["-", "$22.69", "2", "h", "0", "min", "-"]
    assert "2 clusters, 2 machines, $11.34 an hour" in table
    assert "over: nothing ends it" not in table


def test_clusters_table_names_the_disks_of_stopped_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = summary("idle", state="stopped", machines=shown("stopped", "stopped"), hourly_usd=0.0)
    row = next(
        line
        for line in drawn(stopped, width=110, monkeypatch=monkeypatch).splitlines()
        if line.startswith("idle")
    )
    assert "disks" in row.split()
    assert "free" not in row
    assert totals([stopped]).count(",") == 2
    assert "an hour" not in totals([stopped])


def test_describe_takes_end_time_from_local_file_if_unreachable(tmp_path: Path) -> None:
    folder = Store(tmp_path).cluster("lost")
    ending = "2026-11-22T13:30:00+00:00"
    CloudState(folder).save(
        CloudCluster(
            name="lost", id="0" * 16, owner="me@here", created_at=BEGAN, shape="g5.xlarge",
            target=Target(provider="aws", region="us-east-1"), expires_at=ending,
        )
    )  # fmt: skip
    some = (replace(MACHINE, state="running"),)
    folder.save(Inventory(cluster="lost", provider="aws", created_at=BEGAN, machines=some, hourly_usd=1.0))
    cluster = describe(folder, LiveState(problem="no credentials"), (), NOW)
    assert (cluster.state, cluster.expires_at) == ("unknown", ending)


def test_clusters_without_any_prints_how_to_create_one(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["clusters"]) == 0
    assert capsys.readouterr() == (
        "",
        "There is no cluster. Create one: gpuctl up --provider local --count 2\n",
    )
    assert cli.main(["clusters", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"clusters": []}
