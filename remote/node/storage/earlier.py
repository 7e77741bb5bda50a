"""Files of earlier runs in the project's folder, as the next run meets them: moved to a backup, listed, sent.

The backup is a folder next to the project's, on the same disk: no file is lost.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from remote.node.home_folder import NODE_HOME
from remote.node.storage.changed_files import as_sent, find_changes, is_cache, is_environment
from remote.node.storage.sending import Heartbeat, send_files
from remote.shared import frames
from remote.shared.checkpoint_sets import METADATA, named_parts
from remote.shared.constants import CODE_RECORD, RUNS
from remote.shared.files import read_json
from remote.shared.trees import device_of, folders_of, mount_points

MOST_NAMES = 20
"""The maximum number of reported paths of the backup."""


class Aside:
    """The folder that takes what would be lost, made when the first comes."""

    def __init__(self, root: str, folder: str) -> None:
        """`root`: the project's; `folder`: one on the same disk, the same for all nodes that share it."""
        self._root = root
        self._folder = folder
        self.names: List[str] = []
        """The first of the moved files."""
        self.count = 0

    def take(self, paths: Iterable[str]) -> None:
        """Move these files and folders of the project into the backup, each with its path.

        Existing ones stay as they are.
        """
        for path in paths:
            folder = self._folder
            *above, name = path.split("/")
            for part in above:
                folder = _free(os.path.join(folder, part), os.path.isdir)
            os.makedirs(folder, 0o700, exist_ok=True)
            target = _free(os.path.join(folder, name), lambda _: False)
            source = os.path.join(self._root, path)
            try:
                os.rename(source, target)
            except FileNotFoundError:
                continue  # a node that shares this home was faster
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                shutil.move(source, target)  # it is on another disk, which somebody has put there
            self.count += 1
            if len(self.names) < MOST_NAMES:
                self.names.append(path)


def _free(path: str, suits: Callable[[str], bool]) -> str:
    """Return a path that is free or suits: this one, or with a number at its end."""
    names = itertools.chain([path], ("{}.{}".format(path, number) for number in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name) or suits(name))


def not_as_sent(root: str, sent: Dict[str, Any], paths: Iterable[str]) -> Iterator[str]:
    """Return the plain files among these paths that differ from an earlier sync's."""
    top = os.path.realpath(root)
    for path in paths:
        full = os.path.join(top, path)
        if os.path.realpath(full) != full or not os.path.isfile(full):
            continue  # not there, or behind a link
        if not as_sent(os.lstat(full), sent.get(path)):
            yield path


def not_sent(
    root: str, sent: Dict[str, Any], pushed: Dict[str, Any], made: Sequence[str] = ()
) -> Iterator[str]:
    """Return all files that no sync has brought, or that were changed since, except caches.

    A folder with only such files is one item. Files of `pushed` are left alone, as no sync brings them again; the
    same holds for a link on their way. `made`: folders that a sync makes without any file.
    """
    folders = {"", *made, *folders_of([*sent, *pushed, *made])}
    device, mounts, pending = device_of(root), mount_points(), [""]
    while pending:
        inner = pending.pop()
        try:
            with os.scandir(os.path.join(root, inner)) as entries:
                by_name = sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            continue  # a node that shares this home was faster
        for entry in by_name:
            path = os.path.join(inner, entry.name)
            if is_cache(entry.name):
                continue
            if not entry.is_dir(follow_symlinks=False):
                left = path in folders or (path in pushed and path not in sent)
                if not left and not _is_as_sent(entry, sent.get(path)):
                    yield path
            elif entry.path not in mounts and device_of(entry.path) == device:
                if path in folders:
                    pending.append(path)
                elif not is_environment(entry.path):
                    yield path


def _is_as_sent(entry: "os.DirEntry[str]", sent: Optional[Sequence[Any]]) -> bool:
    try:
        return as_sent(entry.stat(follow_symlinks=False), sent, entry.path)
    except FileNotFoundError:
        return True  # it is gone by now


def listing(root: str, sent: Dict[str, Any]) -> Dict[str, Any]:
    """List files that earlier runs left: path, bytes, time of modification, and the run that wrote each last.

    `parts`: of each `.metadata`, the paths of the parts that it names. `whole`: whether these are all files.
    """
    changes = find_changes(root, sent, 0)
    # The begin of each run of this project here, by the time of the disk that has the files, and its id.
    top, began = os.path.realpath(root), []
    for record in (NODE_HOME / RUNS).glob("*/*/" + CODE_RECORD):
        with contextlib.suppress(OSError):
            if os.path.realpath(str(read_json(record).get("root"))) == top:
                began.append((os.lstat(str(record)).st_ctime_ns, record.parents[1].name))
    listed, parts = [], {}
    for path, size, changed_ns in changes.listed:
        full = os.path.join(root, path)
        try:
            modified_ns = os.lstat(full).st_mtime_ns
        except OSError:
            continue
        run = max((begin for begin in began if begin[0] <= changed_ns), default=(0, ""))[1]
        listed.append([path, size, modified_ns, run])
        if os.path.basename(path) == METADATA:
            names = named_parts(Path(full))
            parts[path] = [os.path.join(os.path.dirname(path), name) for name in names]
    return {"listed": listed, "parts": parts, "whole": changes.whole and changes.files == len(changes.listed)}


def command_send_earlier(request: Dict[str, Any], output: BinaryIO) -> None:
    """`send_earlier`: these `paths` of files in the project's folder, `root`."""
    root, paths = _files_of(request)
    send_files(root, paths, "", output)
    frames.write(output, {"t": frames.DONE})


def command_digest_earlier(request: Dict[str, Any], output: BinaryIO) -> None:
    """`digest_earlier`: the digest of each of these `paths` of files in the project's folder, `root`."""
    root, paths = _files_of(request)
    heartbeat, digests = Heartbeat(output), {}
    for path in paths:
        digest = hashlib.sha256()
        with contextlib.suppress(OSError), open(str(root / path), "rb") as file:
            for body in iter(lambda: file.read(frames.CHUNK_BYTES), b""):
                digest.update(body)
                heartbeat()
            digests[path] = digest.hexdigest()
    frames.write(output, {"t": frames.DIGESTS}, json.dumps(digests).encode())


def _files_of(request: Dict[str, Any]) -> Tuple[Path, List[str]]:
    """Return the project's folder, and the `paths` that are no links."""
    root = Path(os.path.expanduser(request["root"]))
    return root, [path for path in request["paths"] if not (root / path).is_symlink()]
