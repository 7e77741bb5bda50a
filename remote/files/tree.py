"""The files of a folder that are to be sent: what git would track, or all but a sensible ignore list."""

import json
import os
import re
import stat
import subprocess
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from pathlib import Path

from remote.errors import SyncRefused

IGNORED = (
    ".git", ".hg", ".svn", ".venv", "venv", "__pycache__", "*.pyc", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    ".ipynb_checkpoints", ".tox", ".nox", "node_modules", ".DS_Store", "*.egg-info",
)  # fmt: skip
"""Names left out where there is no git."""
CREDENTIALS = (".ssh", ".aws", ".oci", ".gnupg", ".gpuctl", ".netrc", ".kube")
"""Files and folders that are never sent with the folder they are in, whatever git says."""
GIT_S = 300.0
MAX_FILES = 20_000
MAX_BYTES = 500 * 1000 * 1000

Entry = tuple[int, int, int] | tuple[str]
"""Size, modification time in ns and mode of a file; or the target of a symbolic link."""


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A folder as it is now."""

    root: Path
    entries: dict[str, Entry]
    """By path relative to `root`, with `/`."""
    skipped: tuple[str, ...] = ()
    """Not sent: links that lead out of the folder, repositories within it, credentials, pipes and the like."""

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(entry[0] for entry in self.entries.values() if len(entry) == 3)

    @cached_property
    def packed(self) -> bytes:
        """The entries as compressed JSON: made once, however many nodes get them."""
        return zlib.compress(json.dumps(self.entries, separators=(",", ":")).encode(), 1)


def read_tree(root: Path, *, allow_large: bool = False) -> Tree:
    """The files of `root` that are to be sent.

    Raises SyncRefused, as soon as it is clear, for more than MAX_FILES files or MAX_BYTES bytes; for the user's
    home folder, however large; and where git can't list its checkout.
    """
    _refuse_home(root)
    names = _git_files(root)
    secret = (*CREDENTIALS, ".env")
    if names is not None:
        return _tree(root, names, allow_large, secret)
    return _tree(root, _walk(root, IGNORED, secret, allow_large), allow_large, secret)


def read_everything(root: Path, *, allow_large: bool = False) -> Tree:
    """All files of `root`, ignored by git or not; a file named itself is a tree of one. Raises SyncRefused."""
    if not root.is_dir():
        return _tree(root.parent, [root.name], allow_large=True, secret=())
    _refuse_home(root)
    return _tree(root, _walk(root, (), CREDENTIALS, allow_large), allow_large)


def _refuse_home(root: Path) -> None:
    home, folder = Path(os.path.expanduser("~")).resolve(), root.resolve()  # noqa: PTH111 - never raises
    if home.is_relative_to(folder):
        what = "is your home folder" if folder == home else "holds your home folder"
        raise SyncRefused(
            f"{folder} {what}, with keys and credentials; run the command in the folder of your project, or name "
            "a folder within it."
        )


def tree_of(root: Path, pattern: str) -> Tree:
    """The files of `root` that match a glob pattern, whatever git says: for folders of our own."""
    names = [path.relative_to(root).as_posix() for path in sorted(root.glob(pattern)) if path.is_file()]
    return _tree(root, names, allow_large=True)


def _tree(root: Path, names: Sequence[str], allow_large: bool, secret: tuple[str, ...] = CREDENTIALS) -> Tree:
    # Strings and one lstat a file: a project may have ten thousand.
    entries: dict[str, Entry] = {}
    skipped: list[str] = []
    total = 0
    for name in sorted(names):
        kept_back = _up_to(name, secret)
        if kept_back:
            if kept_back not in skipped and os.path.lexists(root / kept_back):
                skipped.append(kept_back)
            continue
        try:
            status = os.lstat(f"{root}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            continue  # tracked by git, deleted here
        if stat.S_ISREG(status.st_mode):
            total += status.st_size
            entries[name] = (status.st_size, status.st_mtime_ns, status.st_mode & 0o777)
        elif stat.S_ISLNK(status.st_mode) and (target := _target_inside(root, name)):
            entries[name] = (target,)
        else:
            # A link that leads out, a pipe or a socket; or a folder: git lists a repository within as one.
            skipped.append(name)
        if not allow_large and (total > MAX_BYTES or len(entries) > MAX_FILES):
            raise SyncRefused(_too_large(root, entries, total, more=len(names) - len(entries)))
    return Tree(root=root, entries=entries, skipped=tuple(skipped))


def _target_inside(root: Path, name: str) -> str:
    """Where a link leads to; empty for one that leads out of the root, or is absolute."""
    path = root / name
    target = path.readlink()
    inside = (path.parent / target).resolve().is_relative_to(root.resolve())
    return str(target) if inside and not target.is_absolute() else ""


def _up_to(name: str, secret: tuple[str, ...]) -> str:
    """The path up to its first component that is secret; empty where none is."""
    parts = name.split("/")
    if set(parts).isdisjoint(secret):
        return ""
    at = next((depth for depth, part in enumerate(parts, start=1) if part in secret))
    return "/".join(parts[:at])


def _git_files(root: Path) -> list[str] | None:
    """Tracked files and untracked ones that are not ignored; None where there is no git, or no repository.

    Raises SyncRefused where there is one that git can't read: what it ignores is not known then.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    try:
        # Its sentences in English: one of them is looked for.
        environment = {**os.environ, "LC_ALL": "C"}
        listed = subprocess.run(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=GIT_S,
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired as error:
        raise SyncRefused(
            f"git did not list the files of {root} within {GIT_S:.0f} s; nothing was sent. Try it by hand there: "
            "git ls-files. A file system monitor that hangs is ended by git fsmonitor--daemon stop."
        ) from error
    if listed.returncode != 0:
        said = " ".join(os.fsdecode(listed.stderr).split())
        if "not a git repository (or any" in said:
            return None
        raise SyncRefused(
            f"git can't list the files of {root}, so that what it ignores is not known; nothing was sent. "
            f"It says: {said or f'exit status {listed.returncode}'}"
        )
    # A repository within (a submodule, a nested clone) is listed as a folder.
    return [os.fsdecode(name).rstrip("/") for name in listed.stdout.split(b"\0") if name]


def _walk(root: Path, ignored: tuple[str, ...], secret: tuple[str, ...], allow_large: bool) -> list[str]:
    """Everything but folders, and those folders that are secret, by path relative to `root`."""
    leave_out = re.compile("|".join(map(translate, ignored)) or r"(?!)").match
    found: list[str] = []
    top = str(root)
    for folder, folders, names in os.walk(top):
        inner = sorted(name for name in folders if not leave_out(name))
        folders[:] = [name for name in inner if name not in secret]
        alone = [name for name in inner if name in secret or os.path.islink(f"{folder}/{name}")]  # noqa: PTH114
        within = folder[len(top) :].strip("/")
        prefix = f"{within}/" if within else ""
        found += [prefix + name for name in (*names, *alone) if not leave_out(name)]
        if not allow_large and len(found) > 4 * MAX_FILES:
            raise SyncRefused(
                f"{root} holds more than {len(found):,} files, more than the {MAX_FILES:,} that are sent without "
                "asking. Run the command in the folder of your project, or send all of it with --yes "
                "(in a program: allow_large=True)."
            )
    return found


def _too_large(root: Path, entries: dict[str, Entry], total: int, more: int) -> str:
    sizes: dict[str, int] = {}
    for name, entry in entries.items():
        top = name.split("/")[0]
        sizes[top] = sizes.get(top, 0) + (entry[0] if len(entry) == 3 else 0)
    by_size = sorted(((name, size) for name, size in sizes.items() if size), key=lambda item: -item[1])
    largest = ", ".join(f"{name} ({human_bytes(size)})" for name, size in by_size[:3]) or "none"
    return (
        f"{root} is too large to be sent without asking: {len(entries):,} files and {human_bytes(total)} so far, "
        f"{more:,} more files to look at; the largest so far: {largest}. Leave out what the run does not need "
        "(of a project, what .gitignore names is not sent), or send all of it with --yes (in a program: "
        "allow_large=True)."
    )


def human_bytes(count: float) -> str:
    """A size for people: 12 B, 3.4 kB, 5.6 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
