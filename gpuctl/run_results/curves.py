"""The losses of a script that tells none in its metrics: from TensorBoard's event files, else from lines of its log.

Both are guesses at what a script means, and are told with where they are from. The files are anybody's: nothing here
raises on what is in them.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from inventories.disk.store import RunFolder
from inventories.outputs import OutputFile
from inventories.run import TrainSummary
from remote.shared.constants import RANK_LOG

POINTS = 64
"""Of a longer curve so many are kept, its first and last among them."""
LOG_BYTES = 16 * 1000**2
"""Of a log's end."""
LINE_LENGTH = 1000
EVENTS = 200_000
"""Of one event file."""
EVENT_FILES = 4
"""The largest of the first node that has any."""

_NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|nan|inf)(?![\w%])"
_LOSS = re.compile(
    rf"(?<![a-z])((?:[a-z]{{1,20}}[ _/.-])?)loss(?: is)?[\"'\])]{{0,2}}[ \t]*[:=|]?[ \t]*(?:tensor\()?{_NUMBER}",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"\bepoch\W{0,4}(\d{1,9})", re.IGNORECASE)
_STEP = re.compile(r"\b(?:step|iter|iteration)\W{0,4}(\d{1,12})", re.IGNORECASE)
_HELD_OUT = re.compile(r"val|eval|test|dev", re.IGNORECASE)
_OF_HELD_OUT = re.compile(r"(?:^|[:\])])\s*(?:val|eval|test)", re.IGNORECASE)
"""In what comes before the loss: the line is about held-out data."""

Curve: TypeAlias = dict[int, float]
"""Epoch or step → loss, in their order."""
T = TypeVar("T")


def with_curve(train: TrainSummary, folder: RunFolder, outputs: Sequence[OutputFile]) -> TrainSummary:
    """A script's summary with the losses that its files tell, where it told none itself."""
    if train.loss:
        return train
    if by_step := losses_from_events(_event_files(folder, outputs)):
        return _with(train, by_step, "TensorBoard", "step")
    by_epoch, by_step = losses_from_log(_last_lines(folder.path / RANK_LOG.format(0)))
    return _with(train, by_epoch, "log", "epoch") if by_epoch else _with(train, by_step, "log", "step")


def _with(
    train: TrainSummary,
    curve: Curve,
    loss_from: Literal["TensorBoard", "log"],
    loss_by: Literal["epoch", "step"],
) -> TrainSummary:
    if not curve:
        return train
    loss, places = tuple(curve.values()), tuple(curve)
    return replace(train, loss=loss, loss_at=places, loss_from=loss_from, loss_by=loss_by)


def losses_from_log(lines: Iterable[str]) -> tuple[Curve, Curve]:
    """The last training loss of each epoch that lines name, and those of the steps; both empty where none does."""
    epochs: dict[int, float] = {}
    steps: dict[int, float] = {}
    for line in lines:
        loss = _loss_in(line)
        if loss is None:
            continue
        if epoch := _EPOCH.search(line):
            epochs[int(epoch[1])] = loss
        elif step := _STEP.search(line):
            steps[int(step[1])] = loss
    return _in_order(epochs), _in_order(steps)


def _in_order(losses: Mapping[int, float]) -> Curve:
    return {place: losses[place] for place in thinned(sorted(losses))}


def _loss_in(line: str) -> float | None:
    """The first loss in a line that is not of held-out data."""
    found = next((match for match in _LOSS.finditer(line) if not _HELD_OUT.match(match[1])), None)
    if found is None:
        return None
    trained = found[1].lower().startswith("train")
    return float(found[2]) if trained or not _OF_HELD_OUT.search(line[: found.start()]) else None


def thinned(points: Sequence[T]) -> tuple[T, ...]:
    """At most POINTS of them, evenly, with the first and the last."""
    if len(points) <= POINTS:
        return tuple(points)
    return tuple(points[round(at * (len(points) - 1) / (POINTS - 1))] for at in range(POINTS))


def _last_lines(path: Path) -> Iterator[str]:
    """The lines at a log's end; of a bar that writes over itself each state is one."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            text = file.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return
    for line in re.split(r"[\r\n]+", text):
        yield line[:LINE_LENGTH]


def _event_files(folder: RunFolder, outputs: Sequence[OutputFile]) -> list[Path]:
    """TensorBoard's files that were brought, of the first node that wrote any; the largest first."""
    there = [
        file for file in outputs if file.brought and "events.out.tfevents." in file.path.rpartition("/")[2]
    ]
    first = [file for file in there if file.node == there[0].node]
    largest = sorted(first, key=lambda file: (-file.bytes, file.path))[:EVENT_FILES]
    paths = [folder.outputs_path / file.node / file.path for file in largest]
    return [path for path in paths if path.is_file()]


def losses_from_events(files: Sequence[Path]) -> Curve:
    """The curve of the training loss in the first file that has one; empty where none has, or nothing reads them."""
    for path in files:
        curves = _curves_in(path)
        tags = sorted(
            (tag for tag in curves if _is_loss(tag)), key=lambda tag: ("train" not in tag.lower(), tag)
        )
        if tags:
            return _in_order(curves[tags[0]])
    return {}


def _is_loss(tag: str) -> bool:
    return "loss" in tag.lower() and not _HELD_OUT.search(tag)


def _curves_in(path: Path) -> dict[str, dict[int, float]]:
    """The curves of an event file: tag → step → value. Empty where TensorBoard's package is not installed."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.compat import tf
        from tensorboard.util.tensor_util import make_ndarray
    except (ImportError, TypeError):  # TypeError: an old tensorboard beside a newer protobuf
        return {}
    from google.protobuf.message import DecodeError

    curves: dict[str, dict[int, float]] = {}
    try:
        for event in itertools.islice(EventFileLoader(str(path)).Load(), EVENTS):
            for value in event.summary.value:
                # Some writers say only at a curve's first point what it is.
                if value.tag in curves or value.metadata.plugin_data.plugin_name == "scalars":
                    point = float(make_ndarray(value.tensor).reshape(-1)[0])
                    curves.setdefault(value.tag, {})[event.step] = point
    except (OSError, ValueError, TypeError, IndexError, DecodeError, tf.errors.OpError):
        pass  # a torn or foreign file: what was read until there counts
    return {tag: curve for tag, curve in curves.items() if any(map(math.isfinite, curve.values()))}
