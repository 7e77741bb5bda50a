"""Test checkpoints downloaded during a run: when the node announces them, and which are retained."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from node_here import NodeHere
from support import a_run, wait_for

from inventories.disk.store import RunFolder, Store
from inventories.runs.run import Checkpoints, Run, RunNode
from remote.errors import ConnectionLost
from remote.files.checkpoints import checkpoints_of
from remote.node.storage.checkpoints import LOOK_S, TELL_S, News, describe, found_in, is_to_be_told
from remote.runs.mirror import MAX_MIRROR_BYTES, Mirror
from remote.runs.observer import Observer
from remote.runs.run_files import mirrored_path, new_incoming

FOUND = {"files": 2, "bytes": 10, "newest": "step-000040.pt", "written_ns": 1, "lacks": []}
NEWER = {**FOUND, "newest": "step-000050.pt"}


@pytest.mark.parametrize(
    ("result", "before", "whole", "told_s_ago", "written_s_ago", "expected"),
    [
        (None, None, True, 0, 0, False),
        (FOUND, None, True, 0, 0, True),
        (FOUND, FOUND, True, 2 * TELL_S, 2 * TELL_S, False),
        (NEWER, FOUND, True, TELL_S - 1, 0, False),
        (NEWER, FOUND, True, TELL_S, 0, True),
        (FOUND, None, False, 0, LOOK_S - 1, False),
        (FOUND, None, False, 0, LOOK_S, True),
        (FOUND, None, False, 0, 1 - LOOK_S, False),
        (FOUND, None, False, 0, -3600, True),
        (NEWER, FOUND, False, TELL_S, 1, False),
        (NEWER, FOUND, False, TELL_S - 1, 60, False),
        (None, FOUND, False, TELL_S, 60, False),
    ],
)
def test_mirror_reports_checkpoints_by_their_age_and_kind(
    result: Any, before: Any, whole: bool, told_s_ago: float, written_s_ago: float, expected: bool
) -> None:
    announced = is_to_be_told(result, before, whole=whole, told_s_ago=told_s_ago, written_s_ago=written_s_ago)
    assert announced is expected


def checkpoint(folder: Path, step: int, size: int = 100) -> None:
    """Write a complete checkpoint as the built-in job does."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"step-{step:06d}"
    (folder / f"{name}.pt").write_bytes(b"x" * size)
    (folder / f"{name}.json").write_text(json.dumps({"file": f"{name}.pt", "bytes": size, "step": step}))


def test_news_looks_at_the_folder_at_intervals(tmp_path: Path) -> None:
    checkpoint(tmp_path, 40)
    checkpoint(tmp_path, 50)
    news = News(tmp_path, whole=True, ranks=1)
    result = news.poll()
    assert result == describe(tmp_path, newest=True)
    assert (result["files"], result["newest"]) == (2, "step-000050.pt")
    checkpoint(tmp_path, 60)
    assert news.poll() is None
    assert News(tmp_path, whole=False, ranks=1).poll() is None, "files were written just now"
    os.utime(tmp_path / "step-000040.pt", (1, time.time() + 3600))
    written_ahead = News(tmp_path, whole=False, ranks=1).poll()
    assert (written_ahead["files"], written_ahead["newest"]) == (6, "step-000040.pt")


def test_news_returns_none_when_listing_fails(tmp_path: Path) -> None:
    assert News(tmp_path / "gone", whole=True, ranks=1).poll() is None
    (tmp_path / "step-000050.json").mkdir()
    assert News(tmp_path, whole=True, ranks=1).poll() is None


RUN = a_run(
    script="built-in",
    started_at="",
    nodes=(RunNode(name="gpu-0", rank=0, nproc=1, first_rank=0, run_dir="/home/me/run"),),
)
SCRIPTS = Run(**{**RUN.__dict__, "script": "my.py"})


class Notes(Observer):
    """An observer that records its notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Slow(NodeHere):
    """A node of which each set is held up after its first frame until that is let go."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.sending, self.go_on = Event(), Event()
        self.asked: list[str] = []

    @contextmanager
    def stream(self, command: str, request: dict[str, Any], **_: Any) -> Iterator[Any]:  # type: ignore[override]
        self.asked.append(command)
        with super().stream(command, request) as talk:
            yield talk if command != "send_checkpoints" else SimpleNamespace(frames=lambda: self._held(talk))

    def _held(self, talk: Any) -> Iterator[Any]:
        for number, frame in enumerate(talk.frames()):
            if number == 1:
                self.sending.set()
                assert self.go_on.wait(30)
            yield frame


class Lost(NodeHere):
    """A node whose connection has broken."""

    @contextmanager
    def stream(self, command: str, request: dict[str, Any], **_: Any) -> Iterator[Any]:  # type: ignore[override]
        raise ConnectionLost(f"gpu-0: the connection broke: {command}.")
        yield


class Scene:
    """A running run, its node's checkpoint folder, and the local copies."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.home = folder / "node"
        self.there = self.home / ".gpuctl-node" / "runs" / run.run / "gpu-0" / "checkpoints"
        self.there.mkdir(parents=True)
        self.folder: RunFolder = Store(folder / "here").new_run(datetime.now(UTC))
        self.observer = Notes()
        self.incoming = new_incoming(self.folder)
        self.mirror = Mirror(run, self.folder, self.incoming, self.observer)
        self.run = run

    def found(self) -> Checkpoints:
        result = found_in(self.there, self.run.built_in, 1, newest=True)
        assert result is not None
        return checkpoints_of(result)

    def here(self) -> set[str]:
        return {path.name for path in self.folder.checkpoints_path.glob("*")}

    def wait(self) -> None:
        """Wait for the end of the transfer."""
        wait_for(lambda: self.mirror._thread is None, what="the end of the transfer", deadline_s=30)
        assert list(self.incoming.glob(".*")) == []


def test_mirror_replaces_the_checkpoint_with_the_newest(tmp_path: Path) -> None:
    scene, node = Scene(tmp_path, RUN), Slow(tmp_path / "node")
    checkpoint(scene.there, 40)
    checkpoint(scene.there, 50)
    scene.mirror.offer(node, scene.found())
    assert node.sending.wait(30)
    assert scene.here() == set()
    checkpoint(scene.there, 60)
    scene.mirror.offer(node, scene.found())
    node.go_on.set()
    scene.wait()
    assert scene.here() == {"step-000060.pt", "step-000060.json"}
    assert mirrored_path(scene.folder).exists()
    scene.mirror.offer(node, scene.found())
    scene.wait()
    assert node.asked == ["send_checkpoints"] * 2, "what is here is not brought again"
    assert scene.observer.notes == []


def parts(folders: tuple[Path, Path], step: int) -> None:
    """Write a complete checkpoint of two ranks, each part on its rank's node."""
    name = f"step-{step:06d}"
    for rank, folder in enumerate(folders):
        (folder / name).mkdir(parents=True)
        (folder / name / f"__{rank}_0.distcp").write_bytes(b"x" * 100)
    files = {f"__{rank}_0.distcp": {"bytes": 100, "sha256": "0" * 64} for rank in (0, 1)}
    (folders[0] / f"{name}.json").write_text(json.dumps({"folder": name, "files": files, "step": step}))


def test_mirror_brings_the_parts_of_all_nodes_or_nothing(tmp_path: Path) -> None:
    scene, first, second = Scene(tmp_path, RUN), NodeHere(tmp_path / "node"), NodeHere(tmp_path / "other")
    second_folder = second.home / ".gpuctl-node" / "runs" / RUN.run / "gpu-1" / "checkpoints"
    parts((scene.there, second_folder), 40)
    result = scene.found()
    size = (scene.there / "step-000040.json").stat().st_size + 200
    assert (result.newest, result.bytes, result.lacks) == (
        "step-000040",
        size,
        ("step-000040/__1_0.distcp",),
    )
    mirror = Mirror(RUN, scene.folder, scene.incoming, scene.observer, lambda: [second])
    scene.mirror = mirror
    mirror.offer(first, result)
    scene.wait()
    assert scene.here() == {"step-000040", "step-000040.json"}
    assert len(list(scene.folder.checkpoints_path.glob("step-000040/*"))) == 2
    assert scene.observer.notes == []
    parts((scene.there, second_folder), 50)
    (second_folder / "step-000050" / "__1_0.distcp").unlink()
    mirror.offer(first, scene.found())
    scene.wait()
    assert scene.here() == {"step-000040", "step-000040.json"}
    [note] = scene.observer.notes
    assert "no machine that answers has step-000050/__1_0.distcp" in note


def test_mirror_drops_script_checkpoints_changed_in_transfer(tmp_path: Path) -> None:
    scene, node = Scene(tmp_path, SCRIPTS), Slow(tmp_path / "node")
    for name in ("shard-0", "shard-1"):
        (scene.there / name).write_bytes(b"old")
    before = scene.found()
    scene.mirror.offer(node, before)
    assert node.sending.wait(30)
    (scene.there / "shard-1").write_bytes(b"new")
    node.go_on.set()
    scene.wait()
    assert scene.here() == set()
    assert not mirrored_path(scene.folder).exists()
    scene.mirror.offer(node, scene.found())
    scene.wait()
    assert scene.here() == {"shard-0", "shard-1"}
    assert (scene.folder.checkpoints_path / "shard-1").read_bytes() == b"new"
    assert scene.observer.notes == [
        "gpu-0: its newest checkpoints were not brought here (they changed while they were brought); the next ones "
        "are tried again."
    ]


def test_mirror_notes_a_failure_once_and_retries(tmp_path: Path) -> None:
    scene, node = Scene(tmp_path, RUN), NodeHere(tmp_path / "node")
    checkpoint(scene.there, 40)
    scene.incoming.write_text("in the way")
    for connection in (Lost(tmp_path / "node"), Lost(tmp_path / "node"), node):
        scene.mirror.offer(connection, scene.found())
        wait_for(lambda: scene.mirror._thread is None, what="the end of the transfer", deadline_s=30)
    assert scene.observer.notes == [
        "gpu-0: its newest checkpoints were not brought here (the connection broke: send_checkpoints); the next "
        "ones are tried again."
    ]
    scene.incoming.unlink()
    scene.mirror.offer(node, scene.found())
    scene.wait()
    assert scene.here() == {"step-000040.pt", "step-000040.json"}


@pytest.mark.parametrize("run", [RUN, SCRIPTS])
def test_mirror_keeps_local_files_when_the_node_has_none(tmp_path: Path, run: Run) -> None:
    scene, node = Scene(tmp_path, run), NodeHere(tmp_path / "node")
    checkpoint(scene.there, 40)
    scene.mirror.offer(node, scene.found())
    scene.wait()
    checkpoint(scene.there, 50)
    result = scene.found()
    for path in scene.there.iterdir():
        path.unlink()
    scene.mirror.offer(node, result)
    scene.wait()
    assert scene.here() == {"step-000040.pt", "step-000040.json"}
    assert len(scene.observer.notes) == 1


def test_mirror_skips_and_notes_checkpoints_over_the_limit(tmp_path: Path) -> None:
    scene = Scene(tmp_path, RUN)
    for size in (MAX_MIRROR_BYTES + 10**6, 2 * MAX_MIRROR_BYTES):
        result = Checkpoints(files=2, bytes=size, newest="step-000040.pt", written_ns=1)
        scene.mirror.offer(Lost(tmp_path / "node"), result)
        scene.wait()
    assert scene.observer.notes == [
        "gpu-0: checkpoints of 257 MB are not copied here during the run, as they are more than 256 MB: if "
        "gpu-0 is lost, the next run resumes from older ones that can be reached, or starts from the beginning."
    ]


def test_mirror_refuses_more_bytes_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.runs.mirror.MAX_MIRROR_BYTES", 1000)
    scene = Scene(tmp_path, RUN)
    checkpoint(scene.there, 40, size=2000)
    scene.mirror.offer(NodeHere(tmp_path / "node"), replace(scene.found(), bytes=10))
    scene.wait()
    assert scene.here() == set()
    assert len(scene.observer.notes) == 1
    assert "step-000040.pt': over the limit of 1000 bytes" in scene.observer.notes[0]


@pytest.mark.parametrize("silent", [True, False])
def test_mirror_close_abandons_a_transfer(tmp_path: Path, silent: bool) -> None:
    scene, node = Scene(tmp_path, RUN), Slow(tmp_path / "node")
    checkpoint(scene.there, 40, size=10**6)
    scene.mirror.offer(node, scene.found())
    assert node.sending.wait(30)
    thread = scene.mirror._thread
    assert thread is not None
    closing = Thread(target=scene.mirror.close, daemon=True)
    closing.start()
    wait_for(lambda: scene.mirror._closed, what="the end")
    if not silent:
        node.go_on.set()
    closing.join(10)
    assert not closing.is_alive()
    node.go_on.set()
    thread.join(30)
    assert not thread.is_alive()
    scene.mirror.offer(node, scene.found())
    scene.mirror.close()
    assert scene.here() == set()
    assert node.asked == ["send_checkpoints"]
    assert scene.observer.notes == []
