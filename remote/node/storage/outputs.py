"""What a run wrote into the project's folder: listed when its ranks have ended, and sent as far as it is asked for.

So are folders that the script makes in the run's own folder, and those of the home folder that the launch names: Ray
keeps checkpoints there. Their paths begin with `GPUCTL_RUN_DIR/` and `HOME/`.

A file counts that the disk says was changed since the run began, and that is not as the sync brought it. Both times
are of the same disk, so that no clock matters; a time that a script sets itself does not count. Links are not
followed. What is listed is bounded in names and in time, and says so.
"""

import contextlib
import json
import os
import stat
import time
from collections import deque
from pathlib import Path
from threading import Event, Thread
from typing import Any, BinaryIO, Deque, Dict, Iterator, List, Optional, Sequence, Tuple

from remote.node.storage.pushed import brought
from remote.node.storage.sending import send_files
from remote.shared import frames
from remote.shared.checkpoint_sets import sets_in
from remote.shared.constants import (
    ARTIFACTS,
    BESIDE_PROJECT,
    CHECKPOINTS,
    CODE_RECORD,
    HANGS,
    HOME_OUTPUTS,
    LOGS,
    METRICS,
    OUTPUTS,
    RANKS,
    RUN_DIR_VARIABLE,
    USAGE,
)
from remote.shared.files import read_json, write_json
from remote.shared.trees import device_of, matches, mount_points

LISTING = "outputs.json"
MAX_LOOKED_AT = 1000 * 1000
"""Entries of folders."""
LOOK_S = 5.0
"""How long is looked: the run's end is told after it."""
LATE_S = 2 * LOOK_S
"""How long is waited for it: a call into a disk that hangs does not return."""
LOOK_AT_ONCE = 256
"""Entries between two looks at the time."""
MAX_LISTED = 10 * 1000
MAX_NAME_BYTES = 2 * 1000 * 1000
"""Of all names that are listed."""
CACHES = (
    ".git", ".hg", ".svn", ".venv", "venv", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    ".ipynb_checkpoints", ".tox", ".nox", "node_modules", ".DS_Store", ".lock",
)  # fmt: skip
"""Names of files and folders that nobody misses."""
CACHE_ENDINGS = (".pyc", ".lock", ".egg-info", ".swp", "~")
CACHE_BEGINNINGS = (".gpuctl-", ".nfs", ".~")
RUN_FOLDERS = (ARTIFACTS, CHECKPOINTS, HANGS, LOGS, METRICS, RANKS, USAGE, "torchrun")
"""Folders of a run's folder that are brought in other ways, or are gpuctl's own."""
ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
"""A folder that holds one of them is an environment of Python or conda."""

# Path relative to the project's folder, bytes, and when the disk says that it was changed, ns.
Output = Tuple[str, int, int]


class Found:
    """What was found: how much in all, and the files that are listed."""

    def __init__(self) -> None:
        self.listed: List[Output] = []
        self.files = 0
        self.bytes = 0
        self.whole = True
        """False: there was too much to look at all of it."""
        self._name_bytes = 0

    def add(self, path: str, status: "os.stat_result") -> None:
        """One more file."""
        self.files += 1
        self.bytes += status.st_size
        self._name_bytes += len(os.fsencode(path))
        if len(self.listed) < MAX_LISTED and self._name_bytes <= MAX_NAME_BYTES:
            self.listed.append((path, status.st_size, status.st_ctime_ns))


def begin(run_dir: Path, code: Dict[str, Any]) -> None:
    """Keep where the project lies (`root`), and in which `folder` of it the ranks run. The record's time counts.

    `home_folders`: those of the home folder in which files of the run count, too.
    """
    write_json(run_dir / CODE_RECORD, code)


def keep(run_dir: Path) -> Dict[str, Any]:
    """List what the run has written, and keep the list: a later run may change the files. Empty where none is due.

    A disk that hangs is not waited for, and one that fails is no error: the list says that it is not whole.
    """
    code = read_json(run_dir / CODE_RECORD)
    if not code:
        return {}
    root, found, done = code["root"], Found(), Event()
    began_ns = os.lstat(str(run_dir / CODE_RECORD)).st_ctime_ns

    def work() -> None:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            look(root, brought(root), began_ns, found)
            for prefix, folder in _beside(run_dir, root, code.get("home_folders", [])):
                look(folder, {}, began_ns, found, prefix=prefix)
            done.set()

    looking = Thread(target=work, daemon=True)
    looking.start()
    looking.join(LATE_S)
    listing = {
        "root": root,
        "folder": code["folder"],
        "files": found.files,
        "bytes": found.bytes,
        "whole": found.whole and done.is_set(),
        "listed": sorted(found.listed[:]),
    }
    with contextlib.suppress(OSError):  # a full disk: it is listed again when it is asked for
        write_json(run_dir / LISTING, listing)
    return listing


def look(
    root: str,
    sent: Dict[str, Any],
    began_ns: int,
    found: Optional[Found] = None,
    *,
    look_s: float = LOOK_S,
    prefix: str = "",
) -> Found:
    """Find what is new or changed since `began_ns`, near the top first. `sent`: the sync's manifest.

    `found`: where it is put, for who can't wait for the end. `prefix`: stands before the paths that are found.
    """
    found = found or Found()
    pending: Deque[str] = deque([""])
    top, limit, looked_at = os.path.realpath(root), time.monotonic() + look_s, 0
    device, mounts = device_of(top), mount_points()
    while pending:
        inner = pending.popleft()
        if time.monotonic() > limit:
            found.whole = False
            return found
        try:
            with os.scandir(os.path.join(top, inner)) as entries:
                for entry in entries:
                    looked_at += 1
                    late = looked_at % LOOK_AT_ONCE == 0 and time.monotonic() > limit
                    if late or looked_at > MAX_LOOKED_AT:
                        found.whole = False
                        return found
                    if is_cache(entry.name):
                        continue
                    path = "{}/{}".format(inner, entry.name) if inner else entry.name
                    status = _lstat(entry)
                    if status is None:
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        inside = status.st_dev == device and entry.path not in mounts
                        if inside and not is_environment(entry.path):
                            pending.append(path)
                    elif _is_output(status, sent.get(path), began_ns):
                        found.add(prefix + path, status)
        except OSError:
            continue  # removed meanwhile, or nobody may look into it
    return found


def _beside(run_dir: Path, root: str, home_folders: Sequence[str]) -> Iterator[Tuple[str, str]]:
    """Yield the folders outside the project in which files of a run count, after what their paths begin with."""
    if not os.path.lexists(os.path.join(root, HOME_OUTPUTS)):
        for name in home_folders:
            yield "{}/{}/".format(HOME_OUTPUTS, name), os.path.join(os.path.expanduser("~"), name)
    if not os.path.lexists(os.path.join(root, RUN_DIR_VARIABLE)):
        for path in sorted(run_dir.iterdir()):
            own = path.name in RUN_FOLDERS or path.name.startswith(".")
            if path.is_dir() and not own and not path.is_symlink():
                yield "{}/{}/".format(RUN_DIR_VARIABLE, path.name), str(path)


def _place(run_dir: Path, root: str, path: str) -> Tuple[str, str, str]:
    """Return the folder that a listed path is of, the path in it, and the folder's own place among the outputs."""
    first, _, inner = path.partition("/")
    if first not in BESIDE_PROJECT or not inner or os.path.lexists(os.path.join(root, first)):
        return root, path, OUTPUTS
    folder = os.path.expanduser("~") if first == HOME_OUTPUTS else str(run_dir)
    return folder, inner, "{}/{}".format(OUTPUTS, first)


def is_cache(name: str) -> bool:
    """Whether nobody misses what is named so."""
    return name in CACHES or name.endswith(CACHE_ENDINGS) or name.startswith(CACHE_BEGINNINGS)


def is_environment(folder: str) -> bool:
    """Whether a folder is an environment of Python or conda."""
    return any(os.path.lexists(os.path.join(folder, mark)) for mark in ENVIRONMENT_MARKS)


def _lstat(entry: "os.DirEntry[str]") -> "Optional[os.stat_result]":
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None  # removed meanwhile


def _is_output(status: "os.stat_result", sent: Optional[Sequence[Any]], began_ns: int) -> bool:
    changed = stat.S_ISREG(status.st_mode) and status.st_ctime_ns >= began_ns
    return changed and not as_sent(status, sent)


def as_sent(status: "os.stat_result", sent: Optional[Sequence[Any]], path: str = "") -> bool:
    """Whether a file is as its entry in the sync's manifest has it; of a link, at `path`, whether it leads there."""
    if sent is None:
        return False
    if stat.S_ISLNK(status.st_mode):
        return bool(path) and [os.readlink(path)] == list(sent)
    return stat.S_ISREG(status.st_mode) and list(sent[:2]) == [status.st_size, status.st_mtime_ns]


def send(run_dir: Path, wanted: Dict[str, Any], output: BinaryIO) -> None:
    """Send the list of what a run has written, then the files that are `wanted`: see `chosen`."""
    listing = read_json(run_dir / LISTING) or keep(run_dir)
    if not listing:
        return
    others = _listings_beside(run_dir, listing["root"])
    header = {
        "t": frames.OUTPUTS,
        "folder": _from_home(listing["root"]),
        "files": listing["files"],
        "bytes": listing["bytes"],
        "whole": listing["whole"],
        "shared_with": sorted(others),
    }
    frames.write(output, header, json.dumps(listing["listed"]).encode())
    # On a disk that nodes share, the first by name sends what several of them list.
    elsewhere = {
        tuple(entry) for name, other in others.items() if name < run_dir.name for entry in other["listed"]
    }
    own = {entry[0]: tuple(entry) for entry in listing["listed"] if tuple(entry) not in elsewhere}
    for path in chosen(list(own.values()), listing["folder"], wanted):
        folder, inner, prefix = _place(run_dir, listing["root"], path)
        if _is_as_listed(os.path.join(folder, inner), own[path]):
            send_files(Path(folder), [inner], prefix, output)
        else:
            header = {
                "path": "{}/{}".format(OUTPUTS, path),
                "reason": "it was changed after the run had ended",
            }
            frames.write(output, dict(header, t=frames.SKIPPED))


def _listings_beside(run_dir: Path, root: str) -> Dict[str, Dict[str, Any]]:
    """What other nodes of the run listed of the same folder, by name: their homes are this one."""
    found = {}
    for path in sorted(run_dir.parent.glob("*/" + LISTING)):
        listing = read_json(path) if path.parent != run_dir else {}
        if listing.get("root") == root:
            found[path.parent.name] = listing
    return found


def _from_home(path: str) -> str:
    """A path as seen from the home folder, where it is in it."""
    home = os.path.expanduser("~").rstrip("/") + "/"
    return path[len(home) :] if path.startswith(home) else path


def _is_as_listed(place: str, entry: Output) -> bool:
    try:
        status = os.lstat(place)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and (status.st_size, status.st_ctime_ns) == entry[1:]


def chosen(listed: Sequence[Output], folder: str, wanted: Dict[str, Any]) -> List[str]:
    """Paths of the files to send: those that a pattern names, in any size, and of the others the small ones.

    `wanted`: patterns, and max_bytes of all others together, the smallest first; a checkpoint in parts comes whole or
    not at all. `folder`: see `matches`.
    """
    named = [path for path, _, _ in listed if any(matches(path, one, folder) for one in wanted["patterns"])]
    sizes = {path: size for path, size, _ in listed if path not in set(named)}
    sets = list(sets_in(sizes).values())
    alone = set(sizes).difference(*sets)
    small, total = [], 0
    for size, paths in sorted(
        (sum(map(sizes.__getitem__, paths)), paths) for paths in [*sets, *([path] for path in alone)]
    ):
        total += size
        if total > wanted["max_bytes"]:
            break
        small += paths
    return sorted(named + small)
