"""The file of a text's tokens: written once on a machine, and mapped into memory by all ranks there.

It has the tokens, int32, and then their SHA-256, by which nodes tell that they have the same. Nobody but the user can
read it. Of a text that has changed only the newest tokens are kept.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from train.data.download import POLL_S
from train.errors import MissingData, NotWritten

STALLED_S = 300.0
"""For another process to write more of the file, before it counts as hung."""
DIGEST_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens of a text."""

    tokens: torch.Tensor
    """[n], int32, of the mapped file."""
    digest: str
    """Another one for other tokens."""


def load_tokens(
    folder: Path, source: str, version: str, tokens: Iterable[np.ndarray], *, stalled_s: float = STALLED_S
) -> Tokens:
    """Return the tokens, taken from the iterable only if their file does not exist yet.

    `source` names the text, `version` its content: the file of another version is removed. One process of the machine
    writes; the others wait as long as the file grows. Raises MissingData if it stops growing, NotWritten, and the
    iterable's errors.
    """
    path, part = folder / f"{source}-{version}.tokens", folder / f"{source}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        with contextlib.suppress(FileNotFoundError):
            return _mapped(path)
        # In a folder that nodes share, the text of another one may replace it until this one holds the lock.
        with lock(folder / f"{source}.lock", lambda: _size(part), stalled_s):
            if not path.exists():
                _make(path, part, tokens, earlier=folder.glob(f"{source}-*.tokens"))
            return _mapped(path)
    except OSError as error:
        raise NotWritten(
            f"The tokens of the text can't be written to {folder}: {error.strerror}. Make room or give access "
            "there, or name another folder in GPUCTL_DATA_DIR."
        ) from error


def _mapped(path: Path) -> Tokens:
    with path.open("rb") as file:
        end = file.seek(-DIGEST_BYTES, os.SEEK_END)
        digest = file.read().hex()
        tokens = np.memmap(file, dtype=np.int32, mode="c", shape=(end // 4,))
    return Tokens(tokens=torch.from_numpy(tokens), digest=digest)


def _make(path: Path, part: Path, tokens: Iterable[np.ndarray], *, earlier: Iterable[Path]) -> None:
    """Write the file, and remove the earlier ones."""
    part.unlink(missing_ok=True)  # of a process that was killed
    try:
        digest = hashlib.sha256()
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for some in tokens:
                content = some.tobytes()
                digest.update(content)
                file.write(content)
            file.write(digest.digest())
        for earlier_path in earlier:
            earlier_path.unlink(missing_ok=True)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def lock(path: Path, written: Callable[[], int], stalled_s: float) -> Iterator[None]:
    """Hold the lock. Waits for its holder while `written` changes. Raises MissingData."""
    import filelock  # torch brings it along

    held = filelock.FileLock(path)
    before = written()
    while True:
        try:
            held.acquire(timeout=stalled_s, poll_interval=POLL_S)
            break
        except filelock.Timeout as error:
            now = written()
            if now == before:
                raise MissingData(
                    f"Another process on this machine makes tokens of the text, and has written none for "
                    f"{stalled_s:g} s: it holds {path}. If it hangs, end it and start again."
                ) from error
            before = now
    try:
        yield
    finally:
        held.release()


def _size(path: Path) -> int:
    """Return its size; -1: it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
