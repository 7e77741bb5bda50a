"""Datasets on a machine: their folders, and their download, once for all ranks of the machine.

The ranks of a machine share a lock on a file next to the data, as they may not have met yet. A dataset is downloaded
to a folder of its own, and its files are then moved to their places: files in place are complete.
"""

import http.client
import os
import shutil
import socket
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
    """Return the folder of the datasets on this machine."""
    return Path(data_dir(options, environ)).expanduser()


def data_dir(options: Options, environ: Mapping[str, str] = os.environ) -> str:
    """Return the folder of the datasets, `~` being each node's own: the option, else the variable, else a cache."""
    return options.data_dir or environ.get("GPUCTL_DATA_DIR") or "~/.cache/gpuctl/data"


def ensure_downloaded(
    name: str,
    folder: Path,
    *,
    missing: Callable[[Path], list[str]],
    download: Callable[[Path], object],
    allowed: bool,
    wait_s: float = WAIT_S,
) -> None:
    """Return when no file of the dataset is missing in `folder`. Raises MissingData with the files to put there.

    `missing` returns the files that a folder lacks, relative to it; `download` puts them all into the folder that it
    gets. It runs at most once at a time on this machine, and not at all if another process was faster, or if it is
    not allowed. BadEnvironment of `download` is raised as MissingData.
    """
    lacking = missing(folder)
    if not lacking:
        return
    if not allowed:
        raise MissingData(f"{_missing_sentence(name, folder, lacking)}, or train without --no-download.")
    import filelock  # torch brings it along

    lock = filelock.FileLock(folder / f".{name}.lock", timeout=wait_s)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock.acquire(poll_interval=POLL_S):
            if lacking := missing(folder):
                print(f"downloading {name} to {folder}, once on this machine", flush=True)
                _download(folder / f".{name}.part", folder, lacking, download)
    except filelock.Timeout as error:
        raise MissingData(
            f"Waited {wait_s:g} s for another process on this machine that downloads: it holds {lock.lock_file}. "
            "If it hangs, end it and start again."
        ) from error
    except (OSError, RuntimeError, http.client.HTTPException, BadEnvironment) as error:
        # In the last line torchvision says what went wrong with the last mirror.
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1].rstrip(".")
        raise MissingData(
            f"{_missing_sentence(name, folder, lacking, f', and could not be downloaded ({reason})')}."
        ) from error


def _download(part: Path, folder: Path, names: list[str], download: Callable[[Path], object]) -> None:
    """Download into `part`, and move the files of these names from there to `folder`."""
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    try:
        part.mkdir()
        with _socket_timeout(SILENCE_S):
            download(part)
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (part / name).replace(folder / name)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    """Make Python's sockets fail after `seconds` without a byte; torchvision sets no such limit."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _missing_sentence(name: str, folder: Path, lacking: list[str], why: str = "") -> str:
    return f"{name} is not in {folder} on this machine{why}. Put these files there: {', '.join(lacking)}"
