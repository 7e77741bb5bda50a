"""Test the files of earlier runs in a node's project folder, as the sync before the next run finds them."""

import json
import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from remote.errors import BadAnswer
from remote.files.earlier import Aside, EarlierFiles, digests_in, earlier_files
from remote.files.tree import Tree, read_everything
from remote.node.storage.earlier import command_send_earlier
from remote.node.storage.sync import command_sync
from remote.shared import frames


class Project:
    """A project here, and its copy on a node."""

    def __init__(self, tmp_path: Path) -> None:
        self.here = tmp_path / "here"
        self.there = tmp_path / "code" / "my-01"
        self.aside = tmp_path / "code" / "my-01.aside-1"
        self.here.mkdir()

    def push(self, folder: Path, where: str) -> None:
        """Send a folder's files to a place in the project, as a person does."""
        tree, output = read_everything(folder), BytesIO()
        request = {"root": str(self.there / where), "follow_deletions": False, "project": str(self.there)}
        command_sync(request, output, _chunks(tree, output))

    def sync(self, *, fresh: bool = False, share: bool = False, grows: str = "") -> EarlierFiles:
        """Send the project as before a run, in this process, or as shared files. `grows`: a file that grows during
        it.
        """
        tree = read_everything(self.here)
        if grows:
            with (self.here / grows).open("a") as file:
                file.write("more")
        output = BytesIO()
        request = {"root": str(self.there), "follow_deletions": not share}
        request |= Aside(name="1", everything=fresh).request(str(self.there))
        command_sync(request, output, _chunks(tree, output))
        output.seek(0)
        *_, (header, body) = frames.decode(output.readline, output.read)
        return earlier_files("n", header, body)

    def write(self, folder: Path, **texts: str) -> None:
        """Files in `folder`; `__` in a name stands for `/`."""
        for name, text in texts.items():
            path = folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def _chunks(tree: Tree, output: BytesIO) -> Iterator[frames.Frame]:
    yield {"t": "manifest"}, tree.packed
    for path in json.loads(output.getvalue().splitlines()[0])["paths"]:
        yield {"t": "chunk", "path": path, "last": True}, (tree.root / path).read_bytes()
    yield {"t": "sent"}, b""


def listing(root: Path) -> dict[str, str]:
    """Path → text of all files."""
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def project(tmp_path: Path) -> Project:
    result = Project(tmp_path)
    result.write(result.here, train="sent", pkg__mod="sent")
    result.sync()
    return result


def test_next_run_finds_what_earlier_ones_wrote_and_is_told(project: Project) -> None:
    project.write(project.there, snapshot="of a run", __pycache____x="cache")
    result = project.sync()
    assert (list(result.files), result.whole, result.aside) == (["snapshot"], True, 0)
    assert result.files["snapshot"] == (8, (project.there / "snapshot").stat().st_mtime_ns)


def test_fresh_run_begins_with_what_is_sent_alone_and_nothing_is_lost(project: Project) -> None:
    project.write(project.there, snapshot="1", pkg__own="2", runs__a__b="3", train="changed", venv__lib="env")
    (project.there / "link").symlink_to("train")
    result = project.sync(fresh=True)
    assert (result.files, result.aside) == ({}, 5)
    assert sorted(result.aside_names) == ["link", "pkg/own", "runs", "snapshot", "train"]
    assert listing(project.there) == {"train": "sent", "pkg/mod": "sent", "venv/lib": "env"}
    (project.aside / "link").unlink()
    assert listing(project.aside) == {"snapshot": "1", "pkg/own": "2", "runs/a/b": "3", "train": "changed"}
    assert project.sync(fresh=True).aside == 0


def test_fresh_run_finds_what_was_pushed(project: Project, tmp_path: Path) -> None:
    project.write(tmp_path / "mine", a="pushed", deep__b="pushed")
    project.push(tmp_path / "mine", "data/set")
    (tmp_path / "disk").mkdir()
    (project.there / "large").symlink_to(tmp_path / "disk")
    project.push(tmp_path / "mine", "large")
    assert project.sync().files == {}, "no run wrote that"
    project.write(project.there, data__set__index="of a run", data__set__a="by a run", snapshot="1")
    result = project.sync(fresh=True)
    assert sorted(result.aside_names) == ["data/set/index", "snapshot"]
    assert listing(project.there / "data") == {"set/a": "by a run", "set/deep/b": "pushed"}
    assert listing(project.there / "large") == {"a": "pushed", "deep/b": "pushed"}


def test_sent_file_that_a_run_changed_is_put_aside_before_it_is_sent_again(project: Project) -> None:
    project.write(project.there, train="by a run", pkg__mod="by a run", snapshot="1")
    (project.here / "pkg" / "mod").unlink()
    result = project.sync()
    assert sorted(result.aside_names) == ["pkg/mod", "train"]
    assert listing(project.aside) == {"train": "by a run", "pkg/mod": "by a run"}
    assert listing(project.there) == {"train": "sent", "snapshot": "1"}


def test_file_that_grew_here_while_it_was_sent_is_not_taken_for_a_run_s(project: Project) -> None:
    project.write(project.here, log="begun")
    project.sync(grows="log")
    assert listing(project.there)["log"] == "begunmore"
    result = project.sync(grows="log")
    assert (result.aside, list(result.files)) == (0, [])
    assert listing(project.there)["log"] == "begunmoremore"


def test_own_file_of_a_run_that_is_sent_now_is_put_aside(project: Project) -> None:
    project.write(project.there, snapshot="of a run")
    project.write(project.here, snapshot="mine")
    assert project.sync().aside_names == ("snapshot",)
    assert listing(project.aside) == {"snapshot": "of a run"}
    assert listing(project.there)["snapshot"] == "mine"


def test_what_was_put_aside_before_is_not_overwritten(project: Project) -> None:
    for number in "12":
        project.write(project.there, snapshot=number, train=number, out__a=number)
        project.sync(fresh=True)
    (project.there / "out").write_text("a file")
    project.sync(fresh=True)
    project.write(project.aside, pkg="in the way")
    project.write(project.there, pkg__own="3")
    project.sync(fresh=True)
    assert listing(project.aside) == {
        "out.2/a": "2",
        "out.3": "a file",
        "out/a": "1",
        "pkg": "in the way",
        "pkg.2/own": "3",
        "snapshot": "1",
        "snapshot.2": "2",
        "train": "1",
        "train.2": "2",
    }


def test_what_a_link_of_a_run_leads_to_is_left_alone(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "data"
    project.write(outside, mod="dear")
    (project.there / "pkg" / "mod").unlink()
    (project.there / "pkg").rmdir()
    (project.there / "pkg").symlink_to(outside)
    (project.here / "pkg" / "mod").unlink()
    assert project.sync().aside == 0
    assert listing(outside) == {"mod": "dear"}


def test_file_that_changed_here_is_sent_and_nothing_is_put_aside(project: Project) -> None:
    project.write(project.here, train="next version")
    assert project.sync().aside == 0
    assert listing(project.there)["train"] == "next version"


def test_files_that_shared_ones_replace_are_put_aside(project: Project) -> None:
    project.write(project.there, snapshot="of rank 1", own="kept")
    (project.here / "train").unlink()
    (project.here / "pkg" / "mod").unlink()
    project.write(project.here, snapshot="of rank 0")
    assert project.sync(share=True).aside_names == ("snapshot",)
    assert listing(project.aside) == {"snapshot": "of rank 1"}
    assert listing(project.there) == {
        "own": "kept",
        "pkg/mod": "sent",
        "snapshot": "of rank 0",
        "train": "sent",
    }
    assert project.sync(share=True).aside == 0, "what is the same is not sent again"


def test_files_to_share_are_sent_and_links_are_not(project: Project) -> None:
    project.write(project.there, snapshot="weights")
    (project.there / "secret").symlink_to("/etc/hostname")
    output = BytesIO()
    command_send_earlier({"root": str(project.there), "paths": ["snapshot", "secret"]}, output)
    output.seek(0)
    text = list(frames.decode(output.readline, output.read))
    assert [header["path"] for header, _ in text if header["t"] == frames.COMPLETE] == ["snapshot"]
    assert b"".join(body for _, body in text) == b"weights"


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ({}, b"{}"),
        ({"aside": 0, "names": []}, b"[" * 100_000),
        ({"aside": 0, "names": ["x"] * 1000}, b'{"listed": [], "whole": true}'),
        ({"aside": 0, "names": []}, b'{"listed": [["a", "b"]], "whole": true}'),
        ({"aside": float("inf"), "names": []}, b'{"listed": [], "whole": true}'),
    ],
)
def test_word_of_a_node_that_is_no_list_is_refused(header: dict[str, Any], body: bytes) -> None:
    with pytest.raises(BadAnswer, match="n: what it says of earlier runs"):
        earlier_files("n", header, body)


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b"[" * 100_000])
def test_digests_of_a_node_that_cannot_be_read_are_refused(body: bytes) -> None:
    with pytest.raises(BadAnswer, match="n sent digests"):
        digests_in("n", body)


def test_names_that_are_no_text_are_kept(project: Project) -> None:
    (project.there / os.fsdecode(b"caf\xe9")).write_text("x")
    assert list(project.sync().files) == ["caf\udce9"]


def test_times_and_sizes_of_a_node_are_such_as_files_can_have(tmp_path: Path) -> None:
    listed = [["a", 10**30, 10**30, "r"], ["b", 1, -(10**30), "r"]]
    body = json.dumps({"listed": listed, "parts": {}, "whole": True}).encode()
    report = earlier_files("n", {"aside": 0, "names": []}, body)
    assert report.files["a"][0] == 2**63 - 1
    for name, (_, at) in report.files.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, ns=(at, at))
