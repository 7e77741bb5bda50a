"""Test the node's side of sync: replaced files, removed files, and files never touched."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from remote.files.sync import _Progress
from remote.files.tree import Tree, read_everything
from remote.node.storage import staging
from remote.node.storage.staging import PARTIAL, Staging, remove_left_behind
from remote.node.storage.sync import command_sync
from remote.node.storage.sync_lock import alone
from remote.shared import files, frames


def sync(root: Path, tree: Tree, *, push: bool = False, cut: bool = False) -> list[dict[str, Any]]:
    """Sync a tree into `root` in this process; with `cut` the connection ends in the middle of a file."""

    def chunks() -> Iterator[frames.Frame]:
        yield {"t": "manifest"}, tree.packed
        need = json.loads(output.getvalue().splitlines()[0])["paths"]
        for path in need:
            if len(tree.entries[path]) > 1:
                yield {"t": "chunk", "path": path, "last": not cut}, (tree.root / path).read_bytes()
                if cut:
                    return
        yield {"t": "sent"}, b""

    output = BytesIO()
    request = {"root": str(root), "follow_deletions": not push, "folders": [".", *tree.folders]}
    command_sync(request, output, chunks())
    return [json.loads(line) for line in output.getvalue().splitlines()]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return make(tmp_path / "here")


def make(root: Path, **texts: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (root / name).write_text(text)
    return root


def listing(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir())


def test_push_refuses_to_replace_a_folder_by_a_file(here: Path, tmp_path: Path) -> None:
    existing = tmp_path / "there"
    make(existing / "notes", dear="diary")
    make(here, a="new", notes="a file")
    with pytest.raises(OSError, match="there/notes is a folder there, and a file here; no file was sent"):
        sync(existing, read_everything(here), push=True)
    assert listing(existing) == ["notes/dear"]


@pytest.mark.parametrize("push", [True, False])
def test_sync_and_push_refuse_to_replace_a_file_by_a_folder(here: Path, tmp_path: Path, push: bool) -> None:
    existing = make(tmp_path / "there", data="precious")
    make(here / "data", x="1")
    with pytest.raises(OSError, match="data is a file there, and a folder here; no file was sent"):
        sync(existing, read_everything(here), push=push)
    assert (existing / "data").read_text() == "precious"


def test_push_follows_linked_folders_and_sync_refuses_them(here: Path, tmp_path: Path) -> None:
    existing, real = make(tmp_path / "there"), make(tmp_path / "real", mine="kept")
    (existing / "lnk").symlink_to(real)
    make(here / "lnk", x="1")
    with pytest.raises(OSError, match="lnk is a link there"):
        sync(existing, read_everything(here))
    assert listing(real) == ["mine"]
    sync(existing, read_everything(here), push=True)
    assert (existing / "lnk").is_symlink()
    assert listing(real) == ["mine", "x"]


def test_sync_replaces_files_by_folders_it_sent(here: Path, tmp_path: Path) -> None:
    existing = tmp_path / "there"
    make(here / "a" / "b", x="1")
    make(here, c="file")
    sync(existing, read_everything(here))
    (here / "a" / "b" / "x").unlink()
    (here / "a" / "b").rmdir()
    (here / "a").rmdir()
    (here / "c").unlink()
    make(here, a="now a file")
    make(here / "c", y="now in a folder")
    (existing / "of a run").write_text("stays")
    sync(existing, read_everything(here))
    assert listing(existing) == ["a", "c/y", "of a run"]


def test_sync_keeps_files_a_run_wrote(here: Path, tmp_path: Path) -> None:
    existing = tmp_path / "there"
    make(here / "out", x="1")
    sync(existing, read_everything(here))
    (existing / "out" / "model.pt").write_text("a week of work")
    (here / "out" / "x").unlink()
    (here / "out").rmdir()
    make(here, out="a file")
    with pytest.raises(OSError, match="out is a folder there"):
        sync(existing, read_everything(here))
    assert listing(existing) == ["out/model.pt", "out/x"]


def test_sync_does_not_delete_through_a_linked_folder(here: Path, tmp_path: Path) -> None:
    existing, real = tmp_path / "there", make(tmp_path / "real", x="not brought")
    make(here / "a", x="1")
    make(here, b="1")
    sync(existing, read_everything(here))
    (existing / "a" / "x").unlink()
    (existing / "a").rmdir()
    (existing / "a").symlink_to(real)
    (here / "a" / "x").unlink()
    sync(existing, read_everything(here))
    assert listing(real) == ["x"]


def test_interrupted_sync_changes_nothing_and_can_be_repeated(here: Path, tmp_path: Path) -> None:
    existing = make(tmp_path / "there", a="old")
    make(here, a="new", b="2")
    with pytest.raises(EOFError):
        sync(existing, read_everything(here), cut=True)
    assert listing(existing) == ["a"]
    assert (existing / "a").read_text() == "old"
    assert sync(existing, read_everything(here))[0]["paths"] == ["a", "b"]
    assert sync(existing, read_everything(here))[0]["paths"] == []


def test_sync_replaces_files_of_an_interrupted_sync(here: Path, tmp_path: Path) -> None:
    existing = tmp_path / "there"
    make(here, a="1", b="2")
    tree = read_everything(here)
    (here / "b").unlink()
    with pytest.raises(FileNotFoundError):
        sync(existing, tree)
    (here / "a").unlink()
    make(here / "a", x="1")
    sync(existing, read_everything(here))
    assert listing(existing) == ["a/x"]


def test_sync_removes_the_staging_folder_of_a_killed_sync(here: Path, tmp_path: Path) -> None:
    """A running sync's folder stays; rsync's partial file is saved for it."""
    existing = make(tmp_path / "there")
    make(here, a="1")
    with Staging(str(existing)) as goes_on:
        goes_on.make()
        left = make(existing / ".gpuctl-incoming-0", lock="", **{"1": "some", ".big.bin.Ab12Cd": "more"})
        remove_left_behind(str(existing))
        assert not left.exists()
        assert (existing / PARTIAL / "big.bin").read_text() == "more"
        sync(existing, read_everything(here))
        assert [path.name for path in existing.glob(".gpuctl*")] == [goes_on.name]
    assert listing(existing) == ["a"]


def test_sync_does_not_request_files_already_copied(here: Path, tmp_path: Path) -> None:
    existing = tmp_path / "there"
    make(here, a="1", b="2")
    tree = read_everything(here)

    def chunks() -> Iterator[frames.Frame]:
        yield {"t": "manifest"}, tree.packed
        shutil.copy2(here / "a", existing / "a")
        yield {"t": "look"}, b""
        yield {"t": "chunk", "path": "b", "last": True}, b"2"
        yield {"t": "sent"}, b""

    output = BytesIO()
    command_sync({"root": str(existing), "follow_deletions": True}, output, chunks())
    first, second, done = (json.loads(line) for line in output.getvalue().splitlines())
    assert (first["paths"], second, done["t"]) == (["a", "b"], {"t": "need", "paths": ["b"]}, "synced")
    copied = read_everything(existing).entries
    assert {name: entry[:3] for name, entry in copied.items()} == {
        name: entry[:3] for name, entry in tree.entries.items()
    }


@pytest.mark.parametrize("interrupted", [False, True])
def test_sync_sends_other_content_of_the_same_size_and_time(
    here: Path, tmp_path: Path, interrupted: bool
) -> None:
    existing = tmp_path / "there"
    make(here, a="first", b="stays")
    sync(existing, read_everything(here))
    times = (here / "a").stat()
    time.sleep(0.02)  # the disk's clock has steps
    (here / "a").write_text("other")
    os.utime(here / "a", ns=(times.st_atime_ns, times.st_mtime_ns))
    if interrupted:
        with pytest.raises(EOFError):
            sync(existing, read_everything(here), cut=True)
    assert sync(existing, read_everything(here))[0]["paths"] == ["a"]
    assert (existing / "a").read_text() == "other"
    assert sync(existing, read_everything(here))[0]["paths"] == []


def test_sync_makes_folders_that_hold_no_file(here: Path, tmp_path: Path) -> None:
    existing = tmp_path / "there"
    for folder in ("logs/tensorboard", "out", "taken"):
        (here / folder).mkdir(parents=True)
    make(here, a="1")
    make(existing, taken="by a run")
    for _ in range(2):
        sync(existing, read_everything(here))
        assert sorted(path.name for path in existing.rglob("*") if path.is_dir()) == [
            "logs",
            "out",
            "tensorboard",
        ]
    assert listing(existing) == ["a", "taken"]


def test_sync_refuses_interleaved_or_unrequested_files(here: Path, tmp_path: Path) -> None:
    existing = tmp_path / "there"
    make(here, a="1", b="2")
    tree = read_everything(here)
    for second in ({"path": "b", "last": True}, {"path": "c", "last": True}):
        begun = [({"t": "manifest"}, tree.packed), ({"t": "chunk", "path": "a", "last": False}, b"1")]
        more = iter([*begun, ({"t": "chunk", **second}, b"2")])
        with pytest.raises(ValueError, match=r"b was sent before a was whole|nobody asked for was sent: c"):
            command_sync({"root": str(existing), "follow_deletions": True}, BytesIO(), more)
        assert listing(existing) == []


def test_syncs_into_one_folder_wait_for_each_other(here: Path, tmp_path: Path) -> None:
    existing = make(tmp_path / "there")
    make(here, a="1")
    beats: list[bool] = []
    with alone(str(existing), lambda: None):
        later = Thread(target=sync, args=(existing, read_everything(here)))
        later.start()
        with (
            pytest.raises(TimeoutError, match=r"files are still being sent into .*/there by another"),
            alone(str(existing), lambda: beats.append(True), deadline_s=0.2),
        ):
            pass
        assert listing(existing) == []
        assert beats, "who waits is known to be there"
    later.join(timeout=30)
    assert listing(existing) == ["a"]


def test_sync_without_changes_writes_nothing(here: Path, tmp_path: Path) -> None:
    existing = tmp_path / "there"
    make(here / "deep" / "er", a="1")
    sync(existing, read_everything(here))
    paths = (existing, existing / "deep" / "er", existing.with_name("there.manifest.json"))
    before = [path.stat() for path in paths]
    sync(existing, read_everything(here))
    assert [path.stat().st_mtime_ns for path in paths] == [status.st_mtime_ns for status in before]
    assert paths[2].stat().st_ino == before[2].st_ino


def test_put_copies_files_and_links_to_another_disk(tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second disk: Linux has one in /dev/shm")
    with tempfile.TemporaryDirectory(dir=other) as folder:
        make(tmp_path, f="text")
        (tmp_path / "f").chmod(0o640)
        os.utime(tmp_path / "f", ns=(1, 1_234_567_890_123_456_789))
        staging.put(str(tmp_path / "f"), f"{folder}/f")
        status = Path(folder, "f").stat()
        assert (status.st_mode & 0o777, status.st_mtime_ns) == (0o640, 1_234_567_890_123_456_789)
        (tmp_path / "l").symlink_to("f")
        staging.put(str(tmp_path / "l"), f"{folder}/l")
        assert listing(Path(folder)) == ["f", "l"]
        with pytest.raises(OSError, match="directory"):
            staging.put(str(tmp_path / "f"), f"{folder}/none/f")


def test_sync_progress_is_logged_at_intervals() -> None:
    output: list[str] = []
    progress = _Progress(total_bytes=500_000_000, say=output.append)
    progress.at(1)
    progress.next_word = 0
    progress.at(250_000_000)
    progress.at(260_000_000)
    assert output == ["250.0 MB of 500.0 MB sent"]


def test_sync_creates_and_replaces_links(here: Path, tmp_path: Path) -> None:
    existing = tmp_path / "there"
    make(here, a="1", b="2")
    (here / "lnk").symlink_to("a")
    sync(existing, read_everything(here))
    (here / "lnk").unlink()
    (here / "lnk").symlink_to("b")
    assert sync(existing, read_everything(here))[0]["paths"] == ["lnk"]
    assert str((existing / "lnk").readlink()) == "b"
    assert listing(existing) == ["a", "b", "lnk"]


def test_read_json_of_a_damaged_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "d.json").write_bytes(b'{"a": [1, 2')
    assert files.read_json(tmp_path / "d.json") == {}


def test_write_json_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    files.write_json(path, {"a": 1})
    script = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom remote.shared import files\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (100, {resource.RLIM_INFINITY}))\n"
        "files.write_json(Path(sys.argv[1]), {'a': 'x' * 1000})\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert "File too large" in done.stderr
    assert files.read_json(path) == {"a": 1}
    assert listing(tmp_path) == ["d.json"]
