"""Files of a run in the project's folder: listed after the end of its ranks, and sent on request.

So are folders that the script makes in the run's own folder, and the folders in the home folder that the launch
names: Ray keeps checkpoints there. Their paths begin with `GPUCTL_RUN_DIR/` and `HOME/`.

A file counts that the disk says was changed since the run began, and that is not as the sync brought it. Both times
are of the same disk, so that no clock matters; a time that a script sets itself does not count. Links are not
followed. The list is bounded in names and in time, and says so.
"""

import contextlib
import glob
import json
import os
import stat
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any, BinaryIO, Dict, Iterator, List, Sequence, Tuple

from remote.node.home_folder import NODE_HOME
from remote.node.storage.changed_files import LOOK_S, Changes, Output, find_changes, is_cache, names_in
from remote.node.storage.outside import MAX_LISTED, Outside, from_home, new_entry, written_outside
from remote.node.storage.pushed import brought
from remote.node.storage.sending import send_files
from remote.shared import constants, frames
from remote.shared.checkpoint_sets import sets_in
from remote.shared.files import read_json, write_json
from remote.shared.trees import matches

LISTING = "outputs.json"
LATE_S = 2 * LOOK_S
"""How long is waited for it: a call into a disk that hangs does not return."""
RUN_FOLDERS = (
    constants.ARTIFACTS,
    constants.CHECKPOINTS,
    constants.HANGS,
    constants.LOGS,
    constants.METRICS,
    constants.RANKS,
    constants.USAGE,
    "torchrun",
)
"""Folders of a run's folder that are brought in other ways, or are gpuctl's own."""


def begin(run_dir: Path, code: Dict[str, Any]) -> None:
    """Record the project's place (`root`), and the `folder` in it in which the ranks run. The record's time counts.

    `home_folders`: the folders in the home folder in which files of the run count, too. `paths` and `names`: see
    `written_outside`. `ray_node`: the node's name, if Ray runs tasks on it.
    """
    write_json(run_dir / constants.CODE_RECORD, code)


def keep(run_dir: Path) -> Dict[str, Any]:
    """List the files of the run, and save the list: a later run may change the files. Empty if no list is due.

    A disk that hangs is not waited for, and one that fails is no error: the list says that it is not whole.
    """
    code = read_json(run_dir / constants.CODE_RECORD)
    if not code:
        return {}
    root, changes, done = code["root"], Changes(), Event()
    outside: List[Outside] = []
    began_ns = os.lstat(str(run_dir / constants.CODE_RECORD)).st_ctime_ns

    def work() -> None:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            find_changes(root, brought(root), began_ns, changes)
            for prefix, folder in other_outputs(run_dir, root, code.get("home_folders", [])):
                find_changes(folder, {}, began_ns, changes, prefix=prefix)
            done.set()
            apart = [folder for _, folder in other_outputs(run_dir, root, code.get("home_folders", []))]
            outside.extend(written_outside(root, code, began_ns, apart))
            outside.extend(written_by_tasks(code.get("ray_node", ""), brought(root), began_ns))

    looking = Thread(target=work, daemon=True)
    looking.start()
    looking.join(LATE_S)
    listing = {
        "root": root,
        "folder": code["folder"],
        "files": changes.files,
        "bytes": changes.bytes,
        "whole": changes.whole and done.is_set(),
        "listed": sorted(changes.listed[:]),
        "outside": outside[:],
    }
    with contextlib.suppress(OSError):  # a full disk: it is listed again when it is asked for
        write_json(run_dir / LISTING, listing)
    return listing


def other_outputs(run_dir: Path, root: str, home_folders: Sequence[str]) -> Iterator[Tuple[str, str]]:
    """Yield the folders outside the project in which files of a run count, after what their paths begin with."""
    if not os.path.lexists(os.path.join(root, constants.HOME_OUTPUTS)):
        for name in home_folders:
            yield "{}/{}/".format(constants.HOME_OUTPUTS, name), os.path.join(os.path.expanduser("~"), name)
    if not os.path.lexists(os.path.join(root, constants.RUN_DIR_VARIABLE)):
        for path in sorted(run_dir.iterdir()):
            is_run_file = path.name in RUN_FOLDERS or path.name.startswith(".")
            if path.is_dir() and not is_run_file and not path.is_symlink():
                yield "{}/{}/".format(constants.RUN_DIR_VARIABLE, path.name), str(path)


def _place(run_dir: Path, root: str, path: str) -> Tuple[str, str, str]:
    """Return the folder that a listed path is of, the path in it, and the folder's own place among the outputs."""
    first, _, inner = path.partition("/")
    if first not in constants.BESIDE_PROJECT or not inner or os.path.lexists(os.path.join(root, first)):
        return root, path, constants.OUTPUTS
    folder = os.path.expanduser("~") if first == constants.HOME_OUTPUTS else str(run_dir)
    return folder, inner, "{}/{}".format(constants.OUTPUTS, first)


def send(run_dir: Path, request: Dict[str, Any], output: BinaryIO) -> None:
    """Send the list of a run's written files, then the files of `request`: see `chosen`."""
    listing = read_json(run_dir / LISTING) or keep(run_dir)
    if not listing:
        return
    # Other nodes of the run that list the same folder share this home.
    listings = {}
    for record in sorted(run_dir.parent.glob("*/" + LISTING)):
        other = read_json(record) if record.parent != run_dir else {}
        if other.get("root") == listing["root"]:
            listings[record.parent.name] = other
    header = {
        "t": frames.OUTPUTS,
        "folder": from_home(listing["root"]),
        "files": listing["files"],
        "bytes": listing["bytes"],
        "whole": listing["whole"],
        "shared_with": sorted(listings),
        "outside": listing.get("outside", []),
    }
    frames.write(output, header, json.dumps(listing["listed"]).encode())
    # On a disk that nodes share, the first by name sends what several of them list.
    elsewhere = {
        tuple(entry) for name, other in listings.items() if name < run_dir.name for entry in other["listed"]
    }
    by_path = {entry[0]: tuple(entry) for entry in listing["listed"] if tuple(entry) not in elsewhere}
    for path in chosen(list(by_path.values()), listing["folder"], request):
        folder, inner, prefix = _place(run_dir, listing["root"], path)
        if _is_as_listed(os.path.join(folder, inner), by_path[path]):
            send_files(Path(folder), [inner], prefix, output)
        else:
            header = {
                "path": "{}/{}".format(constants.OUTPUTS, path),
                "reason": "it was changed after the run had ended",
            }
            frames.write(output, dict(header, t=frames.SKIPPED))


def _is_as_listed(place: str, entry: Output) -> bool:
    try:
        status = os.lstat(place)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and (status.st_size, status.st_ctime_ns) == entry[1:]


def chosen(listed: Sequence[Output], folder: str, request: Dict[str, Any]) -> List[str]:
    """Paths of the files to send: files that a pattern names, in any size, and of the others the small ones.

    `request`: patterns, and max_bytes of the rest together, the smallest first; a checkpoint in parts comes whole or
    not at all. `folder`: see `matches`.
    """
    named = [
        path
        for path, _, _ in listed
        if any(matches(path, pattern, folder) for pattern in request["patterns"])
    ]
    sizes = {path: size for path, size, _ in listed if path not in set(named)}
    sets = list(sets_in(sizes).values())
    alone = set(sizes).difference(*sets)
    small, total = [], 0
    for size, paths in sorted(
        (sum(map(sizes.__getitem__, paths)), paths) for paths in [*sets, *([path] for path in alone)]
    ):
        total += size
        if total > request["max_bytes"]:
            break
        small += paths
    return sorted(named + small)


WORKING_FOLDERS = "runtime_resources/working_dir_files/_ray_pkg_*"
"""In Ray's session folder: copies of a `working_dir` of a `runtime_env`, and the current folder of tasks with one."""


TASK_FOLDERS = "artifacts/*"
"""In Ray's session folder: the current folders of Ray Train's workers and of trials."""


OWN_FILES = (constants.LOGS, "runner.json", "exit.json", "stop")
"""Files of the supervisor of Ray's daemons. Its folder is the current one of Ray's tasks."""


TASKS_LOOK_S = 2.0


def written_by_tasks(node: str, sent: Dict[str, Any], began_ns: int) -> List[Outside]:
    """Return the new files and folders of files in the folders of Ray's tasks; empty if gpuctl started no Ray here.

    `sent`: paths of the project's files, which a `working_dir` holds, too.
    """
    known = read_json(NODE_HOME / constants.RAY / node / "node.json") if node else {}
    if not known:
        return []
    limit = time.monotonic() + TASKS_LOOK_S
    listed: List[Outside] = []
    session = os.path.join(known["temp_dir"], "r", "session_latest")
    for path in _places(known["run_dir"], session, sent, began_ns, limit):
        if len(listed) >= MAX_LISTED:
            break
        entry = new_entry(path, began_ns, max(0.0, limit - time.monotonic()))
        if entry is not None:
            listed.append(entry)
    return listed


def _places(run_dir: str, session: str, sent: Dict[str, Any], began_ns: int, limit: float) -> Iterator[str]:
    """Yield the paths that tasks may have written, without the files of Ray's supervisor and of a copied project."""
    for name in names_in(run_dir):
        if name not in OWN_FILES and not is_cache(name) and not name.startswith("."):
            yield os.path.join(run_dir, name)
    session = os.path.realpath(session)
    yield from sorted(glob.glob(os.path.join(session, TASK_FOLDERS)))
    folders = sorted(glob.glob(os.path.join(session, WORKING_FOLDERS)))
    # A `working_dir` may be any folder of the project: a path's parts after each slash may be the paths in it.
    parts = [path.split("/") for path in sent] if folders else []
    copied = {"/".join(words[at:]) for words in parts for at in range(len(words))}
    for folder in folders:
        for path, _, _ in find_changes(folder, {}, began_ns, look_s=limit - time.monotonic()).listed:
            if path not in copied:
                yield os.path.join(folder, path)


def command_ray_files(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `ray_files` with the files that Ray's tasks wrote on this node.

    Request: node, age_s (how long ago the run began, s), sent (paths of the project's files).
    """
    began_ns = time.time_ns() - int(request["age_s"] * 10**9)
    listed = written_by_tasks(request["node"], dict.fromkeys(request["sent"]), began_ns)
    frames.write(output, {"t": frames.STATE, "outside": listed})
