"""Which files of a folder are a run's checkpoints, and how they are described.

Of the built-in job one counts once its `step-N.json` is there, which is written last and tells the size of its file.
Of a user's script every file of the folder counts; a link within the folder is the file that it leads to.
"""

import os
import stat
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from remote.shared.files import is_regular, read_json, walk_files


def files_in(folder: Path, whole: bool, newest: bool = False) -> List[Tuple[str, int]]:
    """The files that count, relative to the folder, with their bytes; the newest last, none where there is no folder.

    `whole`: they are the built-in job's. Each file comes before the document that makes it count, so that a copy that
    is cut off holds whole checkpoints, too. `newest`: what is needed to go on, of these the two of the newest one; of
    a script's all, as nobody else knows which belong together.
    """
    if not whole:
        plain = [
            (status, name)
            for name, status in ((name, _behind(folder, name, own)) for name, own in walk_files(folder))
            if is_regular(status)
        ]
        return [
            (name, status.st_size)
            for status, name in sorted(plain, key=lambda one: (one[0].st_mtime_ns, one[1]))
        ]
    steps = []
    for path in folder.glob("*.json"):
        document = read_json(path)
        name, step = document.get("file"), document.get("step")
        if not (isinstance(name, str) and isinstance(step, int) and name and os.path.basename(name) == name):
            continue
        size = _size(folder / name)
        if size >= 0 and size == document.get("bytes"):
            steps.append((step, [(name, size), (path.name, _size(path))]))
    counting = sorted(steps)
    return [file for _, files in (counting[-1:] if newest else counting) for file in files]


def _behind(folder: Path, name: str, status: os.stat_result) -> os.stat_result:
    """The status of the file that a link leads to, where that is in the folder, too; else the link's own."""
    if not stat.S_ISLNK(status.st_mode):
        return status
    target = os.path.realpath(str(folder / name))
    inside = target.startswith(os.path.realpath(str(folder)) + os.sep)
    return os.stat(target) if inside and os.path.isfile(target) else status


def _size(path: Path) -> int:
    """Bytes of a plain file; -1 where there is none."""
    status = _status(path)
    return status.st_size if status is not None and is_regular(status) else -1


def _status(path: Path) -> "Optional[os.stat_result]":
    """A file's; None where it is gone, as a run that is going on may remove what is old."""
    try:
        return os.lstat(str(path))
    except FileNotFoundError:
        return None


def describe(folder: Path, whole: bool, newest: bool = False) -> Optional[Dict[str, Any]]:
    """How many `files` and `bytes` count, name and time (`written_ns`) of the `newest`; None where there are none."""
    files = files_in(folder, whole, newest)
    if not files:
        return None
    name, _ = files[-2] if whole else files[-1]
    status = _status(folder / name)
    return {
        "files": len(files),
        "bytes": sum(size for _, size in files),
        "newest": name,
        "written_ns": 0 if status is None else status.st_mtime_ns,
    }
