"""Whole files of a node, sent in chunks; a digest at the end of each, so that a cut one is never kept."""

import hashlib
import os
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterable, List, Tuple

from remote.shared import frames
from remote.shared.files import digest_of, is_regular, walk_files


def send_tree(root: Path, prefix: str, max_bytes: int, output: BinaryIO) -> None:
    """Send every plain file below `root` (or `root` itself); name each omitted file and the reason."""
    root, files = _files_at(root)
    total = 0
    for name, status in files:
        path = "{}/{}".format(prefix, name) if prefix else name
        if not is_regular(status):
            frames.write(output, {"t": frames.SKIPPED, "path": path, "reason": "not a plain file"})
        elif total + status.st_size > max_bytes:
            reason = "over the limit of {} bytes".format(max_bytes)
            frames.write(output, {"t": frames.SKIPPED, "path": path, "reason": reason})
        else:
            total += status.st_size
            _send_file(root / name, path, output)


def _files_at(path: Path) -> "Tuple[Path, List[Tuple[str, os.stat_result]]]":
    """Return the folder of a file, or a folder itself, and the files in it by name."""
    if path.is_file() and not path.is_symlink():
        return path.parent, [(path.name, path.lstat())]
    return path, list(walk_files(path))


def send_files(root: Path, names: Iterable[str], prefix: str, output: BinaryIO) -> None:
    """Send these files below `root`, in this order; of a link, the file that it leads to."""
    for name in names:
        _send_file(
            Path(os.path.realpath(str(root / name))), "{}/{}".format(prefix, name) if prefix else name, output
        )


def _send_file(file_path: Path, path: str, output: BinaryIO) -> None:
    """Send one file in chunks; the last frame carries size and SHA-256, so that a cut file is never kept."""
    digest, offset = hashlib.sha256(), 0
    try:
        handle = os.open(str(file_path), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        frames.write(output, {"t": frames.SKIPPED, "path": path, "reason": error.strerror or str(error)})
        return
    with os.fdopen(handle, "rb") as file:
        while True:
            body = file.read(frames.CHUNK_BYTES)
            if not body:
                break
            digest.update(body)
            frames.write(output, {"t": frames.CHUNK, "path": path, "offset": offset}, body)
            offset += len(body)
        mode = os.fstat(file.fileno()).st_mode & 0o777
    header = {"t": frames.COMPLETE, "path": path, "bytes": offset, "sha256": digest.hexdigest(), "mode": mode}
    frames.write(output, header)


def command_send(request: Dict[str, Any], output: BinaryIO) -> None:
    """`send`: a file or folder of the node, for `gpuctl pull`."""
    send_tree(_source(request), "", int(request["max_bytes"]), output)
    frames.write(output, {"t": frames.DONE})


def command_describe(request: Dict[str, Any], output: BinaryIO) -> None:
    """`describe`: the size of each file that `send` would send, or the SHA-256 of each file in `digests`."""
    root, files = _files_at(_source(request))
    heartbeat, digests = Heartbeat(output), set(request["digests"])
    for name, status in files:
        if not is_regular(status):
            continue
        header = {"t": frames.ITEM, "path": name, "bytes": status.st_size}
        if digests:
            if name not in digests:
                continue
            header["sha256"] = digest_of(root / name, heartbeat)
        frames.write(output, header)
    frames.write(output, {"t": frames.DONE})


def _source(request: Dict[str, Any]) -> Path:
    # The person named this one, so it is followed if it is a link; links within it are not.
    path = Path(os.path.realpath(os.path.expanduser(request["path"])))
    if not path.exists():
        raise FileNotFoundError("no such file or folder: {}".format(path))
    return path


BEAT_S = 5.0
"""At least this often something is sent, so that the other side can tell work from a dead node."""


class Heartbeat:
    """Sends a sign of life to the other side, at most every few seconds."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._last = time.monotonic()

    def __call__(self) -> None:
        """Send a sign of life if it is due."""
        now = time.monotonic()
        if now - self._last > BEAT_S:
            self._last = now
            frames.write(self._output, {"t": frames.BEAT})
