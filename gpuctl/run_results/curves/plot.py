"""Losses of a script without losses in its metrics: from files that it wrote, otherwise from lines of its log.

Both are guesses, and are shown with their source. Any program may have written the log: nothing here raises on it.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from gpuctl.run_results.curves.loss_files import Curve, losses_from_files
from gpuctl.run_results.curves.script_losses import thinned
from inventories.disk.store import RunFolder
from inventories.runs.outputs import OutputFile
from inventories.runs.run import LossSource, TrainSummary
from remote.shared.constants import RANK_LOG

FIRST_BYTES, LOG_BYTES = 1000**2, 16 * 1000**2
"""Of a log's beginning and end."""
LINE_LENGTH = 1000

_NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|nan|inf)(?![\w%])"
_LOSS = re.compile(
    r"(?<![a-z])((?:[a-z]{1,20}[ _/.-])?)loss(?: is)?[\"'\])]{0,2}[ \t]*[:=|]?[ \t]*(?:tensor\(|['\"])?"
    + _NUMBER,
    re.IGNORECASE,
)
_EPOCH = re.compile(r"\bepoch\W{0,4}(\d{1,9})", re.IGNORECASE)
_STEP = re.compile(r"\b(?:step|iter|iteration)\W{0,4}(\d{1,12})", re.IGNORECASE)
_HELD_OUT = re.compile(r"val|eval|test|dev", re.IGNORECASE)
_OF_HELD_OUT = re.compile(r"(?:^|[:\])])\s*(?:val|eval|test)", re.IGNORECASE)
"""In what comes before the loss: the line is about held-out data."""


def with_curve(train: TrainSummary, folder: RunFolder, outputs: Sequence[OutputFile]) -> TrainSummary:
    """Return a script's summary with the losses in its files, unless its metrics have losses."""
    if train.loss:
        return train
    if (curve := losses_from_files(folder.outputs_path, outputs)) is not None:
        source, by_step = curve
        return _with(train, by_step, source, "step")
    by_epoch, by_step = losses_from_log(_lines(folder.path / RANK_LOG.format(0)))
    return _with(train, by_epoch, "log", "epoch") if by_epoch else _with(train, by_step, "log", "step")


def _with(
    train: TrainSummary, curve: Curve, loss_from: LossSource, loss_by: Literal["epoch", "step"]
) -> TrainSummary:
    if not curve:
        return train
    places = thinned(sorted(curve))
    return replace(
        train,
        loss=tuple(curve[place] for place in places),
        loss_at=places,
        loss_from=loss_from,
        loss_by=loss_by,
    )


def losses_from_log(lines: Iterable[str]) -> tuple[Curve, Curve]:
    """Return the last training loss of each epoch in the lines, and the loss of each step. Empty: no line has one.

    Step numbers that start again are counted on.
    """
    epochs: dict[int, float] = {}
    steps: dict[int, float] = {}
    before = last = 0
    for line in lines:
        loss = _loss_in(line)
        if loss is None:
            continue
        if epoch := _EPOCH.search(line):
            epochs[int(epoch[1])] = loss
        elif step := _STEP.search(line):
            now = int(step[1])
            if now < last:
                before += last + 1
            last = now
            steps[before + now] = loss
    return epochs, steps


def _loss_in(line: str) -> float | None:
    """The first loss in a line that is not of held-out data."""
    match = next((match for match in _LOSS.finditer(line) if not _HELD_OUT.match(match[1])), None)
    if match is None:
        return None
    trained = match[1].lower().startswith("train")
    return float(match[2]) if trained or not _OF_HELD_OUT.search(line[: match.start()]) else None


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
    for line in re.split(r"[\r\n]+", text.decode(errors="replace")):
        yield line[:LINE_LENGTH]
