"""Files that an option names and a command writes, such as `--csv runs.csv`, and pictures as such files.

matplotlib is imported where a picture is drawn.
"""

import io
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from gpuctl.errors import Failed, Usage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOTS = (".png", ".svg", ".pdf")


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


def check_picture(path: Path) -> None:
    """Raise Usage for a file that is no picture or can't be written, Failed without matplotlib: before any work."""
    if path.suffix.lower() not in PLOTS:
        raise Usage(f"A plot can be one of {', '.join(PLOTS)}, but '{path}' is none of them.")
    check_file(path)
    new_figure(1, 1)


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches. Raises Failed without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Failed(
            "A plot needs matplotlib, which is not installed. Install it with: pip install matplotlib"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", path: Path) -> None:
    """Write it, in the kind that the file's ending names. Raises Failed where the file can't be written."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.lower()[1:], dpi=120)
    write_file(path, drawn.getvalue())
