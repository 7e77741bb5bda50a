"""Unfinished runs, asked before a cluster is removed: no damaged record may prevent the removal."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import a_result

from gpuctl.app import App
from gpuctl.command_line import cli
from gpuctl.errors import Usage
from gpuctl.workflow.runs.runs import latest
from gpuctl.workflow.runs.unfinished_runs import ClusterRuns, OpenRun, open_runs, overview
from inventories.disk.store import RunFolder, Store
from inventories.machine import Inventory, Machine
from inventories.runs.commit import Commit
from inventories.runs.result import TrainSummary
from inventories.runs.run import Run, RunNode, RunOptions


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    return Store.default()


def a_run(store: Store) -> RunFolder:
    folder = store.new_run(datetime(2026, 11, 21, tzinfo=UTC))
    node = RunNode(name="gpu-0", rank=0, nproc=1, first_rank=0, run_dir="/home/me/run")
    run = Run(
        run=folder.id, cluster="default", mode="torchrun", script="my.py", args=(), nodes=(node,),
        master_addr="127.0.0.1", master_port=20001, started_at="2026-11-21T05:46:25+00:00",
    )  # fmt: skip
    folder.save_run(run)
    return folder


def say(folder: RunFolder, ended: Any) -> None:
    """The node's word of the run's end, as it lies here."""
    folder.nodes_path.mkdir(exist_ok=True)
    record = {"format": 1, "node": "gpu-0", "launcher": "torchrun", "exit_code": 1, "ended": ended}
    (folder.nodes_path / "gpu-0.json").write_text(json.dumps(record))


def test_open_runs_go_on_after_a_run_that_cannot_be_read(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    odd, no_record, no_word = a_run(store), a_run(store), a_run(store)
    (no_record.path / "run.json").write_text("{")
    say(no_word, {"reason": "tired"})
    say(odd, {"reason": "node_lost"})
    assert open_runs(App(), "default") == []
    output = capsys.readouterr()
    notes = [line for line in (output.out + output.err).splitlines() if line.startswith("note: whether run ")]
    assert {line.split()[3] for line in notes} == {no_record.id, no_word.id}
    result = odd.load_result()
    assert result.first_error.message == "the node was lost and could not be reached again"


@pytest.mark.parametrize("reason", ["hung", "ended_early", "stopped", "ray_late", "node_silent", "disk_full"])
def test_open_runs_read_a_reason_without_its_facts(store: Store, reason: str) -> None:
    folder = a_run(store)
    say(folder, {"reason": reason})
    assert open_runs(App(), "default") == []
    result = folder.load_result()
    assert result.status == "failed"


def test_list_of_runs_shows_names_and_changes(store: Store) -> None:
    folders = [a_run(store), a_run(store), a_run(store), a_run(store)]
    labels = RunOptions(name="base", note="first", tags={"sweep": "lr"})
    folders[0].save_run(replace(folders[0].load_run(), args=("--lr", "0.1"), options=labels))
    folders[1].save_run(
        replace(folders[1].load_run(), args=("--lr", "0.2"), commit=Commit(sha="1a2b", dirty=False))
    )
    folders[2].save_run(replace(folders[2].load_run(), script="eval.py", args=("--data", "x")))
    folders[3].save_run(replace(folders[1].load_run(), run=folders[3].id))
    train = TrainSummary(loss=(0.5, 0.25), accuracy=0.9)
    for folder in folders:
        folder.save_result(a_result(run=folder.id, train=train, dir=str(folder.path)))
    first, second, other, third = overview(App(), "default")
    assert (first.name, first.note, first.tags, first.loss) == ("base", "first", {"sweep": "lr"}, 0.25)
    assert (first.changed, second.changed, third.changed) == (None, "lr 0.2, 1a2b", "")
    assert other.changed is None


def test_note_on_older_runs_names_those_whose_machines_the_cluster_has(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newest = sorted((a_run(store), a_run(store)), key=lambda folder: folder.id)
    assert latest(App(), None).id == newest.id
    machine = Machine(
        name="gpu-1",
        rank=0,
        host="127.0.0.1",
        user="me",
        id="1",
        state="running",
        private_ip="127.0.0.1",
        gpus=0,
    )
    for name, notes in (("gpu-1", 0), ("gpu-0", 1)):
        machines = (replace(machine, name=name),)
        store.cluster("default").save(
            Inventory(cluster="default", provider="local", created_at="", machines=machines)
        )
        assert latest(App(), None).id == newest.id
        assert capsys.readouterr().err.count(f"{older.id} may still be active: gpuctl runs") == notes


def test_run_that_ended_meanwhile_is_one_line(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    odd = a_run(store)
    say(odd, {"reason": "node_lost"})
    metrics = odd.path / "metrics" / "rank-0.jsonl"
    metrics.write_text('{"step": 0, "loss": 7.877}\n')
    assert open_runs(App(), "default") == []
    assert capsys.readouterr().err == f"run {odd.id} has ended: failed\n"


def test_logs_of_a_run_without_a_line_say_so(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    odd = a_run(store)
    say(odd, {"reason": "node_lost"})
    store.cluster("default").make()
    assert cli.main(["logs", odd.id]) == cli.main(["logs", odd.id, "--rank", "0"]) == 0
    output = capsys.readouterr()
    assert (
        output.err
        == f"note: no rank of run {odd.id} printed anything\nnote: rank 0 of run {odd.id} printed nothing\n"
    )


def test_active_runs_and_runs_that_began_since_refuse_the_end_of_machines(store: Store) -> None:
    silent, active, ended, later = (a_run(store) for _ in range(4))
    known = frozenset(folder.id for folder in (silent, active, ended))
    unfinished = [OpenRun(folder=silent, active=False, silent=("gpu-0",))]
    ClusterRuns(unfinished=unfinished, known=known).refuse_if_active([silent, ended])
    with pytest.raises(Usage, match=f"The run {later.id} is active. No machine was ended."):
        ClusterRuns(unfinished=unfinished, known=known).refuse_if_active([silent, ended, later])
    unfinished.append(OpenRun(folder=active, active=True))
    with pytest.raises(Usage, match=f"`gpuctl stop {active.id}` stops it."):
        ClusterRuns(unfinished=unfinished, known=known).refuse_if_active([silent, active])
