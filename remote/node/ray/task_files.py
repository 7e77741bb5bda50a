"""Files that Ray's tasks, actors and workers wrote by relative paths, into the folders in which Ray starts them."""

import glob
import os
import time
from typing import Any, BinaryIO, Dict, Iterator, List

from remote.node.home_folder import NODE_HOME
from remote.node.storage.changed_files import is_cache, look
from remote.node.storage.outside import Outside, new_entry
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
    limit, listed = time.monotonic() + LOOK_S, []
    for path in _places(known["run_dir"], os.path.join(known["temp_dir"], "r", "session_latest"), sent):
        entry = new_entry(path, began_ns, max(0.0, limit - time.monotonic()))
        if entry is not None:
            listed.append(entry)
    return listed


def _places(run_dir: str, session: str, sent: Dict[str, Any]) -> Iterator[str]:
    """Yield the paths that tasks may have written, without the files of Ray's supervisor and of a copied project."""
    for name in sorted(os.listdir(run_dir)):
        if name not in OWN_FILES and not is_cache(name) and not name.startswith("."):
            yield os.path.join(run_dir, name)
    session = os.path.realpath(session)
    yield from sorted(glob.glob(os.path.join(session, ARTIFACTS)))
    for folder in sorted(glob.glob(os.path.join(session, WORKING_FOLDERS))):
        for path, _, _ in look(folder, {}, 0, look_s=LOOK_S).listed if os.path.isdir(folder) else ():
            if not any(name == path or name.endswith("/" + path) for name in sent):
                yield os.path.join(folder, path)


def command_ray_files(request: Dict[str, Any], output: BinaryIO) -> None:
    """`ray_files`: what Ray's tasks wrote on this `node` in the last `age_s` s; `sent`: paths of the project."""
    began_ns = time.time_ns() - int(request["age_s"] * 10**9)
    listed = written_by_tasks(request["node"], dict.fromkeys(request["sent"]), began_ns)
    frames.write(output, {"t": frames.STATE, "outside": listed})
