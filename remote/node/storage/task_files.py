"""Files that Ray's tasks, actors and workers wrote by relative paths, into the folders in which Ray starts them."""

import glob
import os
import time
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Set

from remote.node.home_folder import NODE_HOME
from remote.node.storage.changed_files import find_changes, is_cache, names_in
from remote.node.storage.outside import MAX_LISTED, Outside, new_entry
from remote.shared import frames
from remote.shared.constants import LOGS, RAY
from remote.shared.files import read_json

WORKING_FOLDERS = "runtime_resources/working_dir_files/_ray_pkg_*"
"""In Ray's session folder: copies of a `working_dir` of a `runtime_env`, and the current folder of tasks with one."""
ARTIFACTS = "artifacts/*"
"""In Ray's session folder: the current folders of Ray Train's workers and of trials."""
OWN_FILES = (LOGS, "runner.json", "exit.json", "stop")
"""Files of the supervisor of Ray's daemons. Its folder is the current one of Ray's tasks."""
LOOK_S = 2.0


def written_by_tasks(node: str, sent: Dict[str, Any], began_ns: int) -> List[Outside]:
    """Return the new files and folders of files in the folders of Ray's tasks; empty if gpuctl started no Ray here.

    `sent`: paths of the project's files, which a `working_dir` holds, too.
    """
    known = read_json(NODE_HOME / RAY / node / "node.json") if node else {}
    if not known:
        return []
    limit = time.monotonic() + LOOK_S
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
    yield from sorted(glob.glob(os.path.join(session, ARTIFACTS)))
    folders = sorted(glob.glob(os.path.join(session, WORKING_FOLDERS)))
    copied = _with_ends(sent) if folders else set()
    for folder in folders:
        for path, _, _ in find_changes(folder, {}, began_ns, look_s=limit - time.monotonic()).listed:
            if path not in copied:
                yield os.path.join(folder, path)


def _with_ends(paths: Iterable[str]) -> Set[str]:
    """Return the paths, and each one's parts after a slash: a `working_dir` may be any folder of the project."""
    parts = (path.split("/") for path in paths)
    return {"/".join(words[at:]) for words in parts for at in range(len(words))}


def command_ray_files(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `ray_files` with the files that Ray's tasks wrote on this node.

    Request: node, age_s (how long ago the run began, s), sent (paths of the project's files).
    """
    began_ns = time.time_ns() - int(request["age_s"] * 10**9)
    listed = written_by_tasks(request["node"], dict.fromkeys(request["sent"]), began_ns)
    frames.write(output, {"t": frames.STATE, "outside": listed})
