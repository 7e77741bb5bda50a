"""What of a folder is sent."""

import os
import subprocess
from pathlib import Path

import pytest

from remote import tree
from remote.errors import ScriptNotSynced, SyncRefused
from remote.script import built_in_tree, user_script


def fill(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_without_git_the_usual_clutter_is_left_out(tmp_path: Path) -> None:
    fill(
        tmp_path, "a.py", ".venv/bin/python", "pkg/__pycache__/m.pyc", "pkg/m.py", "node_modules/x.js", ".env"
    )
    assert sorted(tree.read_tree(tmp_path).entries) == [".env", "a.py", "pkg/m.py"]


def test_with_git_it_is_what_git_would_track(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    fill(tmp_path, "a.py", "new.py", "out/model.pt", "gone.py", "späße.py")
    (tmp_path / ".gitignore").write_text("out/\n")
    subprocess.run(["git", "-C", str(tmp_path), "add", "-A"], check=True)
    (tmp_path / "gone.py").unlink()
    fill(tmp_path, "untracked.py")
    found = sorted(tree.read_tree(tmp_path).entries)
    assert found == [".gitignore", "a.py", "new.py", "späße.py", "untracked.py"]


def test_links_inside_are_kept_and_those_that_lead_out_are_named(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root, "a.py", "folder/b.py")
    (root / "inside").symlink_to("folder/b.py")
    (root / "outside").symlink_to("../..")
    (root / "absolute").symlink_to(root / "a.py")
    os.mkfifo(root / "pipe")
    read = tree.read_tree(root)
    assert read.entries["inside"] == ("folder/b.py",)
    assert sorted(read.skipped) == ["absolute", "outside", "pipe"]
    assert sorted(read.entries) == ["a.py", "folder/b.py", "inside"]


def test_a_large_folder_is_refused_with_its_size(tmp_path: Path) -> None:
    fill(tmp_path, "a.py")
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(tree.MAX_BYTES + 1)
    with pytest.raises(SyncRefused, match=r"500\.0 MB.*data\.bin.*--yes"):
        tree.read_tree(tmp_path)
    assert len(tree.read_tree(tmp_path, allow_large=True).entries) == 2


def test_the_built_in_job_is_found_without_importing_it() -> None:
    entries = built_in_tree().entries
    assert "train/__main__.py" in entries
    assert all(name.startswith("train/") and name.endswith(".py") for name in entries)


def test_scripts_are_checked_against_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    fill(root, "train.py", "pkg/__init__.py", "pkg/mod.py", "hidden/secret.py", "tool/__main__.py")
    (root / ".gitignore").write_text("hidden/\n")
    fill(tmp_path, "elsewhere.py")
    monkeypatch.chdir(root)
    read = tree.read_tree(root)
    assert user_script(("./train.py", "--lr", "1"), None, read).command("py") == [
        "py",
        "-u",
        "train.py",
        "--lr",
        "1",
    ]
    assert user_script((str(root / "pkg" / "mod.py"),), None, read).target == "pkg/mod.py"
    assert user_script(("--lr", "1"), "pkg.mod", read).command("py") == [
        "py",
        "-u",
        "-m",
        "pkg.mod",
        "--lr",
        "1",
    ]
    assert user_script((), "tool", read).title == "-m tool"
    assert user_script((), "installed_elsewhere.main", read).title == "-m installed_elsewhere.main"
    for words, module, said in (
        (("trian.py",), None, "Did you mean train.py"),
        (("../elsewhere.py",), None, "outside"),
        (("hidden/secret.py",), None, "git ignores"),
        (("pkg",), None, "is a folder"),
        ((), "pkg.missing", "pkg/missing.py"),
        ((), "not-a-module", "not a module's name"),
    ):
        with pytest.raises(ScriptNotSynced, match=said):
            user_script(words, module, read)


def test_sizes_for_people() -> None:
    assert [tree.human_bytes(n) for n in (0, 999, 1000, 1_234_567, 5e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.2 MB",
        "5.0 TB",
    ]
