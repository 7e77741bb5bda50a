"""Files that a node sends one after the other: what breaks off leaves nothing, whoever ends it."""

import hashlib
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from node_here import NodeHere
from support import Gpuctl, interrupt, wait_for

from remote.errors import BadAnswer
from remote.files.pull import conflicts, receive
from remote.files.receive import FileReceiver
from remote.shared import frames


class Sends(NodeHere):
    """A node that sends these frames, and waits to be let go after each."""

    def __init__(self, home: Path, *said: tuple[dict[str, Any], bytes]) -> None:
        super().__init__(home)
        self.said = said
        self.taken, self.go_on = [Event() for _ in said], [Event() for _ in said]

    @contextmanager
    def stream(self, command: str, request: dict[str, Any], **_: Any) -> Iterator[Any]:  # type: ignore[override]
        yield SimpleNamespace(frames=self._frames)

    def _frames(self) -> Iterator[frames.Frame]:
        for frame, values, go_on in zip(self.said, self.taken, self.go_on, strict=True):
            yield frame
            values.set()
            assert go_on.wait(30)


def test_closed_intake_removes_partial_files_and_takes_no_more(tmp_path: Path) -> None:
    chunk = {"t": "chunk", "path": "a", "offset": 0}
    node = Sends(tmp_path, (chunk, b"1"), (dict(chunk, offset=1), b"2"), (dict(chunk, path="b/c"), b"3"))
    intake = FileReceiver(tmp_path / "in", max_bytes=1000)

    def pull() -> None:
        with pytest.raises(BadAnswer, match="ended before everything had been sent"):
            receive(node, "there", intake)

    receiving = Thread(target=pull, daemon=True)
    receiving.start()
    assert node.taken[0].wait(30)
    assert len(list((tmp_path / "in").iterdir())) == 1
    intake.close()
    for values, go_on in zip(node.taken, node.go_on, strict=True):
        assert values.wait(30)
        assert list((tmp_path / "in").iterdir()) == []
        go_on.set()
    receiving.join(30)
    assert not receiving.is_alive()


@pytest.mark.parametrize(
    "header",
    [
        {"t": "chunk", "path": "a"},
        {"t": "chunk", "path": ["a"], "offset": 0},
        {"t": "chunk", "path": "a", "offset": math.inf},
        {"t": "complete", "path": "a", "bytes": "many", "sha256": "", "mode": 0},
        {"t": "what"},
    ],
)
def test_receive_refuses_a_malformed_header(tmp_path: Path, header: dict[str, Any]) -> None:
    node = Sends(tmp_path, ({"t": "chunk", "path": "b", "offset": 0}, b"1"), (header, b"2"))
    node.go_on[0].set()
    with pytest.raises(BadAnswer, match=r"^gpu-0: sent "):
        receive(node, "there", FileReceiver(tmp_path / "in", max_bytes=1000))
    assert list((tmp_path / "in").iterdir()) == []


@pytest.mark.parametrize("path", ["\ud800", 5, None, "../a"])
def test_receive_leaves_out_an_invalid_file_name(tmp_path: Path, path: Any) -> None:
    complete = {"t": "complete", "path": path, "bytes": 1, "sha256": "", "mode": 0}
    node = Sends(
        tmp_path, ({"t": "chunk", "path": path, "offset": 0}, b"1"), (complete, b""), ({"t": "done"}, b"")
    )
    for go_on in node.go_on:
        go_on.set()
    (left_out,) = receive(node, "there", FileReceiver(tmp_path / "in", max_bytes=1000))
    assert left_out == f"{path!r}: the name {path!r} is not a plain relative path"


@pytest.mark.slow
def test_interrupted_pull_leaves_no_partial_file(cluster: Gpuctl) -> None:
    with (cluster.cwd / "large").open("wb") as file:
        os.truncate(file.fileno(), 20 * 1000**3)
    pulling = cluster.start("pull", str(cluster.cwd / "large"), "back")
    local = cluster.cwd / "back"
    for node in ("default-0", "default-1"):
        wait_for(lambda node=node: list(local.glob(f"{node}/.incoming-*")), what="the first part of the file")
    interrupt(pulling)
    out, err = pulling.communicate(timeout=60)
    assert (pulling.returncode, out, err) == (130, "", "\nerror: Interrupted.\n")
    assert [path for path in local.rglob("*") if path.is_file()] == []


def test_files_whose_names_are_one_on_the_disk_do_not_replace_each_other(tmp_path: Path) -> None:
    intake = FileReceiver(tmp_path)
    digest = hashlib.sha256(b"a").hexdigest()
    for path in ("Best.pt", "other.pt"):
        intake.chunk(path, 0, b"a")
        intake.complete(path, 1, digest, 0o644)
    (tmp_path / "best.pt").hardlink_to(tmp_path / "Best.pt")  # as a disk that ignores case finds it
    (tmp_path / "OTHER.pt").write_text("another file")
    for path in ("best.pt", "OTHER.pt"):
        intake.chunk(path, 0, b"a")
        intake.complete(path, 1, digest, 0o644)
    assert intake.refused == {"best.pt": "on this disk its name is that of Best.pt"}
    assert (tmp_path / "OTHER.pt").read_bytes() == b"a"


def test_files_here_with_other_content_are_conflicts_and_equal_ones_are_not(tmp_path: Path) -> None:
    node, local, existing = NodeHere(tmp_path / "home"), tmp_path / "here", tmp_path / "home" / "out"
    for folder, texts in (
        (existing, ("same", "other", "longer", "new", "link")),
        (local, ("same", "OTHER", "long")),
    ):
        (folder / "a").mkdir(parents=True)
        for name, text in zip(("same", "a/other", "size", "new"), texts, strict=False):
            (folder / name).write_text(text)
    (existing / "link").write_text("link")
    (local / "link").symlink_to(existing / "link")
    assert conflicts(node, str(existing), local) == [local / "a/other", local / "link", local / "size"]
    assert conflicts(node, f"{existing}/a/other", local / "a") == [local / "a/other"]
    assert (
        conflicts(node, f"{existing}/same", local) == conflicts(node, str(existing), tmp_path / "none") == []
    )
