"""Pictures as files: what they can be, and how they are written. matplotlib is imported where one is drawn."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from gpuctl.errors import Failed, Usage
from gpuctl.output_files import check_file, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOTS = (".png", ".svg", ".pdf")


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
