"""Files that a node sends, taken in without letting anything the node says reach outside one folder."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote.errors import BadAnswer

MAX_DEPTH = 32


def plain_parts(path: str) -> list[str]:
    """The components of a relative path that a node sent. Raises BadAnswer for anything but plain names."""
    parts = path.split("/")
    bad = any(part in ("", ".", "..") or "\0" in part or len(os.fsencode(part)) > 255 for part in parts)
    if bad or len(parts) > MAX_DEPTH:
        raise BadAnswer(f"the name {path!r} is not a plain relative path")
    return parts


@dataclass
class _Arriving:
    """A file that is on its way."""

    temporary: Path
    target: Path
    digest: Any
    size: int = 0


class Intake:
    """Files that come in chunks: each is written beside its place and renamed when it is whole.

    A file that can't be taken (a hostile name, damage) is refused by itself, and named in `refused`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = 0
        self.bytes = 0
        self.refused: dict[str, str] = {}
        """Name as the node sent it → why it was not taken."""
        self._arriving: dict[str, _Arriving] = {}

    def chunk(self, path: str, offset: int, body: bytes) -> None:
        """Take a chunk; chunks of one file come in order."""
        file = self._file(path)
        if file is None:
            return
        if offset != file.size:
            self._refuse(path, "it came out of order")
            return
        with file.temporary.open("ab") as stream:
            stream.write(body)
        file.digest.update(body)
        file.size += len(body)

    def complete(self, path: str, expected_bytes: int, sha256: str, mode: int) -> None:
        """The file is whole: check it and put it in its place."""
        file = self._file(path)
        if file is None:
            return
        if file.size != expected_bytes or file.digest.hexdigest() != sha256:
            self._refuse(path, "it arrived damaged")
            return
        if file.target.is_dir():
            self._refuse(path, "it has the name of a folder")
            return
        file.temporary.chmod(0o700 if mode & 0o100 else 0o600)
        file.temporary.replace(file.target)
        del self._arriving[path]
        self.files += 1
        self.bytes += file.size

    def begin_again(self) -> None:
        """Forget what was refused or cut off: after a lost connection everything is sent once more."""
        self.discard()
        self.refused.clear()
        self.files = self.bytes = 0

    def discard(self) -> None:
        """Remove what never became whole."""
        for file in self._arriving.values():
            file.temporary.unlink(missing_ok=True)
        self._arriving.clear()

    def _refuse(self, path: str, why: str) -> None:
        self.refused[path] = why
        file = self._arriving.pop(path, None)
        if file is not None:
            file.temporary.unlink(missing_ok=True)

    def _file(self, path: str) -> _Arriving | None:
        """The file on its way, begun if it is new; None where it is refused."""
        if path in self.refused:
            return None
        if path not in self._arriving:
            try:
                self._arriving[path] = self._begin(path)
            except (BadAnswer, OSError) as error:
                self._refuse(path, str(error))
                return None
        return self._arriving[path]

    def _begin(self, path: str) -> _Arriving:
        parts = plain_parts(path)
        folder = self.root
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in parts[:-1]:
            folder = folder / part
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                raise BadAnswer("its path goes through something that is no folder")
            folder.mkdir(mode=0o700, exist_ok=True)
        temporary = folder / f".incoming-{os.getpid()}-{len(self._arriving)}"
        temporary.unlink(missing_ok=True)
        temporary.touch(mode=0o600)
        return _Arriving(temporary=temporary, target=folder / parts[-1], digest=hashlib.sha256())
