"""What earlier runs wrote into the project's folder, as the next one meets it: put aside, listed, sent.

What is put aside is moved into a folder beside the project's, on the same disk: nothing of it is lost.
"""

import errno
import itertools
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterable, Iterator, List, Optional, Sequence

from remote.node.storage.outputs import as_sent, is_cache, is_environment, look
from remote.node.storage.sending import send_files
from remote.shared import frames
from remote.shared.trees import device_of, folders_of, mount_points

MOST_NAMES = 20
"""Of what was put aside, that are told."""


class Aside:
    """The folder that takes what would be lost, made when the first comes."""

    def __init__(self, root: str, folder: str) -> None:
        """`root`: the project's; `folder`: one on the same disk, the same for all nodes that share it."""
        self._root = root
        self._folder = folder
        self.names: List[str] = []
        """The first of what was moved there."""
        self.count = 0

    def take(self, paths: Iterable[str]) -> None:
        """Move these files and folders of the project's there, each with its path; what is there stays as it is."""
        for path in paths:
            target = self._place_of(path)
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

    def _place_of(self, path: str) -> str:
        """A place that nothing has there; a name on the way that is taken gets a number behind it."""
        folder = self._folder
        *above, name = path.split("/")
        for part in above:
            folder = _free(os.path.join(folder, part), os.path.isdir)
        os.makedirs(folder, 0o700, exist_ok=True)
        return _free(os.path.join(folder, name), lambda _: False)


def _free(path: str, suits: Callable[[str], bool]) -> str:
    """A path at which there is nothing, or what suits: this one, or with a number behind it."""
    names = itertools.chain([path], ("{}.{}".format(path, number) for number in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name) or suits(name))


def not_as_sent(root: str, sent: Dict[str, Any], paths: Iterable[str]) -> Iterator[str]:
    """Of these paths those of plain files that are there, and not as an earlier sync brought them."""
    top = os.path.realpath(root)
    for path in paths:
        full = os.path.join(top, path)
        if os.path.realpath(full) != full or not os.path.isfile(full):
            continue  # not there, or behind a link
        if not as_sent(os.lstat(full), sent.get(path)):
            yield path


def not_sent(root: str, sent: Dict[str, Any], pushed: Dict[str, Any]) -> Iterator[str]:
    """All that no sync has brought, or that was changed since, but for caches; a folder with nothing else as one.

    What was `pushed` is left alone, as nothing brings it again; so is a link on its way.
    """
    folders = {"", *folders_of([*sent, *pushed])}
    device, mounts, pending = device_of(root), mount_points(), [""]
    while pending:
        inner = pending.pop()
        try:
            with os.scandir(os.path.join(root, inner)) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            continue  # a node that shares this home was faster
        for entry in found:
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
    """Files that earlier runs left: path, bytes and time of modification of each, and whether it is `whole`."""
    found = look(root, sent, 0)
    listed = []
    for path, size, _ in found.listed:
        try:
            listed.append([path, size, os.lstat(os.path.join(root, path)).st_mtime_ns])
        except OSError:
            continue
    return {"listed": listed, "whole": found.whole and found.files == len(found.listed)}


def command_send_earlier(request: Dict[str, Any], output: BinaryIO) -> None:
    """`send_earlier`: these `paths` of files in the project's folder, `root`."""
    paths: Sequence[str] = request["paths"]
    root = Path(os.path.expanduser(request["root"]))
    send_files(root, [path for path in paths if not (root / path).is_symlink()], "", output)
    frames.write(output, {"t": frames.DONE})
