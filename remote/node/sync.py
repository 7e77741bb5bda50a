"""The node's side of sync: takes a manifest, asks for what has changed, removes what has gone.

A file is unchanged when its size, modification time and mode are those of the manifest, much as rsync decides
it. Files, and links to files, are replaced by those of the same name; a folder with something in it never is.
"""

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, Optional

from remote.node import frames
from remote.node.files import read_json, temporary_beside, walk_files, write_json

# An entry of a manifest: [size, modification time in ns, mode], or [link target] for a symbolic link.
Manifest = Dict[str, List[Any]]


def command_sync(request: Dict[str, Any], output: BinaryIO, more: Iterator[frames.Frame]) -> None:
    """`sync`: root, manifest, follow_deletions. Answers `need` with the paths, then takes their chunks.

    With follow_deletions the folder is ours: what an earlier sync brought goes when it has gone there, and makes
    room for what comes. Without it nothing is removed, and linked folders are followed. Raises OSError, before
    anything is sent, where something is in the way of a file.
    """
    shown: str = request["root"]
    root = Path(os.path.abspath(os.path.expanduser(shown)))
    if root.exists() and not root.is_dir():
        raise NotADirectoryError("{} is a file there, and what is sent goes into a folder".format(shown))
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    manifest: Manifest = request["manifest"]
    ours: bool = request["follow_deletions"]
    index = root.parent / (root.name + ".manifest.json")
    before: Manifest = read_json(index) if ours else {}
    need = [path for path, entry in sorted(manifest.items()) if not _unchanged(root / path, entry)]
    for path in need:
        found = _in_the_way(root, path, before if ours else None)
        if found:
            raise FileExistsError("{}/{}".format(shown.rstrip("/"), found))
    removed = _remove_gone(root, before, manifest)
    if ours:
        # Before the files come: what an interrupted sync has brought is known to the next one.
        write_json(index, manifest)
    frames.write(output, {"t": "need", "paths": need, "removed": removed})
    _receive(root, manifest, set(need), more, follow_links=not ours)
    frames.write(output, {"t": "synced", "root": str(root)})


def _unchanged(path: Path, entry: List[Any]) -> bool:
    try:
        status = os.lstat(str(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    if len(entry) == 1:
        return stat.S_ISLNK(status.st_mode) and os.readlink(str(path)) == entry[0]
    size, mtime_ns, mode = entry
    known = (status.st_size, status.st_mtime_ns, status.st_mode & 0o777)
    return stat.S_ISREG(status.st_mode) and known == (size, mtime_ns, mode)


def _remove_gone(root: Path, before: Manifest, now: Manifest) -> int:
    """Remove what an earlier sync brought and this one has not; what runs wrote themselves stays."""
    removed = 0
    for path in sorted(set(before) - set(now), reverse=True):
        target = root / path
        folders = [folder for folder in target.parents if root in folder.parents]
        if any(folder.is_symlink() for folder in folders):
            continue  # the folder was replaced by a link: what it leads to was not brought
        if not (target.is_symlink() or target.is_file()):
            continue
        target.unlink()
        removed += 1
        folder = target.parent
        while folder != root and not os.listdir(str(folder)):
            folder.rmdir()
            folder = folder.parent
    return removed


def _in_the_way(root: Path, path: str, before: Optional[Manifest]) -> str:
    """What can't make room for a path, as the end of a sentence; empty where there is room.

    `before` is what an earlier sync brought, which may go; None: nothing may go, and linked folders are followed.
    """
    parts = path.split("/")
    target = root
    for depth, part in enumerate(parts[:-1], start=1):
        target = target / part
        if before is None and target.is_dir():
            continue
        if not os.path.lexists(str(target)):
            return ""
        name = "/".join(parts[:depth])
        if not _is_folder(target) and name not in (before or {}):
            kind = "a link" if target.is_symlink() else "a file"
            return "{} is {} there, and a folder here; nothing was changed: rename one of them".format(
                name, kind
            )
    target = root / path
    if not target.is_dir():
        return ""
    if before is not None and (path in before if target.is_symlink() else _holds_only(before, root, target)):
        return ""
    kind = "a link to a folder" if target.is_symlink() else "a folder"
    return "{} is {} there, and a file here; nothing was changed: rename one of them".format(path, kind)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _holds_only(before: Manifest, root: Path, folder: Path) -> bool:
    """Everything in the folder was brought by an earlier sync; true of an empty one."""
    prefix = folder.relative_to(root).as_posix()
    return all("{}/{}".format(prefix, name) in before for name, _ in walk_files(folder))


def _receive(
    root: Path, manifest: Manifest, need: "set[str]", more: Iterator[frames.Frame], *, follow_links: bool
) -> None:
    """Take `chunk` frames until `sent`; every file is written beside its place and renamed when whole."""
    partial: Dict[str, Path] = {}
    try:
        for path in sorted(need):
            if len(manifest[path]) == 1:
                _make_room(root, path, follow_links)
                partial[path] = temporary_beside(root / path)
                os.symlink(manifest[path][0], str(partial[path]))
                os.replace(str(partial.pop(path)), str(root / path))
        for header, body in more:
            if header["t"] == "sent":
                return
            path = header["path"]
            if path not in need or len(manifest[path]) == 1:
                raise ValueError("a file that nobody asked for was sent: {}".format(path))
            if path not in partial:
                _make_room(root, path, follow_links)
                partial[path] = temporary_beside(root / path)
                partial[path].touch(exist_ok=False)
            with open(str(partial[path]), "ab") as file:
                file.write(body)
            if header.get("last"):
                _, mtime_ns, mode = manifest[path]
                os.chmod(str(partial[path]), mode)
                os.utime(str(partial[path]), ns=(mtime_ns, mtime_ns))
                os.replace(str(partial.pop(path)), str(root / path))
        raise EOFError("the connection ended before all files had come; the next sync goes on from here")
    finally:
        for temporary in partial.values():
            if os.path.lexists(str(temporary)):
                temporary.unlink()


def _make_room(root: Path, path: str, follow_links: bool) -> None:
    """Make the folder of a path. What stands in its way was looked at by `_in_the_way`, and may go."""
    target = root
    for part in path.split("/")[:-1]:
        target = target / part
        if follow_links and target.is_dir():
            continue
        if os.path.lexists(str(target)) and not _is_folder(target):
            target.unlink()
        target.mkdir(exist_ok=True)
    target = root / path
    if _is_folder(target):
        for folder, _, _ in os.walk(str(target), topdown=False):
            os.rmdir(folder)
