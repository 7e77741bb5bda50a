"""A file of JSON lines to which intents are written before they are acted on."""

import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inventories import codec
from inventories.disk import files
from inventories.errors import CorruptFile


class Journal:
    """Planned and completed actions, in order.

    Each line is on the disk before `append` returns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: str, **fields: object) -> None:
        """Write one line: `at` (ISO 8601, UTC), `event` and the fields. Makes the file and its folder.

        A line that a crash cut off is removed first: no caller knows that line.
        """
        assert "at" not in fields, "the journal sets `at` itself"
        record = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
        line = json.dumps(codec.plain(record), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        if not self.path.parent.exists():
            files.private_dir(self.path.parent)
        with files.sentence("write", self.path):
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                before = os.pread(handle, os.fstat(handle).st_size, 0)
                os.ftruncate(handle, _whole_length(before))
                while line:
                    line = line[os.write(handle, line) :]
                os.fsync(handle)
                if not before:
                    files.sync_folder(self.path.parent)
            finally:
                os.close(handle)

    def read(self) -> list[dict[str, Any]]:
        """Return all lines, oldest first; an empty list without a file.

        A torn last line is ignored. Raises CorruptFile where another line can't be read.
        """
        data = files.read_bytes(self.path) or b""
        records = []
        for number, line in enumerate(data[: _whole_length(data)].split(b"\n")[:-1], start=1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict) or not isinstance(record.get("event"), str):
                raise CorruptFile(
                    f"'{self.path}' can't be used: line {number} is no journal entry. Remove that line, and "
                    "compare `gpuctl status` with what your provider shows."
                )
            records.append(record)
        return records


def _whole_length(data: bytes) -> int:
    """Return how many bytes of the file are whole lines; the rest is torn."""
    return data.rfind(b"\n") + 1
