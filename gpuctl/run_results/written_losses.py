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
_HELD_OUT = re.compile(r"val|eval|test|dev", re.IGNORECASE)
_OF_HELD_OUT = re.compile(r"(?:^|[:\])])\s*(?:val|eval|test)", re.IGNORECASE)
"""In what comes before the loss: the line is about held-out data."""

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
    names = (name for name in finite if "loss" in name.lower() and not _HELD_OUT.search(name))
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
