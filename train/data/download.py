"""Where datasets lie on a machine, and how one gets there: downloaded once, however many ranks ask at once.

The ranks of a machine agree by a lock on a file beside the data, so that they need not have met yet. A dataset is
downloaded into a folder of its own and its files are then moved to their places, so that what is there is whole.
"""

import fcntl
import http.client
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from train.errors import BadEnvironment, MissingData
from train.options import Options

WAIT_S = 1800.0
"""For another process of this machine to download a dataset."""
SILENCE_S = 30.0
"""Of a server, after which a download has failed."""
POLL_S = 0.1


def data_folder(options: Options, environ: Mapping[str, str] = os.environ) -> Path:
    """Where datasets lie on this machine."""
    return Path(data_dir(options, environ)).expanduser()


def data_dir(options: Options, environ: Mapping[str, str] = os.environ) -> str:
    """Where datasets lie, `~` being each node's own: the option's folder, else the environment's, else a cache."""
    return options.data_dir or environ.get("GPUCTL_DATA_DIR") or "~/.cache/gpuctl/data"


def obtain(
    name: str,
    folder: Path,
    *,
    missing: Callable[[Path], list[str]],
    download: Callable[[Path], None],
    allowed: bool,
    wait_s: float = WAIT_S,
) -> None:
    """Return when no file of the dataset is missing in `folder`; else raise MissingData, saying what to put there.

    `missing` gives the files that a folder lacks, relative to it; `download` puts them all into a folder that it is
    given. It runs at most once at a time on this machine, and not at all if another process was faster, or if it is
    not allowed. Raises BadEnvironment if `download` does.
    """
    lacking = missing(folder)
    if not lacking:
        return
    if not allowed:
        raise MissingData(f"{_missing_sentence(name, folder, lacking)}, or train without --no-download.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f".{name}.lock", wait_s=wait_s):
            if lacking := missing(folder):
                print(f"downloading {name} to {folder}, once on this machine", flush=True)
                _download(folder / f".{name}.part", folder, lacking, download)
    except (OSError, RuntimeError, http.client.HTTPException, BadEnvironment) as error:
        raise MissingData(
            f"{_missing_sentence(name, folder, lacking, f', and could not be downloaded ({_brief(error)})')}."
        ) from error


def _download(part: Path, folder: Path, names: list[str], download: Callable[[Path], None]) -> None:
    """Download into `part`, and move the files of those names from there to `folder`."""
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    try:
        part.mkdir()
        with _impatient(SILENCE_S):
            download(part)
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (part / name).replace(folder / name)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def locked(path: Path, *, wait_s: float) -> Iterator[None]:
    """Hold the lock on that file, which is made if need be. The lock of a process that is killed goes with it.

    Raises MissingData if another process holds it for longer than `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise MissingData(
                        f"Another process on this machine has been downloading for {wait_s:g} s: it holds {path}. "
                        "Look whether it hangs, end it, and start again."
                    ) from None
                time.sleep(POLL_S)
        yield


@contextmanager
def _impatient(seconds: float) -> Iterator[None]:
    """Python's sockets fail after so many seconds without a byte; torchvision sets no such limit."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _missing_sentence(name: str, folder: Path, lacking: list[str], why: str = "") -> str:
    return f"{name} is not in {folder} on this machine{why}. Put these files there: {', '.join(lacking)}"


def _brief(error: Exception) -> str:
    """The last line, where torchvision says what went wrong with the last mirror."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].rstrip(".")
