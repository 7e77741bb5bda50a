"""The mirror of a queue: its first machine was replaced, another node is silent, or its files are damaged."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuctl.app import App
from gpuctl.workflow.runs import queued_runs
from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Inventory, Machine
from inventories.runs.queue import Queue, QueueEntry


def entry(number: int, **fields: Any) -> QueueEntry:
    known = {"name": None, "state": "waiting", "after": None, "priority": 0, "script": "train.py"}
    return QueueEntry(
        **{
            **known,
            "entry": str(number),
            "run": f"20261128-06000{number}-abcd",
            "args": ("--lr", "3"),
            **fields,
        }
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFolder:
    """The folder of the cluster `default` in a new home."""
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    cluster = Store.default().cluster("default")
    cluster.path.mkdir(parents=True)
    return cluster


def node(name: str) -> Any:
    return cast("Any", SimpleNamespace(name=name))


def test_entries_that_a_replaced_machine_took_with_it_are_named_once(
    folder: ClusterFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = Queue(entries=(entry(1, state="succeeded"), entry(2), entry(3)))

    def said(reported: Queue) -> str:
        queued_runs.take_in(App(), folder, node("gpu-0"), reported)
        return capsys.readouterr().err

    assert said(queue) == ""
    assert said(Queue(entries=queue.entries[:2])) == "", "a report from before the addition of entry 3"
    assert said(queue) == ""
    assert "entries 2 (train.py --lr 3) and 3 (train.py --lr 3) of the queue will not run: gpu-0" in said(
        Queue()
    )
    assert said(Queue()) == ""


def test_entry_added_to_a_replaced_machine_takes_the_place_of_its_earlier_ones(
    folder: ClusterFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    before, again = Queue(entries=(entry(1), entry(2))), entry(1, run="20261128-070000-abcd")
    more = Queue(entries=(entry(3),))
    assert queued_runs.with_added(before, more).entries == (*before.entries, *more.entries)
    assert queued_runs.with_added(before, before) == before, "a command beside this one had mirrored them"
    added = queued_runs.with_added(before, Queue(entries=(again,)))
    queued_runs.take_in(App(), folder, node("gpu-0"), added, before)
    assert (
        "entries 1 (train.py --lr 3) and 2 (train.py --lr 3) of the queue will not run"
        in capsys.readouterr().err
    )
    assert queued_runs.open_entries(folder) == [again]


def test_entries_are_lost_if_another_one_has_the_number() -> None:
    """Another computer added to the replaced machine first, so this one's entry got a number that was free here."""
    known, others, third = Queue(entries=(entry(1), entry(2))), entry(1, run="20261128-070000-abcd"), entry(3)
    mirror = queued_runs.with_added(known, Queue(entries=(third,)))
    assert queued_runs.lost_entries(mirror, Queue(entries=(others, third))) == list(known.entries)


def save_cluster(folder: ClusterFolder) -> None:
    """Save an inventory of two machines that refuse connections."""
    machines = tuple(
        Machine(
            name=f"gpu-{rank}", rank=rank, id=str(rank), host="127.0.0.1", port=rank + 1, user="nobody",
            private_ip="127.0.0.1", gpus=0, state="running",
        )
        for rank in (0, 1)
    )  # fmt: skip
    folder.save(Inventory(cluster="default", provider="hosts", created_at="", machines=machines))


def test_silent_other_node_leaves_the_answer_of_the_first_one(
    folder: ClusterFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    save_cluster(folder)
    started = {"started_at": "2026-11-28T06:00:00+00:00", "nodes": ("gpu-1",), "state": "running"}
    queue = Queue(entries=(entry(1, **started), entry(2)))
    queued_runs.take_in(App(), folder, node("gpu-0"), queue)
    assert queued_runs.mirrored(folder) == queue
    assert "note: no record of entry 1 (train.py --lr 3) is here yet: gpu-1" in capsys.readouterr().err


def test_damaged_copies_are_reported_and_replaced(
    folder: ClusterFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    save_cluster(folder)
    app = App()
    folder.queue_path.write_text("{")
    queued_runs.take_in_started(app, "default")
    notes = capsys.readouterr().err
    assert "queue.json' can't be used" in notes, "nothing is known of the queue, and its node is asked"
    assert "whether the queue has started further runs is not known: gpu-0" in notes
    folder.queued_path.mkdir()
    queue = Queue(entries=(entry(1, started_at="2026-11-28T06:00:00+00:00", nodes=("gpu-0",)), entry(2)))
    for each in queue.entries:
        (folder.queued_path / f"{each.run}.json").write_text('{"format": 1, "run": "1"}')
    queued_runs.take_in(app, folder, node("gpu-1"), queue)
    assert queued_runs.mirrored(folder) == queue
    assert queued_runs.entries_on(folder, queue, ("gpu-0",)) == ["1", "2"], "its places are not known"


def test_queue_without_a_copy_here_is_asked_if_another_computer_may_add_entries(
    folder: ClusterFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    save_cluster(folder)
    queued_runs.take_in_started(App(), "default")
    assert capsys.readouterr().err == ""
    queued_runs.take_in_started(App(), "default", always=True)
    assert "note: whether the queue has started further runs is not known: gpu-0" in capsys.readouterr().err
