"""Leftovers of gpuctl on a node's disk: environments, wheels, uv, code, runs; size, age, and why they have to stay.

Only folders of ours within `~/.gpuctl-node` count. Links are never followed: neither a link in the place of one of
our folders, nor a link that a run has made.
"""

import contextlib
import fcntl
import os
import stat
import time
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from remote.node import listening, process, run_state
from remote.node.home_folder import FOLDERS, NODE_HOME, folders_named_in
from remote.node.storage.changed_files import as_sent
from remote.node.storage.outputs import LISTING
from remote.node.storage.pushed import MANIFEST, sent
from remote.shared import constants, frames, trees
from remote.shared.checkpoint_files import files_in, parts_in
from remote.shared.files import read_json, write_json

REMOVED = ".removed-"
"""The start of the name of a folder whose removal has begun."""
HERE_TOO = (constants.LOGS, constants.METRICS, constants.RANKS, constants.USAGE)
"""Folders of a run that the computer which started it downloads as a whole."""
OWN_FILES = (
    "torchrun", "runner.json", "exit.json", "stop", "reason.json", constants.PLACE, ".reserve", ".starting",
    constants.RUN_RECORD, constants.CODE_RECORD, LISTING, constants.HANGS, constants.ENDING, constants.STOP_GRACE,
)  # fmt: skip
"""Files of the launcher and of our own part next to them, useless after the run."""
MOST_FILES = 500
"""The maximum number of a run's files in the list."""
ELSEWHERE_S = 24 * 3600.0
"""The time after its last sign of life in which a run of another machine with this home counts as active."""
CUT_OFF_S = 24 * 3600.0
"""The time after its last change in which a run that has only placed checkpoints counts as one to be launched."""


class Leftover(NamedTuple):
    """A part of gpuctl's folder that can be removed on its own."""

    kind: str
    name: str
    path: Path
    keep: str
    """Why it has to stay now. Empty: it may be removed."""


def command_leftovers(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `leftovers`: an `item` for each, then `end` with the node's `home` and uv's cache.

    Request: `built_in`, ids of runs whose checkpoints are the built-in job's; `deadline_s`, the limit for measuring.
    """
    sizes = Sizes(float(request["deadline_s"]))
    for leftover in leftovers():
        kind, name, path, keep = leftover
        item = {"t": frames.ITEM, "kind": kind, "name": name, "keep": keep, "used": used_at(kind, path)}
        if kind in ("code", "written"):
            files = files_of_code(path, sent_ones=kind == "code")
            if not files:
                continue
            item.update(sizes.of(files))
        else:
            item.update(sizes.of(path / inner for inner in trees.walk(path)))
        if kind == "run":
            parts = parts_of(path)
            item["checkpoints"] = any(has_checkpoints(part, name in request["built_in"]) for part in parts)
            item["files"] = files_of_run(parts)
        frames.write(output, item)
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = Path(os.environ.get("UV_CACHE_DIR") or os.path.join(caches, "uv"))
    end = {"t": frames.END, "home": home_id()}
    if is_folder(cache):  # everybody's on this node, and never removed
        size = sizes.of(cache / inner for inner in trees.walk(cache))
        end.update(uv_cache=str(cache), uv_cache_bytes=size["bytes"])
    frames.write(output, end)


def leftovers() -> Iterator[Leftover]:
    """Yield the leftovers; a folder of code once for the files that were sent, once for the files that runs wrote."""
    used, program = names_in_use(), Path(__file__).resolve().parents[3]
    environments = NODE_HOME / constants.ENVIRONMENTS
    places = [("removed", path) for path in folders_in(NODE_HOME) if path.name.startswith(REMOVED)]
    places += [("wheels", path) for path in folders_in(NODE_HOME) if path.name == constants.WHEELS]
    for kind, folder in FOLDERS.items():
        paths = [path for path in folders_in(NODE_HOME / folder) if path != program]
        places += [("removed" if kind == "run" and _launch_cut_off(path) else kind, path) for path in paths]
    for kind, path in places:
        keep = ""
        if (path.parent.name, path.name) in used:
            keep = "in use"
        # Asked for each item when its turn has come: a build can begin while others are removed.
        elif kind == "environment" and is_being_built(path):
            keep = "it is being built"
        elif kind == "wheels" and any(map(is_being_built, folders_in(environments))):
            keep = "an environment is being built from them"
        elif kind == "run" and not all(is_over(part) for part in parts_of(path)):
            keep = "not known to be over"
        yield Leftover(kind, path.name, path, keep)
        if kind == "code":
            yield Leftover("written", path.name, path, keep)


def home_id() -> Optional[str]:
    """Return an id that all nodes with this home have; `None` if it is not known, as on a full disk."""
    path = NODE_HOME / "home.json"
    if NODE_HOME.is_dir() and not read_json(path):
        with contextlib.suppress(OSError):
            write_json(path, {"id": os.urandom(8).hex()})
    identity = read_json(path).get("id")
    return identity if isinstance(identity, str) else None


def folders_in(folder: Path) -> List[Path]:
    """Return the folders in a folder of ours; empty for a link, or a missing one. Links are left out."""
    if not is_folder(folder):
        return []
    with os.scandir(str(folder)) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))


def is_folder(path: Path) -> bool:
    """Return whether the path is a folder, and no link to one."""
    try:
        return stat.S_ISDIR(os.lstat(str(path)).st_mode)
    except OSError:
        return False


class Sizes:
    """Sizes on the disk, taken until a deadline. A file with several names counts once."""

    def __init__(self, deadline_s: float) -> None:
        self._limit = time.monotonic() + deadline_s
        self._counted: Set[Tuple[int, int]] = set()

    def of(self, files: Iterable[Path]) -> Dict[str, Any]:
        """Return the `bytes` of files, the bytes `shared` under other names, and `whole`: the sum is complete."""
        total, shared, whole = 0, 0, True
        for file in files:
            if time.monotonic() > self._limit:
                whole = False
                break
            try:
                status = os.lstat(str(file))
            except OSError:
                continue  # removed since it was listed
            size, key = status.st_blocks * 512, (status.st_dev, status.st_ino)
            if status.st_nlink > 1 and key not in self._counted:
                self._counted.add(key)
                shared += size
            elif status.st_nlink > 1:
                size = 0
            total += size
        return {"bytes": total, "shared": shared, "whole": whole}


def used_at(kind: str, path: Path) -> float:
    """Return when an item was last used or changed, Unix time; 0 for an environment that was never finished."""
    if kind == "environment":
        built = modified(path / "ready.json")
        return max(built, modified(path / "used")) if built else 0.0
    if kind in ("code", "written"):
        return modified(path.with_name(path.name + MANIFEST)) or modified(path)
    return modified(path)


def modified(path: Path) -> float:
    """Return when a file was last modified, Unix time; 0 if it does not exist."""
    try:
        return os.lstat(str(path)).st_mtime
    except OSError:
        return 0.0


def has_checkpoints(part: Path, built_in: bool) -> bool:
    """Return whether a run has, or may have, checkpoints on a node."""
    folder = part / constants.CHECKPOINTS
    try:
        # The document of a checkpoint's parts may be on another node.
        return bool(files_in(folder, built_in) or (built_in and parts_in(folder)))
    except (OSError, RecursionError):
        return True


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


def files_of_code(path: Path, *, sent_ones: bool) -> List[Path]:
    """Return the files and links of a project's folder that are as they were sent, or all others."""
    manifest, files = sent(str(path)), []
    for name in trees.walk(path):
        try:
            was_sent = as_sent(os.lstat(str(path / name)), manifest.get(name), str(path / name))
        except OSError:
            was_sent = False
        if was_sent == sent_ones:
            files.append(path / name)
    return files


def parts_of(run: Path) -> List[Path]:
    """Return the folders of a run's nodes that have this home."""
    waiting = constants.PLACED_CHECKPOINTS.format("")
    return [part for part in folders_in(run) if not part.name.endswith(waiting)]


def _launch_cut_off(run: Path) -> bool:
    """Return whether a run, a day after the last of its checkpoints was placed, has no folder of a node."""
    if parts_of(run):
        return False
    # A file that arrives changes itself or its folder, and not the run's.
    paths = chain(map(Path, trees.folders_below(run)[0]), (run / inner for inner in trees.walk(run)))
    return all(time.time() - modified(path) > CUT_OFF_S for path in paths)


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


def names_in_use(proc: Path = listening.PROC) -> Set[Tuple[str, str]]:
    """Return folder and name of each item in use.

    A process of this user runs from it, works in it, has it mapped, or has it in a variable; or a run of another
    machine with this home uses it: a run that wrote lately, and has no end; or an entry of a queue is to use it.
    """
    names: Set[Tuple[str, str]] = set()
    for pid in listening.pids(proc):
        if pid != os.getpid():
            names |= folders_named_in(_texts_of(proc / str(pid)))
    for path in (NODE_HOME / constants.RUNS).glob("*/*/runner.json"):
        part, run = path.parent, read_json(path)
        if not run or run["boot_id"] == process.boot_id() or (part / "exit.json").exists():
            continue
        wrote = max([modified(file) for file in (part / constants.USAGE).glob("*")] + [modified(path)])
        if time.time() - wrote < ELSEWHERE_S:
            names |= {(folder, name) for folder, name in run.get("uses", [])}
    queue = NODE_HOME / constants.QUEUE
    for path in [*queue.glob("*/*.json"), *queue.glob("*/.following/*.json")]:
        names |= {(folder, name) for folder, name in read_json(path).get("uses", [])}
    return names


def _texts_of(process_folder: Path) -> bytes:
    """Return the texts in which a process names files; empty for another user's."""
    texts = []
    for name in ("cmdline", "environ", "maps"):
        try:
            texts.append((process_folder / name).read_bytes())
        except OSError:
            continue
    with contextlib.suppress(OSError):  # it is gone, or another user's
        texts.append(os.fsencode(os.readlink(str(process_folder / "cwd"))))
    return b"\n".join(texts)
