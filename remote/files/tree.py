"""The files of a folder that are to be sent: what git would track, or all but a sensible ignore list."""

import contextlib
import json
import os
import re
import shlex
import stat
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cached_property
from pathlib import Path

from inventories.text import human_bytes
from remote.errors import SyncRefused
from remote.files.git import list_files, repository_of
from remote.shared.trees import folders_of

IGNORED = (
    ".git", ".hg", ".svn", ".venv", "venv", "__pycache__", "*.pyc", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    ".ipynb_checkpoints", ".tox", ".nox", "node_modules", ".DS_Store", "*.egg-info",
)  # fmt: skip
"""Names to leave out without git."""
CREDENTIALS = (
    ".ssh", ".aws", ".oci", ".azure", ".gnupg", ".gpuctl", ".netrc", ".kube", ".docker", ".git-credentials",
    ".pypirc",
)  # fmt: skip
"""Files and folders that are never sent with the folder they are in, whatever git says."""
INCLUDED_WITHOUT = (".git", "__pycache__", "*.pyc")
"""Names left out of a folder that is named to be sent though git ignores it."""
DOTENV = ".env"
SECRETS = (*CREDENTIALS, DOTENV)
_SAMPLES = (".example", ".sample", ".template", ".dist")
"""Ends of the names of files like `.env` that hold no secrets."""
MAX_FILES = 20_000
MAX_BYTES = 500 * 1000 * 1000

PRIVATE = "it may hold credentials. Give a script what it needs with --env NAME"
OUTSIDE = "it is a link that leads out of the folder, or has an absolute path"
PUSH = "Bring what it leads to: gpuctl push --into-project"
DANGLING = "it is a link that leads nowhere on this computer"
UNREADABLE = "this user may not read it"
REPOSITORY = "it is a repository of its own. Make it a submodule, or name it with --include"
SUBMODULE = "it is a submodule that is not checked out. Fetch it: git submodule update --init --recursive"
SPECIAL = "it is no plain file"

MAX_NOTES = 3
"""Notes with the same reason."""
POINTER = b"version https://git-lfs.github.com/spec/"
"""The beginning of a file of Git LFS that stands for the data."""
POINTER_BYTES = range(120, 200)
STAMPS = 1_000_003
"""A prime: equal stamps of two times are a coincidence of one in a million."""

Entry = tuple[int, int, int, int] | tuple[str]
"""Size, modification time in ns, mode and stamp of a file; or the target of a symbolic link.

The stamp is a part of the time at which the disk changed the file last. A change of content changes the stamp, even
where size and modification time stay.
"""


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A folder as it is now."""

    root: Path
    entries: dict[str, Entry]
    """By path relative to `root`, with `/`."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Omitted path → reason and fix: the second half of a sentence."""
    folders: tuple[str, ...] = ()
    """Folders without any file, which are made on the nodes."""
    pointers: tuple[str, ...] = ()
    """Files of Git LFS that stand for data which is not on this computer."""

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(entry[0] for entry in self.entries.values() if len(entry) > 1)

    @property
    def notes(self) -> list[str]:
        """Sentences on files that are not sent, and on pointers that are sent in place of data."""
        names: dict[str, list[str]] = {}
        for name, why in self.skipped.items():
            names.setdefault(why.partition(".")[0], []).append(name)
        notes = [
            f"{name} is not sent: {self.skipped[name]}"
            for alike in names.values()
            for name in alike[:MAX_NOTES]
        ]
        notes += [
            f"{len(alike) - MAX_NOTES:,} more are not sent, like {alike[0]}: {why}"
            for why, alike in names.items()
            if len(alike) > MAX_NOTES
        ]
        if self.pointers:
            more = (
                f" and {len(self.pointers) - 1:,} more are pointers" if self.pointers[1:] else " is a pointer"
            )
            notes.append(
                f"{self.pointers[0]}{more} of Git LFS, sent in place of the data. Get the data: git lfs pull"
            )
        return notes

    def why_skipped(self, name: str) -> str:
        """Return which part of a path is not sent, and why; empty if unknown."""
        around = (skipped for skipped in self.skipped if f"{name}/".startswith(f"{skipped}/"))
        return next((f"{skipped}: {self.skipped[skipped]}" for skipped in around), "")

    @cached_property
    def packed(self) -> bytes:
        """The entries as compressed JSON: made once, however many nodes get them."""
        return zlib.compress(json.dumps(self.entries, separators=(",", ":")).encode(), 1)


def root_of(folder: Path) -> Path:
    """The folder that is sent for work in `folder`: the repository that it is in, else the folder itself.

    A repository that holds the user's home is for their settings: only the folder is sent. Raises SyncRefused
    for a repository that git can't read.
    """
    repository = repository_of(folder)
    return (folder if repository is None or _holds_home(repository) else repository).resolve()


def read_tree(root: Path, *, include: Iterable[Path] = (), allow_large: bool = False) -> Tree:
    """The files of `root` to send, and the files of `include`, files and folders in it, in any case.

    Raises SyncRefused, as soon as it is clear, for more than MAX_FILES files or MAX_BYTES bytes; for the user's
    home folder, however large; for something to include that is not in `root`; and where git can't list its checkout.
    """
    _refuse_home(root)
    root = root.resolve()
    listing = list_files(root)
    skipped = {}
    if listing is None:
        names = _walk(root, IGNORED, SECRETS, allow_large)
    else:
        names = listing.files
        skipped = dict.fromkeys(listing.repositories, REPOSITORY) | dict.fromkeys(listing.missing, SUBMODULE)
    included, named = _included(root, include, allow_large)
    names = [*(name for name in names if name not in included), *included]
    skipped = {
        name: why
        for name, why in skipped.items()
        if not any(file.startswith(f"{name}/") for file in included)
    }
    tree = _tree(root, names, allow_large, SECRETS, named=named, skipped=skipped)
    skipped = {
        name: f"{why}. {instead_of_sending(root / name, root)}" if why == OUTSIDE else why
        for name, why in tree.skipped.items()
    }
    return replace(tree, skipped=skipped, folders=_folders_without_files(tree, IGNORED))


def _included(root: Path, include: Iterable[Path], allow_large: bool) -> tuple[dict[str, None], set[str]]:
    """Return the files to include, and the named ones among them, by path relative to `root`.

    A link on the way to a file is included, too. Raises SyncRefused.
    """
    paths: dict[str, None] = {}
    named: set[str] = set()
    ahead = [Path(os.path.normpath(root / path)) for path in include]
    while ahead:
        path = ahead.pop(0)
        links = [above for above in path.parents if above.is_relative_to(root) and above.is_symlink()]
        paths.update({link.relative_to(root).as_posix(): None for link in links})
        absolute = without_links_above(path)
        if not os.path.lexists(absolute):
            raise SyncRefused(f"--include {path}: there is no such file or folder.")
        if not (absolute.is_relative_to(root) and absolute.resolve().is_relative_to(root)):
            raise SyncRefused(
                f"--include {path} leads out of {root}, the folder that is sent. {instead_of_sending(path, root)}"
            )
        name = absolute.relative_to(root).as_posix()
        if absolute.is_symlink():
            paths[name] = None
            ahead.append(absolute.resolve())
        elif absolute.is_dir():
            within = _walk(absolute, INCLUDED_WITHOUT, SECRETS, allow_large)
            paths.update(dict.fromkeys(within if name == "." else (f"{name}/{inner}" for inner in within)))
        else:
            paths[name] = None
            named.add(name)
    return paths, named


def instead_of_sending(path: Path, root: Path) -> str:
    """Return the sentence on how a node gets a path that leads out of the folder that is sent."""
    if path.is_relative_to(root):
        return f"{PUSH} {shlex.quote(os.path.relpath(path))}"
    return "Copy what the script needs into it, or send a larger folder with --root DIR."


def without_links_above(path: Path) -> Path:
    """A path without `..` and without links on the way to it; it may be a link itself."""
    path = Path(os.path.normpath(path))
    return path.parent.resolve() / path.name


def read_everything(root: Path, *, allow_large: bool = False) -> Tree:
    """Read all files of `root`, ignored by git or not; a file makes a tree of one. Raises SyncRefused."""
    if not root.is_dir():
        return _tree(root.parent, [root.name], allow_large=True, secret=())
    _refuse_home(root)
    tree = _tree(root, _walk(root, (), CREDENTIALS, allow_large), allow_large)
    return replace(tree, folders=_folders_without_files(tree, ()))


def _holds_home(folder: Path) -> bool:
    return _home().is_relative_to(folder.resolve())


def _home() -> Path:
    return Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 - never raises


def _refuse_home(root: Path) -> None:
    folder = root.resolve()
    if _holds_home(folder):
        clause = "is your home folder" if folder == _home() else "holds your home folder"
        raise SyncRefused(
            f"{folder} {clause}, with keys and credentials; run the command in the folder of your project, or name "
            "a folder within it."
        )


def tree_of(root: Path, pattern: str) -> Tree:
    """The files of `root` that match a glob pattern, whatever git says: for folders of our own."""
    names = [path.relative_to(root).as_posix() for path in sorted(root.glob(pattern)) if path.is_file()]
    return _tree(root, names, allow_large=True)


def _tree(
    root: Path,
    names: Sequence[str],
    allow_large: bool,
    secret: tuple[str, ...] = CREDENTIALS,
    *,
    named: Collection[str] = (),
    skipped: Mapping[str, str] = {},
) -> Tree:
    # Strings and one lstat a file: a project may have ten thousand.
    entries: dict[str, Entry] = {}
    pointers: list[str] = []
    skipped = dict(skipped)
    total = 0
    links = _Links(root)
    for name in sorted(names):
        kept_back = up_to_secret(name, CREDENTIALS if name in named else secret)
        if kept_back:
            if kept_back not in skipped and os.path.lexists(root / kept_back):
                skipped[kept_back] = PRIVATE
            continue
        if links.lead_to(name):
            continue  # tracked by git in a folder, in whose place a link is now
        try:
            status = os.lstat(f"{root}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            continue  # tracked by git, deleted here
        if stat.S_ISREG(status.st_mode):
            if not os.access(f"{root}/{name}", os.R_OK):
                skipped[name] = UNREADABLE
                continue
            total += status.st_size
            stamp = status.st_ctime_ns % STAMPS
            entries[name] = (status.st_size, status.st_mtime_ns, status.st_mode & 0o777, stamp)
            if status.st_size in POINTER_BYTES and _is_pointer(f"{root}/{name}"):
                pointers.append(name)
        elif not stat.S_ISLNK(status.st_mode):
            skipped[name] = SPECIAL
        elif target := _target_inside(root, name):
            entries[name] = (target,)
        else:
            skipped[name] = OUTSIDE if (root / name).exists() else DANGLING
        if not allow_large and (total > MAX_BYTES or len(entries) > MAX_FILES):
            raise SyncRefused(_too_large(root, entries, total, more=len(names) - len(entries)))
    return Tree(root=root, entries=entries, skipped=dict(sorted(skipped.items())), pointers=tuple(pointers))


def _is_pointer(path: str) -> bool:
    with open(path, "rb") as file:  # noqa: PTH123 - a Path costs more than the call
        return file.read(len(POINTER)) == POINTER


def _folders_without_files(tree: Tree, ignored: tuple[str, ...]) -> tuple[str, ...]:
    """Return folders that hold no file, however deep, and all folders in them."""
    leave_out = _matcher((*ignored, *SECRETS))
    sent = {"", *folders_of(tree.entries)}
    empty: list[str] = []
    for folder in sent:
        with contextlib.suppress(OSError), os.scandir(f"{tree.root}/{folder}") as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if path in sent or path in tree.skipped or leave_out(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    empty += _without_files(str(tree.root), path)
    return tuple(sorted(empty))


def _without_files(root: str, path: str) -> list[str]:
    """Return a folder and all in it; nothing where one of them holds a file or a link, or may not be read."""
    folders = []
    try:
        for folder, names, files in os.walk(f"{root}/{path}", onerror=_raise):
            if files or any(os.path.islink(f"{folder}/{name}") for name in names):  # noqa: PTH114
                return []
            folders.append(folder[len(root) :].lstrip("/"))
    except OSError:
        return []
    return folders


def _raise(error: OSError) -> None:
    raise error


class _Links:
    """The links among a tree's folders, each read once."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._known: dict[str, bool] = {"": False}

    def lead_to(self, name: str) -> bool:
        """Return whether a folder above the path is a link."""
        folder = name.rpartition("/")[0]
        if folder not in self._known:
            self._known[folder] = self.lead_to(folder) or os.path.islink(f"{self._root}/{folder}")  # noqa: PTH114
        return self._known[folder]


def _target_inside(root: Path, name: str) -> str:
    """Return the target of a link; empty for a target outside the root, or an absolute one."""
    path = root / name
    target = path.readlink()
    inside = (path.parent / target).resolve().is_relative_to(root.resolve())
    return str(target) if inside and not target.is_absolute() else ""


def up_to_secret(name: str, secret: tuple[str, ...] = SECRETS) -> str:
    """Return the path up to its first component that is secret; empty: no component is."""
    parts = name.split("/")
    if set(parts).isdisjoint(secret) and f"/{DOTENV}." not in f"/{name}":
        return ""
    for depth, part in enumerate(parts, start=1):
        dotenv = DOTENV in secret and part.startswith(f"{DOTENV}.") and not part.endswith(_SAMPLES)
        if part in secret or dotenv:
            return "/".join(parts[:depth])
    return ""


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], re.Match[str] | None]:
    """Return a function that matches a name against the patterns."""
    return re.compile("|".join(map(translate, patterns)) or r"(?!)").match


def _walk(root: Path, ignored: tuple[str, ...], secret: tuple[str, ...], allow_large: bool) -> list[str]:
    """Return all files, and secret folders, by path relative to `root`."""
    leave_out = _matcher(ignored)
    paths: list[str] = []
    top = str(root)
    for folder, folders, names in os.walk(top):
        inner = sorted(name for name in folders if not leave_out(name))
        folders[:] = [name for name in inner if name not in secret]
        alone = [name for name in inner if name in secret or os.path.islink(f"{folder}/{name}")]  # noqa: PTH114
        within = folder[len(top) :].strip("/")
        prefix = f"{within}/" if within else ""
        paths += [prefix + name for name in (*names, *alone) if not leave_out(name)]
        if not allow_large and len(paths) > 4 * MAX_FILES:
            raise SyncRefused(
                f"{root} holds more than {len(paths):,} files, more than the {MAX_FILES:,} that are sent without "
                "asking. Run the command in the folder of your project, or send all of it with --yes "
                "(in a program: allow_large=True)."
            )
    return paths


def _too_large(root: Path, entries: dict[str, Entry], total: int, more: int) -> str:
    sizes: dict[str, int] = {}
    for name, entry in entries.items():
        top = name.split("/")[0]
        sizes[top] = sizes.get(top, 0) + (entry[0] if len(entry) > 1 else 0)
    by_size = sorted(((name, size) for name, size in sizes.items() if size), key=lambda item: -item[1])
    largest = ", ".join(f"{name} ({human_bytes(size)})" for name, size in by_size[:3]) or "none"
    return (
        f"{root} is too large to be sent without asking: {len(entries):,} files and {human_bytes(total)} so far, "
        f"{more:,} more files to look at; the largest so far: {largest}. Leave out what the run does not need "
        "(of a project, what .gitignore names is not sent), send a smaller folder (of a project: --root DIR), or all "
        "of it with --yes (in a program: allow_large=True)."
    )
