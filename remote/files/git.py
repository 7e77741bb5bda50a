"""Facts of git about a folder: the repository around it, and which of its files git would keep."""

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from inventories.runs.commit import Commit
from remote.errors import SyncRefused

GIT_S = 300.0
NO_COMMIT = "(initial)"
_GITLINK = "160000 "
_OF_A_HOOK = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE",
)  # fmt: skip
"""Variables that git sets for its hooks, and that name the repository in which the hook runs."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of a repository and of its submodules. Paths are relative to it, with `/`."""

    files: list[str]
    """Tracked, or untracked and not ignored. Some may be gone."""
    repositories: list[str]
    """Repositories within, which git knows nothing of."""
    missing: list[str]
    """Submodules that are not checked out."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """The description of the current commit."""

    tag: str
    """The nearest tag with a digit in it. Empty: no commit before it has one."""
    distance: int
    """Commits since the tag, or all of them."""


def repository_of(folder: Path) -> Path | None:
    """Return the innermost repository around a folder; `None` without git, or without a repository.

    Raises SyncRefused for a repository that git can't read.
    """
    output = _git(folder, "rev-parse", "--show-toplevel")
    return None if output is None else Path(os.fsdecode(output.rstrip(b"\n")))


def list_files(root: Path) -> Listing | None:
    """List the files of a repository that git would keep; `None` without git, or without a repository.

    Raises SyncRefused for a repository that git can't read: its ignored files are not known.
    """
    staged = _git(root, "ls-files", "-z", "--stage")
    if staged is None:
        return None
    untracked = _git(root, "ls-files", "-z", "--others", "--exclude-standard")
    if untracked is None:
        return None
    # A file in conflict is listed several times.
    tracked = {name: line.startswith(_GITLINK) for line in _lines(staged) for name in line.split("\t", 1)[1:]}
    listing = Listing(files=[name for name, link in tracked.items() if not link], repositories=[], missing=[])
    for name in _lines(untracked):
        (listing.repositories if name.endswith("/") else listing.files).append(name.rstrip("/"))
    for name in (name for name, link in tracked.items() if link):
        is_repository = os.path.lexists(root / name / ".git") and not (root / name).is_symlink()
        within = list_files(root / name) if is_repository else None
        if within is None:
            listing.missing.append(name)
            continue
        listing.files.extend(f"{name}/{path}" for path in within.files)
        listing.repositories.extend(f"{name}/{path}" for path in within.repositories)
        listing.missing.extend(f"{name}/{path}" for path in within.missing)
    return listing


def commit_of(folder: Path) -> Commit | None:
    """Return the commit that the files of a folder are of; `None`: it is in no repository, or that has no commit yet.

    Raises SyncRefused for a repository that git can't read.
    """
    status = _git(folder, "--no-optional-locks", "status", "--porcelain=v2", "--branch", "-z", "--", ".")
    if status is None:
        return None
    lines = _lines(status)
    sha = next((line.split()[2] for line in lines if line.startswith("# branch.oid ")), NO_COMMIT)
    return (
        None if sha == NO_COMMIT else Commit(sha=sha, dirty=any(not line.startswith("# ") for line in lines))
    )


def describe(folder: Path) -> Described:
    """Describe the current commit of the repository around a folder, which has one. Raises SyncRefused."""
    output = _git(folder, "describe", "--tags", "--long", "--always", "--match", "*[0-9]*") or b""
    tag = re.fullmatch(r"(.+)-(\d+)-g[0-9a-f]+", os.fsdecode(output).strip())
    if tag is not None:
        return Described(tag=tag[1], distance=int(tag[2]))
    return Described(tag="", distance=int(_git(folder, "rev-list", "--count", "HEAD") or 0))


def _lines(output: bytes) -> list[str]:
    return [os.fsdecode(line) for line in output.split(b"\0") if line]


def _git(folder: Path, *words: str) -> bytes | None:
    """Return git's output; `None` without git, or outside a repository. Raises SyncRefused for other errors."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            # Its sentences in English: one of them is looked for.
            env={name: text for name, text in os.environ.items() if name not in _OF_A_HOOK} | {"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=GIT_S,
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired as error:
        raise SyncRefused(
            f"git did not end within {GIT_S:.0f} s in {folder}; nothing was sent. Try it by hand there: "
            f"git {shlex.join(words)}. A file system monitor that hangs is ended by git fsmonitor--daemon stop."
        ) from error
    if done.returncode == 0:
        return done.stdout
    message = " ".join(os.fsdecode(done.stderr).split())
    if "not a git repository (or any" in message:
        return None
    raise SyncRefused(
        f"git can't read the repository of {folder} (git {shlex.join(words)}); nothing was sent. "
        f"It says: {message or f'exit status {done.returncode}'}"
    )
