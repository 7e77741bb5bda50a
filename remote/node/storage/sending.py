"""Whole files of a node, sent in chunks; a digest at the end of each, so that a cut one is never kept."""

import hashlib
import os
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterable

from remote.shared import frames
from remote.shared.files import is_regular, walk_files


def send_tree(root: Path, prefix: str, max_bytes: int, output: BinaryIO) -> None:
    """Send every plain file below `root` (or `root` itself); name what is left out and why."""
    if root.is_file() and not root.is_symlink():
        files = [(root.name, root.lstat())]
        root = root.parent
    else:
        files = list(walk_files(root))
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


def send_files(root: Path, names: Iterable[str], prefix: str, output: BinaryIO) -> None:
    """Send these files below `root`, in this order; of a link, the file that it leads to."""
    for name in names:
        _send_file(
            Path(os.path.realpath(str(root / name))), "{}/{}".format(prefix, name) if prefix else name, output
        )


def _send_file(file_path: Path, path: str, output: BinaryIO) -> None:
    """One file in chunks; the last frame of it carries size and SHA-256, so that a cut file is never kept."""
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
    # The person named this one, so it is followed if it is a link; links within it are not.
    path = Path(os.path.realpath(os.path.expanduser(request["path"])))
    if not path.exists():
        raise FileNotFoundError("no such file or folder: {}".format(path))
    send_tree(path, "", int(request["max_bytes"]), output)
    frames.write(output, {"t": frames.DONE})
