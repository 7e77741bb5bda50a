"""Losses of a script without losses in its metrics: from files that it wrote, otherwise from lines of its log.

The files are TensorBoard's, Lightning's, and Hugging Face's Trainer's. All are guesses, and are shown with their
source. Any program may have written these files and the log: nothing here raises on their content.
"""

import csv
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from gpuctl.run_results.log_lines import HELD_OUT, LogLine
from gpuctl.run_results.metrics import LossCurve, thinned
from inventories.runs.outputs import OutputFile
from inventories.runs.run import LossSource

Curve = dict[int, float]
"""Step → loss."""

EVENTS = ROWS = 200_000
"""Of one file."""
STATE_BYTES = 64 * 1000**2
FILES = 4
"""The largest of the first node that has any."""
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
    for source, (name, read) in _READERS.items():
        for path in _largest(folder, [file for file in outputs if file.brought and name.search(file.path)]):
            if losses := read(path):
                return source, losses
    return None


def _largest(folder: Path, files: Sequence[OutputFile]) -> list[Path]:
    """The largest files of the first node that wrote any, the largest first."""
    first = [file for file in files if file.node == files[0].node]
    largest = sorted(first, key=lambda file: (-file.bytes, file.path))[:FILES]
    paths = [folder / file.node / file.path for file in largest]
    return [path for path in paths if path.is_file()]


def _training_loss(curves: dict[str, Curve]) -> Curve:
    """Return the curve of the training loss among several. Empty: no such curve."""
    finite = [name for name, curve in curves.items() if any(map(math.isfinite, curve.values()))]
    names = (name for name in finite if "loss" in name.lower() and not HELD_OUT.search(name))
    first = min(names, key=lambda name: ("train" not in name.lower(), name), default=None)
    return {} if first is None else curves[first]


def _from_events(path: Path) -> Curve:
    """The training loss in an event file. Empty also where TensorBoard's package is not installed."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.compat import tf
        from tensorboard.util.tensor_util import make_ndarray
    except (ImportError, TypeError):  # TypeError: an old tensorboard with a newer protobuf
        return {}
    from google.protobuf.message import DecodeError

    curves: dict[str, Curve] = {}
    try:
        for event in itertools.islice(EventFileLoader(str(path)).Load(), EVENTS):
            for value in event.summary.value:
                # Some writers state the plugin at a curve's first point only.
                if value.tag in curves or value.metadata.plugin_data.plugin_name == "scalars":
                    point = float(make_ndarray(value.tensor).reshape(-1)[0])
                    curves.setdefault(value.tag, {})[event.step] = point
    except (OSError, ValueError, TypeError, IndexError, DecodeError, tf.errors.OpError):
        pass  # a torn or foreign file: the points read so far count
    return _training_loss(curves)


def _from_csv(path: Path) -> Curve:
    """Return the training loss in a file of Lightning's CSVLogger: a column a name, empty cells for other names.

    A name logged at steps and at epochs has two columns: that of the epochs counts.
    """
    curves: dict[str, Curve] = {}
    try:
        with path.open(newline="", errors="replace") as file:
            for row in itertools.islice(csv.DictReader(file, restval=""), ROWS):
                extra = row.pop(None, None)  # cells beyond the columns
                if extra is None and "step" in row:
                    step = int(row["step"])
                    for name in (name for name, text in row.items() if text):
                        curves.setdefault(name, {})[step] = float(row[name])
    except (OSError, ValueError, csv.Error):
        pass  # a torn or foreign file: the points read so far count
    return _training_loss(curves)


def _from_trainer_state(path: Path) -> Curve:
    """Return the training loss in the state of Hugging Face's Trainer, which lies in its checkpoints."""
    try:
        with path.open(errors="replace") as file:
            history = json.loads(file.read(STATE_BYTES))["log_history"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return {
        entry["step"]: float(entry["loss"])
        for entry in (history if isinstance(history, list) else ())
        if isinstance(entry, dict)
        and isinstance(entry.get("step"), int)
        and isinstance(entry.get("loss"), int | float)
    }


_READERS: dict[LossSource, tuple[re.Pattern[str], Callable[[Path], Curve]]] = {
    "TensorBoard": (re.compile(r"events\.out\.tfevents\.[^/]*$"), _from_events),
    "Lightning": (re.compile(r"(?:^|/)metrics\.csv$"), _from_csv),
    "Trainer": (re.compile(r"(?:^|/)trainer_state\.json$"), _from_trainer_state),
}
"""By the names of their files, in the order in which they count."""


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
