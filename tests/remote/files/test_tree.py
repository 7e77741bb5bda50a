"""Test the choice of a folder's files to send."""

import os
import shutil
import subprocess
import zipapp
from pathlib import Path

import pytest

from inventories.text import human_bytes
from remote.errors import ScriptNotFound, ScriptNotSynced, SyncRefused
from remote.files import git, tree
from remote.launchers.rank_command import built_in_tree, user_script


def fill(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_read_tree_without_git_leaves_out_caches_and_environments(tmp_path: Path) -> None:
    fill(
        tmp_path, "a.py", ".venv/bin/python", "pkg/__pycache__/m.pyc", "pkg/m.py", "node_modules/x.js", ".env"
    )
    read = tree.read_tree(tmp_path)
    assert sorted(read.entries) == ["a.py", "pkg/m.py"]
    assert list(read.skipped) == [".env"]


def test_read_tree_with_git_sends_what_git_would_track(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    fill(tmp_path, "a.py", "new.py", "out/model.pt", "gone.py", "späße.py")
    (tmp_path / ".gitignore").write_text("out/\n")
    subprocess.run(["git", "-C", str(tmp_path), "add", "-A"], check=True)
    (tmp_path / "gone.py").unlink()
    fill(tmp_path, "untracked.py")
    result = sorted(tree.read_tree(tmp_path).entries)
    assert result == [".gitignore", "a.py", "new.py", "späße.py", "untracked.py"]


def test_read_tree_sends_a_tracked_folder_replaced_by_a_file(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    fill(tmp_path, "a/b.py", "c.py")
    subprocess.run(["git", "-C", str(tmp_path), "add", "-A"], check=True)
    (tmp_path / "a" / "b.py").unlink()
    (tmp_path / "a").rmdir()
    fill(tmp_path, "a")
    assert list(tree.read_tree(tmp_path).entries) == ["a", "c.py"]


def test_tree_manifest_of_many_files_is_small(tmp_path: Path) -> None:
    entries = {f"package/part{n % 50}/module_{n}.py": (n, 10**18 + n * 7919**3, 0o644) for n in range(10_000)}
    assert len(tree.Tree(root=tmp_path, entries=entries).packed) < 250_000


def test_read_tree_keeps_inner_links_and_names_outer_ones(tmp_path: Path) -> None:
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


def test_read_tree_refuses_a_large_folder_unless_allowed(tmp_path: Path) -> None:
    fill(tmp_path, "a.py")
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(tree.MAX_BYTES + 1)
    with pytest.raises(SyncRefused, match=r"500\.0 MB.*data\.bin.*--yes"):
        tree.read_tree(tmp_path)
    assert len(tree.read_tree(tmp_path, allow_large=True).entries) == 2


def test_read_tree_names_only_large_files_in_its_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "MAX_BYTES", 10)
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.bin").write_bytes(bytes(20))
    with pytest.raises(SyncRefused, match=r"largest so far: b\.bin \(20 B\)\. Leave"):
        tree.read_tree(tmp_path)


def test_read_tree_refuses_a_checkout_of_dubious_ownership(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    fill(tmp_path, "a.py", "sub/b.py")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(SyncRefused, match=r"dubious ownership.*safe\.directory"):
        tree.read_tree(tmp_path / "sub")


def test_read_tree_times_out_on_a_hanging_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "project", "a")
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(git, "GIT_S", 0.2)
    with pytest.raises(SyncRefused, match=r"git did not end within 0 s in .*project; nothing was sent"):
        tree.read_tree(tmp_path / "project")


def test_read_tree_works_without_a_git_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "a.py")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert list(tree.read_tree(tmp_path).entries) == ["a.py"]


def test_read_tree_names_and_skips_nested_repositories(tmp_path: Path) -> None:
    fill(tmp_path, "a.py", "inner/b.py")
    for root in (tmp_path, tmp_path / "inner"):
        subprocess.run(["git", "init", "-q", str(root)], check=True)
    read = tree.read_tree(tmp_path)
    assert list(read.entries) == ["a.py"]
    assert read.skipped == {"inner": tree.REPOSITORY}
    shutil.rmtree(tmp_path / ".git")
    assert sorted(tree.read_tree(tmp_path).entries) == ["a.py", "inner/b.py"], (
        "only git's listing leaves it out"
    )


def commit(root: Path) -> None:
    local = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    subprocess.run(["git", "-C", str(root), "add", "-A"], check=True)
    subprocess.run(["git", "-C", str(root), *local, "commit", "-qm", "one"], check=True)


def test_read_tree_sends_submodules_and_names_those_not_checked_out(tmp_path: Path) -> None:
    fill(tmp_path, "inner/b.py", "middle/c.py", "outer/a.py")
    add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add"]
    for outside, inside in ((None, "inner"), ("inner", "middle"), ("middle", "outer")):
        commit(tmp_path / inside)
        if outside is not None:
            subprocess.run(["git", *add, str(tmp_path / outside), "sub"], cwd=tmp_path / inside, check=True)
            commit(tmp_path / inside)
    fill(tmp_path, "outer/sub/new.py")
    read = tree.read_tree(tmp_path / "outer")
    assert sorted(read.entries) == [".gitmodules", "a.py", "sub/.gitmodules", "sub/c.py", "sub/new.py"]
    assert read.skipped == {"sub/sub": tree.SUBMODULE}


def test_root_of_a_folder_is_its_repository_but_not_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "home/project/sub/a.py", "home/plain/b.py")
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    subprocess.run(["git", "init", "-q", str(home)], check=True)
    subprocess.run(["git", "init", "-q", str(home / "project")], check=True)
    assert tree.root_of(home / "project" / "sub") == home / "project"
    assert tree.root_of(home / "plain") == home / "plain", "a repository of settings is not sent"
    assert tree.root_of(tmp_path) == tmp_path


def test_read_tree_includes_what_git_ignores_if_it_is_named(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(
        root,
        "a.py",
        "data/x/1.png",
        "data/.aws/key",
        "data/__pycache__/c.pyc",
        "other/2.png",
        ".env",
        "inner/b.py",
    )
    (root / ".gitignore").write_text("data/\nother/\n.env\n")
    for folder in (root, root / "inner"):
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    read = tree.read_tree(root, include=[root / "data", root / ".env", root / "inner"])
    assert sorted(read.entries) == [".env", ".gitignore", "a.py", "data/x/1.png", "inner/b.py"]
    assert read.skipped == {"data/.aws": tree.PRIVATE}
    everything = tree.read_tree(root, include=[root])
    assert "other/2.png" in everything.entries
    assert ".env" in everything.skipped, "it is sent only where it is named itself"


def test_read_tree_includes_a_link_with_what_it_leads_to(tmp_path: Path) -> None:
    fill(tmp_path, "storage/x.bin", "storage/y.bin")
    (tmp_path / "data").symlink_to("storage")
    (tmp_path / ".gitignore").write_text("storage/\ndata\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    local = [".gitignore", "data"]
    for name, files in (("data", ["storage/x.bin", "storage/y.bin"]), ("data/x.bin", ["storage/x.bin"])):
        assert sorted(tree.read_tree(tmp_path, include=[tmp_path / name]).entries) == [*local, *files]


def test_read_tree_does_not_follow_a_link_in_place_of_a_tracked_folder(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(tmp_path, "root/exp/a.py", "root/b.py", "elsewhere/a.py")
    commit(root)
    (root / "exp" / "a.py").unlink()
    (root / "exp").rmdir()
    (root / "exp").symlink_to(tmp_path / "elsewhere")
    read = tree.read_tree(root)
    assert list(read.entries) == ["b.py"]
    assert read.skipped["exp"].startswith(tree.OUTSIDE)


def test_read_tree_lists_folders_without_files(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    fill(tmp_path, "a.py", "pkg/b.py", "data/x.bin", ".gitignore")
    (tmp_path / ".gitignore").write_text("checkpoints\ndata\n")
    for name in ("checkpoints/best", "pkg/logs", "data/empty", ".venv/bin", ".aws", "linked"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "linked" / "up").symlink_to("..")
    assert tree.read_tree(tmp_path).folders == ("checkpoints", "checkpoints/best", "pkg/logs")
    assert tree.read_everything(tmp_path / "data").folders == ("empty",)


def test_notes_name_pointers_of_git_lfs_and_bound_what_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    fill(root, "a.py", "sub/b.py")
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1234567\n"
    for name in ("model.bin", "sub/data.bin"):
        (root / name).write_text(pointer)
    (root / "cited.md").write_text(f"# {pointer}")
    for number in range(tree.MAX_NOTES + 2):
        (root / f"{number}.jpg").symlink_to("/nowhere/at/all")
    (root / "my data").symlink_to(tmp_path)
    monkeypatch.chdir(root / "sub")
    outside = f"{tree.OUTSIDE}. {tree.PUSH} '../my data'"
    assert tree.read_tree(root).notes == [
        *(f"{number}.jpg is not sent: {tree.DANGLING}" for number in range(tree.MAX_NOTES)),
        f"my data is not sent: {outside}",
        f"2 more are not sent, like 0.jpg: {tree.DANGLING}",
        "model.bin and 1 more are pointers of Git LFS, sent in place of the data. Get the data: git lfs pull",
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_read_tree_leaves_out_files_that_may_not_be_read(tmp_path: Path) -> None:
    fill(tmp_path, "a.py", "b.py")
    (tmp_path / "b.py").chmod(0o200)
    assert tree.read_tree(tmp_path).skipped == {"b.py": tree.UNREADABLE}


def test_read_tree_is_not_misled_by_variables_of_a_git_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "one/a.py", "two/sub/b.py")
    for name in ("one", "two"):
        commit(tmp_path / name)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "one" / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "one" / ".git" / "index"))
    assert tree.root_of(tmp_path / "two" / "sub") == tmp_path / "two"
    assert list(tree.read_tree(tmp_path / "two").entries) == ["sub/b.py"]


def test_read_tree_keeps_back_files_of_secrets_but_no_samples(tmp_path: Path) -> None:
    fill(tmp_path, "a.py", ".env.production", "sub/.env.local", ".env.example", ".git-credentials")
    read = tree.read_tree(tmp_path)
    assert list(read.entries) == [".env.example", "a.py"]
    assert list(read.skipped) == [".env.production", ".git-credentials", "sub/.env.local"]


def test_read_tree_refuses_to_include_what_is_elsewhere(tmp_path: Path) -> None:
    fill(tmp_path, "root/a.py", "elsewhere/b.py")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    for name, output in (
        ("../elsewhere", "leads out of"),
        ("link", "leads out of"),
        ("none", "no such file or folder"),
    ):
        with pytest.raises(SyncRefused, match=f"^--include .*{name}.* {output}"):
            tree.read_tree(tmp_path / "root", include=[tmp_path / "root" / name])


@pytest.mark.parametrize("allow_large", [True, False])
def test_read_tree_refuses_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allow_large: bool
) -> None:
    home = tmp_path / "users" / "me"
    fill(home, "project/a.py")
    monkeypatch.setenv("HOME", str(home))
    for folder in (home, home.parent, Path("/")):
        for read in (tree.read_tree, tree.read_everything):
            with pytest.raises(SyncRefused, match="your home folder, with keys and credentials"):
                read(folder, allow_large=allow_large)
    assert list(tree.read_tree(home / "project").entries) == ["a.py"]


@pytest.mark.parametrize("git", [True, False])
def test_read_tree_never_sends_credentials(tmp_path: Path, git: bool) -> None:
    if git:
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    fill(tmp_path, "a.py", ".ssh/id", ".ssh/deep/er", "x/.aws/credentials", "x/.netrc", "x/y.py")
    for read in (tree.read_tree(tmp_path), tree.read_everything(tmp_path)):
        assert list(read.skipped) == [".ssh", "x/.aws", "x/.netrc"]
        assert {"a.py", "x/y.py"} == {name for name in read.entries if not name.startswith(".git/")}


def test_read_everything_includes_git_ignored_files(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    fill(tmp_path, "a.py", "out/model.pt", ".venv/bin/python", ".env")
    (tmp_path / ".gitignore").write_text("out/\n")
    os.mkfifo(tmp_path / "pipe")
    read = tree.read_everything(tmp_path)
    assert {"a.py", "out/model.pt", ".venv/bin/python", ".env", ".git/HEAD"} <= set(read.entries)
    assert read.skipped == {"pipe": tree.SPECIAL}
    fill(tmp_path, "odd[1].txt")
    assert list(tree.read_everything(tmp_path / "odd[1].txt").entries) == ["odd[1].txt"]


def test_built_in_tree_contains_only_python_files_of_train() -> None:
    entries = built_in_tree().entries
    assert "train/__main__.py" in entries
    assert all(name.startswith("train/") and name.endswith(".py") for name in entries)


def test_user_script_accepts_only_python_scripts_that_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    fill(root, "train.py", "pkg/__init__.py", "pkg/mod.py", "hidden/secret.py", "tool/__main__.py")
    (root / ".gitignore").write_text("hidden/\n")
    fill(tmp_path, "elsewhere.py")
    (root / "run.sh").write_text("#!/bin/bash\ntorchrun train.py\n")
    (root / "weights.bin").write_bytes(b"\x80\0\1")
    (root / "tool.py").write_text("#!/usr/bin/env python3\n")
    zipapp.create_archive(root / "tool", root / "tool.pyz", interpreter="/bin/python3")
    monkeypatch.chdir(root)
    read = tree.read_tree(root)
    (tmp_path / "link").symlink_to(root)
    assert user_script((str(tmp_path / "link" / "train.py"),), None, read).target == "train.py"
    for runs in ("tool.py", "tool.pyz"):
        assert user_script((runs,), None, read).target == runs
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
    for words, module, output in (
        (("trian.py",), None, "Did you mean train.py"),
        (("../elsewhere.py",), None, "outside"),
        (("hidden/secret.py",), None, "git ignores"),
        (("pkg",), None, "is a folder"),
        (("python", "train.py"), None, "leave `python` and its options out"),
        (("run.sh",), None, "run.sh is a script for /bin/bash, and the ranks are started with Python"),
        (("weights.bin",), None, "weights.bin is a binary file"),
        ((), "pkg.missing", "pkg/missing.py"),
        ((), "not..a.module", "not a module's name"),
    ):
        with pytest.raises((ScriptNotFound, ScriptNotSynced), match=output):
            user_script(words, module, read)


def test_human_bytes_formats_sizes() -> None:
    assert [human_bytes(n) for n in (0, 999, 1000, 1_234_567, 5e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.2 MB",
        "5.0 TB",
    ]
