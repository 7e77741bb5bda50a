"""The files of a folder that are to be sent: what git would track, or all but a sensible ignore list."""

import os
import subprocess
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from remote.errors import SyncRefused

IGNORED = (
    ".git", ".hg", ".svn", ".venv", "venv", "__pycache__", "*.pyc", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    ".ipynb_checkpoints", ".tox", ".nox", "node_modules", ".DS_Store", "*.egg-info",
)  # fmt: skip
"""Names left out where there is no git."""
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
    """Links that lead out of the folder, pipes and the like: not sent."""

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(entry[0] for entry in self.entries.values() if len(entry) == 3)


def read_tree(root: Path, *, allow_large: bool = False) -> Tree:
    """The files of `root` that are to be sent.

    Raises SyncRefused, as soon as it is clear, for more than MAX_FILES files or MAX_BYTES bytes.
    """
    listed = _git_files(root)
    return _tree(root, sorted(listed if listed is not None else _walk(root, allow_large)), allow_large)


def tree_of(root: Path, pattern: str) -> Tree:
    """The files of `root` that match a glob pattern, whatever git says: for folders of our own."""
    names = [path.relative_to(root).as_posix() for path in sorted(root.glob(pattern)) if path.is_file()]
    return _tree(root, names, allow_large=True)


def _tree(root: Path, names: list[str], allow_large: bool) -> Tree:
    entries: dict[str, Entry] = {}
    skipped: list[str] = []
    total = 0
    for name in names:
        path = root / name
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # tracked by git, deleted here
        if path.is_symlink():
            target = path.readlink()
            inside = (path.parent / target).resolve().is_relative_to(root.resolve())
            if inside and not target.is_absolute():
                entries[name] = (str(target),)
            else:
                skipped.append(name)
        elif path.is_file():
            total += status.st_size
            entries[name] = (status.st_size, status.st_mtime_ns, status.st_mode & 0o777)
        elif not path.is_dir():
            skipped.append(name)
        if not allow_large and (total > MAX_BYTES or len(entries) > MAX_FILES):
            raise SyncRefused(_too_large(root, entries, total, more=len(names) - len(entries)))
    return Tree(root=root, entries=entries, skipped=tuple(skipped))


def _git_files(root: Path) -> list[str] | None:
    """Tracked files and untracked ones that are not ignored; None where there is no git."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    try:
        listed = subprocess.run(command, cwd=root, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    if listed.returncode != 0:
        return None
    # A repository within (a submodule, a nested clone) is listed as a folder.
    return [os.fsdecode(name).rstrip("/") for name in listed.stdout.split(b"\0") if name]


def _walk(root: Path, allow_large: bool) -> list[str]:
    found: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not _ignored(name))
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        kept = (name for name in names + links if not _ignored(name))
        found += [(Path(folder) / name).relative_to(root).as_posix() for name in kept]
        if not allow_large and len(found) > 4 * MAX_FILES:
            raise SyncRefused(
                f"{root} holds more than {len(found):,} files, more than the {MAX_FILES:,} that are sent without "
                "asking. Run the command in the folder of your project, or send all of it with --yes."
            )
    return found


def _ignored(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in IGNORED)


def _too_large(root: Path, entries: dict[str, Entry], total: int, more: int) -> str:
    sizes: dict[str, int] = {}
    for name, entry in entries.items():
        top = name.split("/")[0]
        sizes[top] = sizes.get(top, 0) + (entry[0] if len(entry) == 3 else 0)
    largest = ", ".join(
        f"{name} ({human_bytes(size)})" for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:3]
    )
    return (
        f"{root} is too large to be sent without asking: {len(entries):,} files and {human_bytes(total)} so far, "
        f"{more:,} more files to look at; the largest so far: {largest}. Leave out what the run does not need "
        "(.gitignore is honoured), or send all of it with --yes."
    )


def human_bytes(count: float) -> str:
    """A size for people: 12 B, 3.4 kB, 5.6 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
