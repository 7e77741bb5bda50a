"""Losses of a script without losses in its metrics: from files that it wrote, otherwise from lines of its log.

The files are TensorBoard's, Lightning's, and Hugging Face's Trainer's. All are guesses, and are shown with their
source. Any program may have written these files and the log: nothing here raises on their content.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from gpuctl.run_results.metrics import LossCurve, thinned
from gpuctl.run_results.written_files import Curve, WrittenFile, reader_of
from inventories.runs.outputs import OutputFile
from inventories.runs.result import LossSource
from remote.shared.log_lines import LogLine
from remote.shared.script_files import FILES, NAMES

PART_BYTES = 1000**2
"""Of a file that is read at once."""
FIRST_BYTES, LOG_BYTES = 1000**2, 16 * 1000**2
"""Of a log's beginning and end."""


def written_losses(log: Path, folder: Path, outputs: Sequence[OutputFile]) -> LossCurve:
    """Return the training loss in the files of `folder`/NODE/, otherwise in the first rank's log."""
    if (curve := losses_from_files(folder, outputs)) is not None:
        source, by_step = curve
        return _curve(by_step, source, "step")
    by_epoch, by_step = losses_from_log(_lines(log))
    return _curve(by_epoch, "log", "epoch") if by_epoch else _curve(by_step, "log", "step")


def _curve(losses: Curve, source: LossSource, by: Literal["epoch", "step"]) -> LossCurve:
    if not losses:
        return LossCurve()
    places = thinned(sorted(losses))
    return LossCurve(losses=tuple(losses[place] for place in places), places=places, source=source, by=by)


def losses_from_files(folder: Path, outputs: Sequence[OutputFile]) -> tuple[LossSource, Curve] | None:
    """Return the training loss in the files copied to `folder`/NODE/, and its source. `None`: no file has one."""
    for name in NAMES.values():
        files = [file for file in outputs if file.brought and name.search(file.path)]
        of_first_node = [file for file in files if file.node == files[0].node]
        for file in sorted(of_first_node, key=lambda file: (-file.bytes, file.path))[:FILES]:
            path = folder / file.node / file.path
            reader = reader_of(str(path)) if path.is_file() else None
            if reader is not None and (losses := _losses_in(path, reader)):
                return reader.source, losses
    return None


def _losses_in(path: Path, reader: WrittenFile) -> Curve:
    try:
        with path.open("rb") as file:
            while body := file.read(PART_BYTES):
                reader.feed(body)
    except OSError:
        pass  # the parts read so far count
    reader.end()
    return reader.losses


def losses_from_log(lines: Iterable[str]) -> tuple[Curve, Curve]:
    """Return the last training loss of each epoch in the lines, and the loss of each step. Empty: no line has one.

    Step numbers that start again are counted on.
    """
    epochs: dict[int, float] = {}
    steps: dict[int, float] = {}
    before = last = 0
    for line in (LogLine.of(text) for text in lines if "loss" in text.lower()):
        if line.loss is None:
            continue
        if line.epoch is not None:
            epochs[line.epoch] = line.loss
        elif line.step is not None:
            if line.step < last:
                before += last + 1
            last = line.step
            steps[before + line.step] = line.loss
    return epochs, steps


def _lines(path: Path) -> Iterator[str]:
    """The lines at a log's beginning and end; of a bar that writes over itself each state is one."""
    try:
        with path.open("rb") as file:
            skipped = max(0, path.stat().st_size - FIRST_BYTES - LOG_BYTES)
            first = file.read(FIRST_BYTES)
            file.seek(skipped, os.SEEK_CUR)
            text = first + (b"\n" if skipped else b"") + file.read(LOG_BYTES)
    except OSError:
        return
    yield from re.split(r"[\r\n]+", text.decode(errors="replace"))
