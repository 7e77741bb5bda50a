"""Leftovers of gpuctl on a node's disk: environments, wheels, uv, code, runs; size, age, and whether in use.

Only what lies in folders of ours within `~/.gpuctl-node` is looked at. Links are never followed: neither the target
of a link in the place of one of our folders leads to, nor anything that runs have linked to.
"""

import contextlib
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Set, Tuple

from remote.node import listening, process, run_state
from remote.node.home_folder import FOLDERS, NODE_HOME, folders_named_in
from remote.node.storage.changed_files import as_sent
from remote.node.storage.outputs import LISTING
from remote.node.storage.pushed import MANIFEST, sent
from remote.shared import constants, frames, trees
from remote.shared.checkpoint_files import files_in, parts_in
from remote.shared.files import read_json, write_json

REMOVED = ".removed-"
"""How names of folders begin that were about to be removed."""
HERE_TOO = (constants.LOGS, constants.METRICS, constants.RANKS, constants.USAGE)
"""Folders of a run that are brought to the computer which started it, all of them."""
OWN_FILES = (
    "torchrun", "runner.json", "exit.json", "stop", "reason.json", constants.PLACE, ".reserve",
    constants.CODE_RECORD, LISTING, constants.HANGS, constants.ENDING, constants.STOP_GRACE,
)  # fmt: skip
"""Files of the launcher and of our own part next to them, useless after the run."""
MOST_FILES = 500
"""The maximum number of a run's files in the list."""
ELSEWHERE_S = 24 * 3600.0
"""The time after its last sign of life in which a run of another machine with this home counts as active."""
UV_CACHES = ("UV_CACHE_DIR", "XDG_CACHE_HOME")

Item = Dict[str, Any]


def command_leftovers(request: Dict[str, Any], output: BinaryIO) -> None:
    """`leftovers`: a frame an `item`, then `end` with the node's `home`, its free bytes and the size of uv's cache.

    Request: `built_in`, ids of runs whose checkpoints are the built-in job's; `deadline_s`, how long sizes may take.
    """
    survey = Survey(set(request["built_in"]), float(request["deadline_s"]))
    for item in survey.items():
        frames.write(output, dict(item, t=frames.ITEM))
    disk = os.statvfs(str(NODE_HOME if NODE_HOME.is_dir() else NODE_HOME.parent))
    end = {"home": home_id(), "free_bytes": disk.f_bavail * disk.f_frsize, "uv_cache": survey.uv_cache()}
    frames.write(output, dict(end, t=frames.END))


def home_id() -> Optional[str]:
    """Random, the same on all nodes that share this home; `None` where it is not known, as on a full disk."""
    path = NODE_HOME / "home.json"
    if NODE_HOME.is_dir() and not read_json(path):
        with contextlib.suppress(OSError):
            write_json(path, {"id": os.urandom(8).hex()})
    identity = read_json(path).get("id")
    return identity if isinstance(identity, str) else None


def folders_in(folder: Path) -> List[str]:
    """Return the names of the folders in a folder of ours; empty for a link, or a missing one. Links are left out."""
    if not is_folder(folder):
        return []
    with os.scandir(str(folder)) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def is_folder(path: Path) -> bool:
    """Return whether the path is a folder, and no link to one."""
    try:
        return stat.S_ISDIR(os.lstat(str(path)).st_mode)
    except OSError:
        return False


class Sizes:
    """Sizes on the disk, taken until a deadline. What has several names is counted once."""

    def __init__(self, deadline_s: float) -> None:
        self._limit = time.monotonic() + deadline_s
        self._counted: Set[Tuple[int, int]] = set()

    def of(self, path: Path) -> Item:
        """Return the `bytes` of a path, the bytes `shared` under other names, and `whole`: the sum is complete."""
        total, shared, whole = 0, 0, True
        pending = [str(path)]
        device: Optional[int] = None
        while pending:
            if time.monotonic() > self._limit:
                return {"bytes": total, "shared": shared, "whole": False}
            folder = pending.pop()
            try:
                status = os.lstat(folder)
                device = status.st_dev if device is None else device
                if status.st_dev != device:
                    continue  # another disk, which somebody has put there
                if stat.S_ISDIR(status.st_mode):
                    pending += [os.path.join(folder, name) for name in os.listdir(folder)]
            except FileNotFoundError:
                continue
            except OSError:
                whole = False
                continue
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                key = (status.st_dev, status.st_ino)
                if key in self._counted:
                    continue
                self._counted.add(key)
                shared += status.st_blocks * 512
            total += status.st_blocks * 512
        return {"bytes": total, "shared": shared, "whole": whole}


class Survey:
    """A survey of all leftovers."""

    def __init__(self, built_in: Set[str], deadline_s: float) -> None:
        self._built_in = built_in
        self._sizes = Sizes(deadline_s)
        self._used = names_in_use()

    def items(self) -> Iterator[Item]:
        """Yield the items, each with a few facts."""
        for name in folders_in(NODE_HOME):
            if name.startswith(REMOVED):
                yield self._item("removed", name, NODE_HOME / name)
        for kind, folder in FOLDERS.items():
            for name in folders_in(NODE_HOME / folder):
                path = NODE_HOME / folder / name
                if kind == "code":
                    yield from self._code(name, path)
                elif kind == "run":
                    yield dict(self._item(kind, name, path), **self._run(name, path))
                elif kind == "environment":
                    yield dict(self._item(kind, name, path), used=environment_used(path))
                elif kind != "program" or path != own_folder():
                    yield self._item(kind, name, path)
        if is_folder(NODE_HOME / constants.WHEELS):
            yield self._item("wheels", "wheels", NODE_HOME / constants.WHEELS)

    def _item(self, kind: str, name: str, path: Path) -> Item:
        in_use = (FOLDERS.get(kind), name) in self._used
        return dict(self._sizes.of(path), kind=kind, name=name, used=modified(path), in_use=in_use)

    def _code(self, name: str, path: Path) -> Iterator[Item]:
        """Return the items of a project's folder: sent files, and files that runs have written there."""
        manifest = path.with_name(name + MANIFEST)
        brought: List[Path] = []
        written: List[Path] = []
        for file, was_sent in files_of_code(path):
            (brought if was_sent else written).append(file)
        used = modified(manifest) or modified(path)
        in_use = ("code", name) in self._used
        for kind, files in (("code", brought), ("written", written)):
            sizes = [self._sizes.of(file) for file in files]
            if files or (kind == "code" and constants.ASIDE not in name):
                yield {
                    "kind": kind,
                    "name": name,
                    "used": used,
                    "in_use": in_use,
                    "bytes": sum(size["bytes"] for size in sizes),
                    "shared": sum(size["shared"] for size in sizes),
                    "whole": all(size["whole"] for size in sizes),
                }

    def _run(self, run: str, path: Path) -> Item:
        """Return the item of a run: whether it is `over`, the bytes of its `checkpoints`, its own `files`."""
        parts = parts_of(path)
        sizes = [size for size in (self._checkpoints(run, part) for part in parts) if size is not None]
        return {
            "over": all(is_over(part) for part in parts),
            "checkpoints": sum(sizes) if sizes else None,
            "files": files_of_run(parts),
        }

    def _checkpoints(self, run: str, part: Path) -> Optional[int]:
        """Return the bytes of a run's checkpoints on a node; `None`: no checkpoints."""
        folder, built_in = part / constants.CHECKPOINTS, run in self._built_in
        try:
            # Of parts the document is on another node.
            files = dict(files_in(folder, built_in)) or (parts_in(folder) if built_in else {})
        except (OSError, RecursionError):
            return 0  # there may be some
        return sum(files.values()) if files else None

    def uv_cache(self) -> Optional[Item]:
        """Return `path` and size of the cache of uv, which all users of this node share and gpuctl never removes."""
        chosen, usual = (os.environ.get(name) for name in UV_CACHES)
        path = Path(chosen or os.path.join(usual or os.path.expanduser("~/.cache"), "uv"))
        return dict(self._sizes.of(path), path=str(path)) if is_folder(path) else None


def own_folder() -> Path:
    """The folder from which this is run."""
    return Path(__file__).resolve().parents[3]


def modified(path: Path) -> float:
    """When something was last modified, Unix time; 0 where it is not there."""
    try:
        return os.lstat(str(path)).st_mtime
    except OSError:
        return 0.0


def environment_used(path: Path) -> float:
    """When a run asked for an environment last; 0 where it was never finished."""
    built = modified(path / "ready.json")
    return max(built, modified(path / "used")) if built else 0.0


def is_being_built(path: Path) -> bool:
    """Return whether a process, here or on a node with the same home, holds the lock of a build."""
    try:
        with open(str(path.with_suffix(".lock")), "r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def files_of_code(path: Path) -> Iterator[Tuple[Path, bool]]:
    """Every file and link of a project's folder, and whether it is as it was sent."""
    manifest = sent(str(path))
    for name in trees.walk(path):
        try:
            status = os.lstat(str(path / name))
            yield path / name, as_sent(status, manifest.get(name), str(path / name))
        except OSError:
            yield path / name, False


def parts_of(run: Path) -> List[Path]:
    """The folders of a run's nodes that have this home."""
    waiting = constants.PLACED_CHECKPOINTS.format("")
    return [run / name for name in folders_in(run) if not name.endswith(waiting)]


def is_over(part: Path) -> bool:
    """Return whether a run has ended here. False also if that is not known, as of another machine with this home."""
    if run_state.state(part)["running"]:
        return False
    known = read_json(part / "runner.json")
    return (part / "exit.json").exists() or not known or known["boot_id"] == process.boot_id()


def files_of_run(parts: List[Path]) -> Optional[List[Dict[str, Any]]]:
    """Return node, path and size of a run's files that may not be brought to the computer that started it.

    `None`: too many to list.
    """
    paths = []
    for part in parts:
        for path in trees.walk(part, HERE_TOO + OWN_FILES):
            try:
                size = os.lstat(str(part / path)).st_size
            except OSError:
                continue
            paths.append({"node": part.name, "path": path, "bytes": size})
            if len(paths) > MOST_FILES:
                return None
    return paths


def names_in_use(proc: Path = listening.PROC) -> Set[Tuple[Optional[str], str]]:
    """Return folder and name of each item in use.

    A process of this user runs from it, works in it, has it mapped, or has it in a variable; or a run of another
    machine with this home uses it.
    """
    names: Set[Tuple[Optional[str], str]] = set()
    for pid in listening.pids(proc):
        if pid != os.getpid():
            names |= folders_named_in(_told_of(proc / str(pid)))
    return names | _names_in_use_elsewhere()


def _names_in_use_elsewhere() -> Set[Tuple[Optional[str], str]]:
    """Folder and name of what runs of other machines with this home use: runs that wrote lately, and have no end."""
    names: Set[Tuple[Optional[str], str]] = set()
    for path in (NODE_HOME / constants.RUNS).glob("*/*/runner.json"):
        part, run = path.parent, read_json(path)
        if not run or run["boot_id"] == process.boot_id() or (part / "exit.json").exists():
            continue
        wrote = max([modified(file) for file in (part / constants.USAGE).glob("*")] + [modified(path)])
        if time.time() - wrote < ELSEWHERE_S:
            names |= {(folder, name) for folder, name in run.get("uses", [])}
    return names


def _told_of(process_folder: Path) -> bytes:
    """The texts in which a process names files; empty for another user's."""
    texts = []
    for name in ("cmdline", "environ", "maps"):
        try:
            texts.append((process_folder / name).read_bytes())
        except OSError:
            continue
    with contextlib.suppress(OSError):  # it is gone, or another user's
        texts.append(os.fsencode(os.readlink(str(process_folder / "cwd"))))
    return b"\n".join(texts)
