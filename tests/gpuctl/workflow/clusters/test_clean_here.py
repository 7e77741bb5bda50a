"""`gpuctl clean` on this computer: real folders of runs, and wrong usage."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support import a_machine, a_result, a_run

from gpuctl.command_line import cli
from gpuctl.command_results.upkeep import CleanItem
from gpuctl.workflow.clusters.clean.this_computer import remove_here
from inventories.disk.store import RunFolder, Store
from inventories.machine import Inventory
from inventories.runs.records import NodeRecord
from inventories.runs.result import Seconds
from inventories.runs.run import RunNode, RunOptions
from remote.runs.run_files import save_node_record

NOW = datetime.now(UTC)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    return Store(tmp_path / "home")


def made(
    store: Store, *, days: float, script: str = "my.py", over: bool = True, **checkpoints: bytes
) -> RunFolder:
    """Make a run of a removed cluster that began this number of days ago."""
    began = NOW - timedelta(days=days)
    folder = store.new_run(began)
    node = RunNode(name="gpu-0", rank=0, nproc=1, first_rank=0, run_dir="/nowhere")
    run = a_run(
        run=folder.id,
        cluster="c",
        script=script,
        nodes=(node,),
        started_at=began.isoformat(),
        options=RunOptions(project="/project"),
    )
    folder.save_run(run)
    (folder.logs_path / "rank-0.log").write_bytes(b"x" * 50_000)
    for name, data in checkpoints.items():
        folder.checkpoints_path.mkdir(exist_ok=True)
        (folder.checkpoints_path / name).write_bytes(data)
    if over:
        save_node_record(folder, NodeRecord(node="gpu-0", launcher="torchrun", exit_code=0))
        folder.save_result(
            a_result(
                run=folder.id,
                cluster="c",
                script=script,
                started_at=began.isoformat(),
                ended_at=began.isoformat(),
                seconds=Seconds(),
                dir=str(folder.path),
            )
        )
    return folder


def clean(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    status = cli.main(["clean", "--json", *words])
    out, err = capsys.readouterr()
    return status, json.loads(out), err


def test_clean_removes_old_runs_and_keeps_the_rest(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("safe")
    old = made(store, days=40)
    (old.artifacts_path / "link").symlink_to(outside)
    retained = made(store, days=50, c=b"y" * 1000)
    new = made(store, days=1)
    torn = made(store, days=60)
    torn.run_path.write_text('{"format": 1, "ru')
    begun, lately = (store.new_run(NOW - timedelta(days=days)) for days in (3, 0))
    removed = store.home / "runs" / ".removed-00"
    removed.mkdir()
    (removed / "rest").write_bytes(b"x" * 10_000)
    (store.home / "runs" / "20260101-000000-aaaa").symlink_to(outside)

    status, document, _ = clean(capsys, "--dry-run")
    assert status == 0
    fates = {item["name"]: "goes" if item["removes"] else item["why"] for item in document["items"]}
    assert fates == {
        old.id: "goes",
        retained.id: "the latest checkpoints of my.py",
        new.id: "not old",
        torn.id: "its record can't be read",
        f"runs/{begun.id}": "goes",
        "runs/.removed-00": "goes",
    }
    assert old.path.exists()
    status, document, err = clean(capsys)
    assert (status, old.path.exists()) == (2, True)
    assert "There is no terminal to answer on: it needs --yes." in err
    status, document, err = clean(capsys, "--yes")
    assert (status, document["removed"], document["failed"]) == (0, 3, [])
    assert document["freed_bytes"] >= 60_000
    assert "3 items removed, " in err
    for path in (old.path, begun.path, removed):
        assert not path.exists()
    for path in (retained.path, new.path, torn.path, lately.path, outside / "precious"):
        assert path.exists()
    assert sorted(path.name for path in (store.home / "runs").glob(".*")) == []
    status, document, err = clean(capsys, "--yes")
    assert (status, document["removed"], "Nothing has to be removed." in err) == (0, 0, True)


def test_clean_keep_runs_keeps_the_latest_runs(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [made(store, days=days) for days in (3, 2, 1)]
    _, document, _ = clean(capsys, "--here", "--keep-runs", "1", "--older-than", "36h", "--dry-run")
    assert [item["name"] for item in document["items"] if item["removes"]] == [run.id for run in runs[:2]]
    clean(capsys, "--here", "--keep-runs", "1", "--yes")
    assert [folder.id for folder in store.runs()] == [runs[2].id]


def test_clean_keeps_runs_whose_machines_were_not_checked(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(store, days=40)
    machine = a_machine()
    cluster = store.cluster("c")
    cluster.save(Inventory(cluster="c", provider="local", created_at="", machines=(machine,)))
    reason = "gpu-0, which may have more of it, was not looked at"
    status, document, _ = clean(capsys, "--here", "--yes")
    assert (status, document["items"][0]["why"], document["not_asked"]) == (0, reason, [])
    cluster.inventory_path.write_text("torn: [")
    assert clean(capsys, "--here", "--yes")[1]["items"][0]["why"] == reason
    status, document, err = clean(capsys, "--yes")
    assert (status, document["items"][0]["why"]) == (4, reason)
    assert [(node["cluster"], node["node"]) for node in document["not_asked"]] == [("c", None)]
    assert "the machines of c are not looked at: " in err
    assert run.path.exists()
    cluster.inventory_path.unlink()
    assert clean(capsys, "--here", "--yes")[1]["removed"] == 1


def test_clean_keeps_run_folder_that_is_a_symlink(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = made(store, days=40)
    run.path.rename(tmp_path / "elsewhere")
    run.path.symlink_to(tmp_path / "elsewhere")
    status, document, _ = clean(capsys, "--yes")
    assert (status, document["removed"], document["items"][0]["why"]) == (0, 0, "it is a link")
    choice = CleanItem(where=None, cluster="c", kind="run", name=run.id, bytes=0, removes=True, why="old")
    assert remove_here(store, choice) == (0, "it is a link")
    assert (tmp_path / "elsewhere" / "run.json").exists()
    assert run.path.is_symlink()


def test_clean_reports_run_it_cannot_remove(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may remove anything")
    run = made(store, days=40)
    (store.home / "runs").chmod(0o500)
    status, document, err = clean(capsys, "--yes")
    (store.home / "runs").chmod(0o700)
    assert status == 4
    assert document["failed"] == [
        {"where": None, "kind": "run", "name": run.id, "reason": "Permission denied"}
    ]
    assert f"here: run {run.id} stays: Permission denied" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--here", "--all"), "--all is about the nodes"),
        (("--older-than", "3"), "For example: --older-than 3s"),
        (("--keep-runs", "-1"), "--keep-runs"),
        (("--cluster", "nobody"), "There is no cluster nobody."),
        (("my.py",), "gpuctl clean takes no 'my.py'"),
    ],
)
def test_clean_wrong_usage_exits_2_with_one_sentence(
    store: Store, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert cli.main(["clean", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.startswith("error: "), message in err) == ("", True, True)


def test_clean_reports_when_nothing_is_to_remove(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["clean"]) == 0
    assert capsys.readouterr() == ("", "There is nothing to remove.\n")
    assert not store.home.exists()
