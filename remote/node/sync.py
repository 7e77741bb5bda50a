"""The node's side of sync: takes a manifest, asks for what has changed, removes what has gone.

A file is unchanged when its size and modification time are those of the manifest, as rsync decides it.
"""

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List

from remote.node import frames
from remote.node.files import read_json, write_json

# An entry of a manifest: [size, modification time in ns, mode], or [link target] for a symbolic link.
Manifest = Dict[str, List[Any]]


def command_sync(request: Dict[str, Any], output: BinaryIO, more: Iterator[frames.Frame]) -> None:
    """`sync`: root, manifest, follow_deletions. Answers `need` with the paths, then takes their chunks."""
    root = Path(os.path.expanduser(request["root"]))
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    manifest: Manifest = request["manifest"]
    index = root.parent / (root.name + ".manifest.json")
    removed = _remove_gone(root, read_json(index), manifest) if request["follow_deletions"] else 0
    need = [path for path, entry in sorted(manifest.items()) if not _unchanged(root / path, entry)]
    frames.write(output, {"t": "need", "paths": need, "removed": removed})
    _receive(root, manifest, set(need), more)
    if request["follow_deletions"]:
        write_json(index, manifest)
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
        if not (target.is_symlink() or target.is_file()):
            continue
        target.unlink()
        removed += 1
        folder = target.parent
        while folder != root and not os.listdir(str(folder)):
            folder.rmdir()
            folder = folder.parent
    return removed


def _receive(root: Path, manifest: Manifest, need: "set[str]", more: Iterator[frames.Frame]) -> None:
    """Take `chunk` frames until `sent`; every file is written beside its place and renamed when whole."""
    for path in need:
        if len(manifest[path]) == 1:
            _make_room(root, path)
            os.symlink(manifest[path][0], str(root / path))
    partial: Dict[str, Path] = {}
    for header, body in more:
        if header["t"] == "sent":
            return
        path = header["path"]
        if path not in need or len(manifest[path]) == 1:
            raise ValueError("a file that nobody asked for was sent: {}".format(path))
        if path not in partial:
            _make_room(root, path)
            partial[path] = (root / path).with_name(".gpuctl-{}-{}".format(os.getpid(), len(partial)))
            partial[path].write_bytes(b"")
        with open(str(partial[path]), "ab") as file:
            file.write(body)
        if header.get("last"):
            _, mtime_ns, mode = manifest[path]
            os.chmod(str(partial[path]), mode)
            os.utime(str(partial[path]), ns=(mtime_ns, mtime_ns))
            os.replace(str(partial[path]), str(root / path))
    raise EOFError("the connection ended before all files had come; the next sync goes on from here")


def _make_room(root: Path, path: str) -> None:
    """Make the folder of a path; whatever stands in its way (a file now a folder, an old link) goes."""
    target = root
    for part in path.split("/")[:-1]:
        target = target / part
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            target.unlink()
        target.mkdir(exist_ok=True)
    target = root / path
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif target.is_dir():
        import shutil

        shutil.rmtree(str(target))
