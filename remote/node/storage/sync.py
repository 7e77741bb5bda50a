"""The node's side of sync: takes a manifest, asks for what has changed, removes what has gone.

A file is unchanged when its size, modification time and mode are as in the manifest, much as rsync decides it, and
its stamp is that of the sync before. Files, and links to files, are replaced by new ones of the same name; a folder
with something in it never is.

    {"root", "follow_deletions", …}, {"t": "manifest"} + zlib(JSON)   →
                                  ← {"t": "need", "paths", "removed", "root", "rsync"}
    {"t": "chunk", "path", "last"} + bytes, …                      →
    or, once rsync has sent its files: {"t": "look"}        →    ← {"t": "need", …} of the missing files
    {"t": "sent"}                                                  →    ← {"t": "synced", "root"}
"""

import contextlib
import errno
import glob
import json
import os
import shutil
import stat
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Set

from remote.node.storage import earlier
from remote.node.storage.changed_files import as_sent
from remote.node.storage.pushed import MANIFEST, note_pushed, pushed, pushed_into, sent
from remote.node.storage.sending import Heartbeat
from remote.node.storage.staging import PARTIAL, Staging, put, remove_left_behind
from remote.node.storage.sync_lock import alone
from remote.shared import frames
from remote.shared.files import walk_files, write_json
from remote.shared.trees import folders_of

# An entry of a manifest: [size, modification time in ns, mode, stamp], or [link target] for a symbolic link. A change
# of content on the other side changes the stamp. A file that changed while it was sent has no stamp.
Manifest = Dict[str, List[Any]]


def command_sync(request: Dict[str, Any], output: BinaryIO, more: Iterator[frames.Frame]) -> None:
    """`sync`: root, follow_deletions, folders, aside, fresh, then the manifest. Answers `need`, takes chunks.

    With follow_deletions the folder is ours: a file of an earlier sync is removed if the sender has it no more, or if
    it is in the way of a new file. Without it nothing is removed, and linked folders are followed. Raises OSError,
    before anything is sent, where something is in the way of a file.

    `aside`: a folder next to it. A file that would be replaced or removed is moved there if it changed since a sync
    brought it; with `fresh`, files that no sync brought are moved, too. The answer then lists those that stay.
    `project`: the project's folder that contains `root`. The files that come count as part of it from now on.
    """
    shown: str = request["root"]
    root = os.path.abspath(os.path.expanduser(shown))
    if os.path.exists(root) and not os.path.isdir(root):
        raise NotADirectoryError("{} is a file there, and what is sent goes into a folder".format(shown))
    os.makedirs(root, 0o700, exist_ok=True)
    remove_left_behind(root)
    header, body = next(more, ({"t": frames.NOTHING}, b""))
    if header["t"] != frames.MANIFEST:
        raise EOFError("the connection ended before the list of files had come; run the command again")
    manifest: Manifest = json.loads(zlib.decompress(body).decode())
    project = request.get("project") or (
        root if request["follow_deletions"] or request.get("aside") else None
    )
    with contextlib.ExitStack() as held:
        if project:
            project = os.path.abspath(os.path.expanduser(project))
            held.enter_context(alone(project, Heartbeat(output)))
        _sync(request, root, manifest, output, more)


def _sync(
    request: Dict[str, Any], root: str, manifest: Manifest, output: BinaryIO, more: Iterator[frames.Frame]
) -> None:
    """Make the folder hold the content of the manifest, under a lock."""
    shown: str = request["root"]
    ours: bool = request["follow_deletions"]
    before: Manifest = sent(root) if ours else {}
    previous = pushed(root)
    project = os.path.abspath(os.path.expanduser(request["project"])) if request.get("project") else ""
    folders_to_make: List[str] = request.get("folders", ["."])
    aside = earlier.Aside(root, os.path.expanduser(request["aside"])) if request.get("aside") else None
    if aside is not None and request["fresh"]:
        aside.take(list(earlier.not_sent(root, before, previous, folders_to_make)))
    stale = _stale(root, manifest, pushed_into(project, root) if project else before)
    folders = folders_of(stale)
    conflict = _in_the_way(root, folders, stale, before if ours else None)
    if conflict:
        raise FileExistsError("{}/{}".format(shown.rstrip("/"), conflict))
    if aside is not None:
        dropped = [path for path in before if path not in manifest]
        aside.take(list(earlier.not_as_sent(root, dict(previous, **before), [*stale, *dropped])))
    _remove_lookalikes(root, stale, manifest)
    removed = _remove_gone(Path(root), before, manifest)
    if ours and before != manifest:
        # Before the files come: the next sync knows the files of an interrupted one.
        write_json(Path(root + MANIFEST), manifest)
    if project:
        note_pushed(project, root, manifest)
    need = {"t": frames.NEED, "paths": list(stale), "removed": removed, "root": root, "rsync": None}
    with Staging(root) as staging:
        if stale:
            staging.make()
            _make_room(root, folders, stale, follow_links=not ours)
            if shutil.which("rsync") and staging.reaches(folders):
                need["rsync"] = {"temporary": staging.name, "partial": os.path.join(root, PARTIAL)}
        frames.write(output, need)
        came = _receive(root, {path: manifest[path] for path in stale}, more, output, staging)
    if ours and any(manifest[path][:3] != entry for path, entry in came.items()):
        # A file that grew while it was sent: its real size is recorded, so the next sync knows no run changed it.
        manifest = dict(manifest, **came)
        write_json(Path(root + MANIFEST), manifest)
    shutil.rmtree(os.path.join(root, PARTIAL), ignore_errors=True)
    for folder in folders_to_make:
        with contextlib.suppress(FileExistsError, NotADirectoryError):  # a run made a file of that name
            os.makedirs(os.path.join(root, folder), exist_ok=True)
    done = {"t": frames.SYNCED, "root": root}
    if aside is None:
        frames.write(output, done)
    else:
        left = json.dumps(earlier.listing(root, dict(previous, **manifest))).encode()
        frames.write(output, dict(done, aside=aside.count, names=aside.names), left)


def _stale(
    root: str, manifest: Manifest, known: Optional[Manifest] = None
) -> "Dict[str, Optional[os.stat_result]]":
    """The paths that are not as the manifest has them, sorted, each with its present state; `None` for a missing one.

    `known`: the manifest of earlier syncs. A file with another stamp than there has another content, too.
    """
    stale = {}
    for path, entry in manifest.items():
        full = root + "/" + path
        status = _lstat(full)
        stamps = entry[3:] and known and known.get(path, [])[3:]
        unchanged = (
            status is not None
            and as_sent(status, entry, full)
            and (len(entry) == 1 or status.st_mode & 0o777 == entry[2])
            and (not stamps or stamps == entry[3:])
        )
        if not unchanged:
            stale[path] = status
    return {path: stale[path] for path in sorted(stale)}


def _remove_lookalikes(root: str, stale: "Dict[str, Optional[os.stat_result]]", manifest: Manifest) -> None:
    """Remove stale files with the size and time of the files that are to come.

    After an interruption, the next sync could not tell the two apart. Nor could Python: its bytecode is removed, too.
    """
    for path, status in stale.items():
        if status is not None and stat.S_ISREG(status.st_mode) and as_sent(status, manifest[path]):
            file = Path(root, path)
            for old in [file, *file.parent.glob("__pycache__/{}.*.pyc".format(glob.escape(file.stem)))]:
                with contextlib.suppress(FileNotFoundError):
                    old.unlink()


def _lstat(path: str) -> "Optional[os.stat_result]":
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _remove_gone(root: Path, before: Manifest, now: Manifest) -> int:
    """Remove files of an earlier sync that this one lacks; files of runs stay."""
    removed = 0
    for path in sorted(set(before) - set(now), reverse=True):
        target = root / path
        folders = [folder for folder in target.parents if root in folder.parents]
        if any(folder.is_symlink() for folder in folders):
            continue  # the folder was replaced by a link: its target was not sent
        if not (target.is_symlink() or target.is_file()):
            continue
        try:
            target.unlink()
            removed += 1
            folder = target.parent
            while folder != root and not os.listdir(str(folder)):
                folder.rmdir()
                folder = folder.parent
        except FileNotFoundError:
            continue  # a node that shares this home was faster
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
    return removed


def _in_the_way(
    root: str,
    folders: List[str],
    stale: "Dict[str, Optional[os.stat_result]]",
    before: Optional[Manifest],
) -> str:
    """Return the first path that can't make room, as the end of a sentence; empty if all can.

    `before`: files of an earlier sync, which may be removed; `None`: no file may be removed, and linked folders are
    followed.
    """
    sentence = "{} is {} there, and {} here; no file was sent: rename one of them"
    fresh: Set[str] = set()
    for name in folders:
        status = None if name.rpartition("/")[0] in fresh else _lstat(os.path.join(root, name))
        if status is None or (before is not None and not stat.S_ISDIR(status.st_mode) and name in before):
            fresh.add(name)
        elif not (
            stat.S_ISDIR(status.st_mode) or (before is None and os.path.isdir(os.path.join(root, name)))
        ):
            return sentence.format(name, "a link" if stat.S_ISLNK(status.st_mode) else "a file", "a folder")
    for path, status in stale.items():
        full = os.path.join(root, path)
        if status is None or path.rpartition("/")[0] in fresh or not os.path.isdir(full):
            continue
        link = stat.S_ISLNK(status.st_mode)
        if before is None or not (path in before if link else _holds_only(before, root, path)):
            return sentence.format(path, "a link to a folder" if link else "a folder", "a file")
    return ""


def _holds_only(before: Manifest, root: str, folder: str) -> bool:
    """Everything in the folder was brought by an earlier sync; true of an empty one."""
    held = walk_files(Path(root, folder))
    return all("{}/{}".format(folder, name) in before for name, _ in held)


def _make_room(
    root: str, folders: List[str], stale: "Dict[str, Optional[os.stat_result]]", *, follow_links: bool
) -> None:
    """Make the folders of paths. What stands in the way of them was looked at by `_in_the_way`, and may go."""
    for name in folders:
        folder = os.path.join(root, name)
        if os.path.isdir(folder) and (follow_links or not os.path.islink(folder)):
            continue
        if os.path.lexists(folder):
            os.unlink(folder)
        os.makedirs(folder, exist_ok=True)
    for path, status in stale.items():
        if status is not None and stat.S_ISDIR(status.st_mode):
            for empty, _, _ in os.walk(os.path.join(root, path), topdown=False):
                os.rmdir(empty)


def _receive(
    root: str,
    need: Manifest,
    more: Iterator[frames.Frame],
    output: BinaryIO,
    staging: Staging,
) -> Manifest:
    """Take `chunk` frames until `sent`; every file grows in the staging folder and is renamed when whole.

    Returns the entries of the files that came, with the sizes that they came with.
    """
    came = {}  # type: Manifest
    for path, entry in need.items():
        if len(entry) == 1:
            temporary = staging.fresh()
            os.symlink(entry[0], temporary)
            put(temporary, root + "/" + path)
    coming, temporary, handle = "", "", -1
    try:
        for header, body in more:
            if header["t"] == frames.SENT:
                return came
            if header["t"] == frames.LIST:
                need = {path: need[path] for path in _stale(root, need)}
                frames.write(output, {"t": frames.NEED, "paths": list(need)})
                continue
            path = header["path"]
            if len(need.get(path, ())) < 3:
                raise ValueError("a file that nobody asked for was sent: {}".format(path))
            if path != coming:
                if coming:
                    raise ValueError("{} was sent before {} was whole".format(path, coming))
                coming, temporary = path, staging.fresh()
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            written = os.write(handle, body)
            while written < len(body):
                written += os.write(handle, memoryview(body)[written:])
            if header.get("last"):
                mtime_ns, mode = need[path][1:3]
                os.fchmod(handle, mode)
                os.utime(handle, ns=(mtime_ns, mtime_ns))
                came[path] = [os.fstat(handle).st_size, mtime_ns, mode]
                os.close(handle)
                coming, handle = "", -1
                put(temporary, root + "/" + path)
        raise EOFError("the connection ended before all files had come; the next sync resumes from here")
    finally:
        if handle >= 0:
            os.close(handle)
