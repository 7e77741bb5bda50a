"""Files that an option names and a command writes, such as `--csv runs.csv`."""

import os
import shlex
from pathlib import Path

from gpuctl.errors import Failed, Usage


def check_file(path: Path) -> None:
    """Raise Usage for a file that can't be written: before the command does any work."""
    target = os.path.realpath(path)  # a link may lead to a file that does not exist yet
    folder = os.path.dirname(target)  # noqa: PTH120
    if os.path.isdir(target):  # noqa: PTH112 - never raises
        raise Usage(f"'{path}' is a folder. Name a file in it.")
    if os.path.isdir(folder):  # noqa: PTH112
        if not os.access(target if os.path.lexists(target) else folder, os.W_OK):
            raise Usage(f"'{path}' can't be written: permission denied. Name another file.")
        return
    if os.path.lexists(folder):
        raise Usage(f"'{folder}' is no folder, so '{path}' can't be written. Name another file.")
    raise Usage(
        f"There is no folder '{folder}' for {path.name}. Make it with `mkdir -p {shlex.quote(folder)}`, or name "
        "another file."
    )


def write_file(path: Path, data: bytes) -> None:
    """Write a file, in place of an earlier one. Raises Failed."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise Failed(f"'{path}' can't be written: {error.strerror}. Name another file.") from error
