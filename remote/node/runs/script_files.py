"""Files in which a script's libraries keep their metrics, sent while somebody follows the run.

A look for them costs at most 2 % of a core. Of a file the new end is sent, without large records such as pictures.
"""

import os
import struct
import time
from pathlib import Path
from typing import BinaryIO, Dict, List, Tuple

from remote.node.storage.changed_files import Changes, find_changes
from remote.node.storage.outputs import other_outputs
from remote.node.storage.pushed import brought
from remote.shared import frames
from remote.shared.constants import CODE_RECORD
from remote.shared.files import read_json
from remote.shared.script_files import FILES, NAMES, RECORD_HEAD, RECORD_TAIL

LOOK_S = 0.5
"""Time for a look at a folder."""
EVERY_S = 5.0
IDLE_TIMES = 50
"""The pause between looks is at least this multiple of a look's time."""
MAX_RECORD_BYTES = 4096
"""A record of TensorBoard with a number has some 100 bytes."""
MAX_RECORDS = 20_000
"""Read in one look."""
MAX_SENT_BYTES = frames.CHUNK_BYTES
"""Of a file, after one look: the newest."""
MAX_STATE_BYTES = 4 * 1000**2


class _Named(Changes):
    """The changed files with the names of libraries."""

    def add(self, path: str, status: "os.stat_result") -> None:
        """Count a file of a library."""
        if any(name.search(path) for name in NAMES.values()):
            super().add(path, status)


class ScriptFiles:
    """The files of a run on this node, as far as they were sent."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._code = read_json(run_dir / CODE_RECORD)
        self._sent = brought(self._code["root"]) if self._code else {}
        self._files: Dict[str, _Growth] = {}
        self._look_at = 0.0

    def send(self, output: BinaryIO) -> int:
        """Send the news of the files, if a look is due; returns the number of frames."""
        began = time.monotonic()
        if not self._code or began < self._look_at:
            return 0
        sent = 0
        for path, place in self._largest():
            if path not in self._files:
                kind = next(kind for kind, name in NAMES.items() if name.search(path))
                self._files[path] = _KINDS[kind]()
            try:
                begins, body = self._files[path].news(place)
            except (OSError, ValueError, struct.error):
                continue  # removed since then, or torn: the next look may do better
            if body:
                frames.write(output, {"t": frames.SCRIPT_FILE, "path": path, "begins": begins}, body)
                sent += 1
        now = time.monotonic()
        self._look_at = now + max(EVERY_S, IDLE_TIMES * (now - began))
        return sent

    def _largest(self) -> List[Tuple[str, str]]:
        """Return the path and the place of the largest new files of each kind."""
        root, files = self._code["root"], []
        began_ns = os.lstat(str(self._run_dir / CODE_RECORD)).st_ctime_ns
        folders = [("", root), *other_outputs(self._run_dir, root, self._code.get("home_folders", []))]
        for prefix, folder in folders:
            changes = find_changes(
                folder, self._sent if folder == root else {}, began_ns, _Named(), look_s=LOOK_S
            )
            files += [(-size, prefix + path, os.path.join(folder, path)) for path, size, _ in changes.listed]
        files.sort()
        kinds = [[file for file in files if name.search(file[1])][:FILES] for name in NAMES.values()]
        return [(path, place) for kind in kinds for _, path, place in kind]


class _Growth:
    """A file, and the part of it that was sent."""

    def __init__(self) -> None:
        self._inode = 0
        self._offset = 0

    def news(self, place: str) -> Tuple[bool, bytes]:
        """Return the new part of the file, and whether the file begins with it."""
        with open(place, "rb") as file:
            status = os.fstat(file.fileno())
            begins = self._offset == 0 or self.is_other(file, status)
            if begins:
                self._inode, self._offset = status.st_ino, 0
            return begins, self.read(file, status)

    def is_other(self, file: BinaryIO, status: "os.stat_result") -> bool:  # noqa: ARG002 - for others
        """Return whether the file is another than before."""
        return status.st_ino != self._inode or status.st_size < self._offset

    def read(self, file: BinaryIO, status: "os.stat_result") -> bytes:
        """Return the new part of the file."""
        raise NotImplementedError


class _Events(_Growth):
    """A file of TensorBoard: records, of which only small ones are sent."""

    def read(self, file: BinaryIO, status: "os.stat_result") -> bytes:
        """Return the new whole records."""
        records: List[bytes] = []
        for _ in range(MAX_RECORDS):
            file.seek(self._offset)
            head = file.read(RECORD_HEAD)
            if len(head) < RECORD_HEAD:
                break
            size = RECORD_HEAD + struct.unpack("<Q", head[:8])[0] + RECORD_TAIL
            if self._offset + size > status.st_size:
                break  # not written yet
            if size <= MAX_RECORD_BYTES:
                records.append(head + file.read(size - RECORD_HEAD))
            self._offset += size
        return _newest(records)


class _Rows(_Growth):
    """A table of Lightning's: rows are added, and it is written anew if it gets another column."""

    def __init__(self) -> None:
        super().__init__()
        self._names = b""

    def is_other(self, file: BinaryIO, status: "os.stat_result") -> bool:
        """Return whether the table was written anew."""
        file.seek(0)
        return super().is_other(file, status) or file.readline(MAX_RECORD_BYTES) != self._names

    def read(self, file: BinaryIO, status: "os.stat_result") -> bytes:
        """Return the new whole rows; at the beginning of the table with the names of its columns."""
        names = b""
        if self._offset == 0:
            file.seek(0)
            names = file.readline(MAX_RECORD_BYTES)
            if not names.endswith(b"\n"):
                return b""
            self._names, self._offset = names, len(names)
        self._offset = max(self._offset, status.st_size - 16 * MAX_SENT_BYTES)
        file.seek(self._offset)
        rows = file.read(status.st_size - self._offset).splitlines(keepends=True)
        if rows and not rows[-1].endswith(b"\n"):
            rows.pop()
        self._offset += sum(map(len, rows))
        return names + _newest(rows)


class _State(_Growth):
    """A document that is written anew each time."""

    def is_other(self, file: BinaryIO, status: "os.stat_result") -> bool:  # noqa: ARG002
        """Return whether it was written anew."""
        return (status.st_ino, status.st_mtime_ns) != (self._inode, self._offset)

    def read(self, file: BinaryIO, status: "os.stat_result") -> bytes:
        """Return the document, if it is another and not too large."""
        if self._offset == status.st_mtime_ns or status.st_size > MAX_STATE_BYTES:
            return b""
        self._offset = status.st_mtime_ns
        return file.read(status.st_size)


_KINDS = {"TensorBoard": _Events, "Lightning": _Rows, "Trainer": _State}


def _newest(parts: List[bytes]) -> bytes:
    """Return the last parts, up to MAX_SENT_BYTES together."""
    size, first = 0, len(parts)
    while first and size + len(parts[first - 1]) <= MAX_SENT_BYTES:
        first -= 1
        size += len(parts[first])
    return b"".join(parts[first:])
