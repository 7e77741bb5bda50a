"""Files that a node sends, taken in without letting anything the node says reach outside one folder."""

import hashlib
import os
import secrets
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from remote.errors import BadAnswer

MAX_DEPTH = 32
MAX_NAMES = 1_000_000
"""Files that one node may send in all."""
MAX_ARRIVING = 64
"""Files that it may have begun and not ended; ours sends one after the other."""
READ_AGAIN_BYTES = 16 * 1024**2
"""Of a file of up to this size the digest is also taken of what lies on the disk; of a larger one its size is."""


def plain_parts(path: object) -> list[str]:
    """The components of a relative path that a node sent. Raises BadAnswer for anything but plain names."""
    parts = path.split("/") if isinstance(path, str) else []
    if not 0 < len(parts) <= MAX_DEPTH or not all(map(_is_plain, parts)):
        raise BadAnswer(f"the name {path!r} is not a plain relative path")
    return parts


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()


def _is_plain(name: str) -> bool:
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can hold and no file's name can
        return False
    return name not in ("", ".", "..") and "\0" not in name and size <= 255


@dataclass
class _Arriving:
    """A file that is on its way."""

    temporary: Path
    target: Path
    digest: Any
    size: int = 0


class FileReceiver:
    """Files that come in chunks: each is written next to its place and renamed when it is whole.

    A file that can't be taken (a hostile name, damage) is refused alone, and named in `refused`. The same holds for
    files over `max_bytes`, whatever the node was asked for: what lies here of all that came stays within them,
    twice over while files replace others.
    """

    def __init__(self, root: Path, *, max_bytes: int | None = None) -> None:
        self.root = root
        self.max_bytes = max_bytes
        self.files = 0
        self.bytes = 0
        self.refused: dict[str, str] = {}
        """Name as the node sent it → why it was not taken."""
        self._arriving: dict[str, _Arriving] = {}
        self._whole: dict[str, int] = {}
        """Name → bytes of the file in its place, also from before a connection was lost."""
        self._names: dict[str, str] = {}
        """Name that disks which ignore case or accents' form compare → the first name that came."""
        self._counted = 0
        """Bytes that count for `max_bytes`: of each file the bytes in its place, or the received ones if these are
        more."""
        self._begun = 0
        self._token = secrets.token_hex(4)
        """In the names of files in transfer: several receivers, also of one process, may share a folder."""
        self._closed = False
        self._lock = Lock()

    def chunk(self, path: str, offset: int, body: bytes) -> None:
        """Take a chunk; chunks of one file come in order."""
        with self._lock:
            file = self._file(path)
            if file is None:
                return
            if offset != file.size:
                self._refuse(path, "it came out of order")
                return
            before = self._count(path)
            file.size += len(body)
            self._counted += self._count(path) - before
            if self.max_bytes is not None and self._counted > self.max_bytes:
                self._refuse(path, f"over the limit of {self.max_bytes} bytes")
                return
            with file.temporary.open("ab") as stream:
                stream.write(body)
            file.digest.update(body)

    def complete(self, path: str, expected_bytes: int, sha256: str, mode: int) -> None:
        """The file is whole: check it and put it in its place."""
        with self._lock:
            file = self._file(path)
            if file is None:
                return
            if file.size != expected_bytes or file.digest.hexdigest() != sha256 or not _on_disk(file):
                self._refuse(path, "it arrived damaged")
                return
            if file.target.is_dir():
                self._refuse(path, "it has the name of a folder")
                return
            other = self._names.get(_folded(path), path)
            if other != path and file.target.exists() and file.target.samefile(self.root / other):
                self._refuse(path, f"on this disk its name is that of {other}")
                return
            file.temporary.chmod(0o700 if mode & 0o100 else 0o600)
            file.temporary.replace(file.target)
            self._counted += file.size - self._count(path)
            self._whole[path] = file.size
            self._names.setdefault(_folded(path), path)
            del self._arriving[path]
            self.files += 1
            self.bytes += file.size

    def begin_again(self) -> None:
        """Forget refused and interrupted files: after a lost connection all files are sent once more."""
        self.discard()
        self.refused.clear()
        self.files = self.bytes = 0

    def discard(self) -> None:
        """Remove what never became whole."""
        with self._lock:
            for path in list(self._arriving):
                self._drop(path)

    def close(self) -> None:
        """Remove what never became whole, and take nothing more: what another thread still brings is ignored."""
        self._closed = True
        self.discard()

    def _refuse(self, path: str, why: str) -> None:
        self.refused[path] = why
        if path in self._arriving:
            self._drop(path)

    def _drop(self, path: str) -> None:
        before = self._count(path)
        self._arriving.pop(path).temporary.unlink(missing_ok=True)
        self._counted += self._count(path) - before

    def _count(self, path: str) -> int:
        arriving = self._arriving[path].size if path in self._arriving else 0
        return max(arriving, self._whole.get(path, 0))

    def _file(self, path: str) -> _Arriving | None:
        """The file on its way, begun if it is new; `None` where it is refused, or nothing is taken any more."""
        if self._closed or path in self.refused:
            return None
        if path not in self._arriving:
            if self._begun + len(self.refused) >= MAX_NAMES:
                raise BadAnswer(f"it sent more than {MAX_NAMES} files")
            try:
                self._arriving[path] = self._begin(path)
            except (BadAnswer, OSError) as error:
                self._refuse(path, str(error))
                return None
        return self._arriving[path]

    def _begin(self, path: str) -> _Arriving:
        parts = plain_parts(path)
        if len(self._arriving) >= MAX_ARRIVING:
            raise BadAnswer("it was begun before too many others had ended")
        folder = self.root
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in parts[:-1]:
            folder = folder / part
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                raise BadAnswer("its path goes through something that is no folder")
            folder.mkdir(mode=0o700, exist_ok=True)
        self._begun += 1
        temporary = folder / f".incoming-{os.getpid()}-{self._token}-{self._begun}"
        temporary.touch(mode=0o600, exist_ok=False)
        return _Arriving(temporary=temporary, target=folder / parts[-1], digest=hashlib.sha256())


def _on_disk(file: _Arriving) -> bool:
    """Return whether the content on the disk is the content that was received."""
    try:
        with file.temporary.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size != file.size:
                return False
            if file.size > READ_AGAIN_BYTES:
                return True
            return hashlib.file_digest(stream, "sha256").digest() == bytes(file.digest.digest())
    except FileNotFoundError:
        return False
