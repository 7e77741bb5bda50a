"""The mirror of a queue, where its first machine was replaced by one that has no queue."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuctl.app import App
from gpuctl.workflow.runs import queued_runs
from inventories.disk.store import Store
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


def test_entries_that_a_replaced_machine_took_with_it_are_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    folder, node = Store.default().cluster("default"), cast("Any", SimpleNamespace(name="gpu-0"))
    folder.path.mkdir(parents=True)
    queue = Queue(entries=(entry(1, state="succeeded"), entry(2), entry(3)))

    def said(reported: Queue) -> str:
        queued_runs.take_in(App(), folder, node, reported)
        return capsys.readouterr().err

    assert said(queue) == ""
    assert said(Queue(entries=queue.entries[:2])) == "", "a report from before the addition of entry 3"
    assert said(queue) == ""
    assert "entries 2 (train.py --lr 3) and 3 (train.py --lr 3) of the queue will not run: gpu-0" in said(
        Queue()
    )
    assert said(Queue()) == ""
