"""Training losses in files of a script's libraries: TensorBoard's, Lightning's, and Hugging Face's Trainer's.

A file is read part by part, so a result and the live view read it alike. Any program may have written it: nothing
here raises on its content.
"""

import csv
import json
import math
import struct
from typing import Any, TypeGuard

from inventories.runs.result import LossSource
from remote.shared.log_lines import HELD_OUT
from remote.shared.script_files import MAX_STATE_BYTES, NAMES, RECORD_HEAD, RECORD_TAIL

Curve = dict[int, float]
"""Step → loss."""

MAX_POINTS = 200_000
"""Of one file: with more, every second one is dropped."""
MAX_STEP = 10**12
MAX_RECORD_BYTES = 16 * 1000**2
"""Of a record or a row: a longer one is none, but the length in a torn file."""
SCALARS = "scalars"
"""TensorBoard's plugin for numbers."""


class WrittenFile:
    """A file, as far as its parts have come."""

    source: LossSource

    def feed(self, body: bytes) -> None:
        """Take the next part of the file. What can't be read ends it: the points read so far count."""
        raise NotImplementedError

    def end(self) -> None:
        """Take the end of the file."""

    @property
    def losses(self) -> Curve:
        """Return the training loss. Empty: the file has none, or is not read yet."""
        raise NotImplementedError


def reader_of(path: str) -> WrittenFile | None:
    """Return a reader for a file, by its name. `None`: no library's file has this name."""
    kinds = {kind.source: kind for kind in (EventFile, TableFile, StateFile)}
    return next((kinds[source]() for source in kinds if NAMES[source].search(path)), None)


class _Curves(WrittenFile):
    """A file with several curves."""

    def __init__(self) -> None:
        self._curves: dict[str, Curve] = {}
        self._rest = b""
        self._points = 0
        self._is_over = False

    def feed(self, body: bytes) -> None:
        """Read the whole points; the rest of the part waits for the next."""
        if not self._is_over:
            try:
                self._rest = self._read(self._rest + body)
                self._is_over = len(self._rest) > MAX_RECORD_BYTES
            except (
                ImportError,
                AttributeError,
                ValueError,
                TypeError,
                IndexError,
                OverflowError,
                MemoryError,
                csv.Error,
            ):  # a torn or foreign file, or another version of TensorBoard's package
                self._is_over = True
            if self._is_over:
                self._rest = b""

    def _keep(self, name: str, step: int, point: float) -> None:
        """Keep a point of a curve. Of very many, the first is kept, and from the last every second."""
        if abs(step) > MAX_STEP:
            raise ValueError(f"{step} is no step")
        self._curves.setdefault(name, {})[step] = point
        self._points += 1
        if self._points >= MAX_POINTS:
            curves = {name: [*curve.items()] for name, curve in self._curves.items()}
            self._curves = {name: dict([*curve[:1], *curve[::-2][::-1]]) for name, curve in curves.items()}
            self._points = sum(map(len, self._curves.values()))
            if self._points > MAX_POINTS * 3 // 4:
                raise ValueError("too many curves")

    def _read(self, data: bytes) -> bytes:
        """Read the whole points of the data, and return the rest."""
        raise NotImplementedError

    @property
    def losses(self) -> Curve:
        """Return the curve of the training loss. Empty: no such curve."""
        finite = [name for name, curve in self._curves.items() if any(map(math.isfinite, curve.values()))]
        names = (name for name in finite if "loss" in name.lower() and not HELD_OUT.search(name))
        first = min(names, key=lambda name: ("train" not in name.lower(), name), default=None)
        return {} if first is None else self._curves[first]


class EventFile(_Curves):
    """A file of TensorBoard's events. Nothing in it is read where TensorBoard's package is not installed."""

    source = "TensorBoard"

    def _read(self, data: bytes) -> bytes:
        at = 0
        while len(data) - at >= RECORD_HEAD:
            begin = at + RECORD_HEAD
            length = struct.unpack("<Q", data[at : at + 8])[0]
            if length > MAX_RECORD_BYTES:
                raise ValueError(f"{length} bytes are no record")
            end = begin + length
            if end + RECORD_TAIL > len(data):
                break
            self._add(data[begin:end])
            at = end + RECORD_TAIL
        return data[at:]

    def _add(self, record: bytes) -> None:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event

        try:
            event = Event.FromString(record)
        except DecodeError as error:
            raise ValueError(str(error)) from error
        for value in event.summary.value:
            if value.HasField("simple_value"):
                point = value.simple_value
            # Some writers state the plugin at a curve's first point only.
            elif value.tag in self._curves or value.metadata.plugin_data.plugin_name == SCALARS:
                if math.prod(dim.size for dim in value.tensor.tensor_shape.dim) != 1:
                    continue  # not one number, and perhaps as large as its shape says
                from tensorboard.util.tensor_util import make_ndarray

                point = float(make_ndarray(value.tensor).reshape(-1)[0])
            else:
                continue
            self._keep(value.tag, event.step, point)


class TableFile(_Curves):
    """A file of Lightning's CSVLogger: a column a name, empty cells for other names.

    A name logged at steps and at epochs has two columns: that of the epochs counts.
    """

    source = "Lightning"

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []

    def _read(self, data: bytes) -> bytes:
        *lines, rest = data.split(b"\n")
        texts = [line.decode(errors="replace") for line in lines]
        if texts and not self._names:
            self._names = next(csv.reader([texts.pop(0)]))
        for row in csv.reader(texts):
            cells = dict(zip(self._names, row, strict=False))
            if len(row) <= len(self._names) and "step" in cells:
                step = int(cells["step"])
                for name in (name for name, text in cells.items() if text):
                    self._keep(name, step, float(cells[name]))
        return rest

    def end(self) -> None:
        """Read a last row without an end."""
        self.feed(b"\n")


class StateFile(WrittenFile):
    """The state of Hugging Face's Trainer, which lies in its checkpoints."""

    source = "Trainer"

    def __init__(self) -> None:
        self._text = b""
        self._state: dict[str, Any] | None = None

    def feed(self, body: bytes) -> None:
        """Take a part of the document."""
        if len(self._text) < MAX_STATE_BYTES:
            self._text += body
        self._state = None

    @property
    def state(self) -> dict[str, Any]:
        """Return the document. Empty: it is not whole, or no document."""
        if self._state is None:
            try:
                document = json.loads(self._text)
            except (ValueError, RecursionError):
                document = {}
            self._state = document if isinstance(document, dict) else {}
        return self._state

    @property
    def steps(self) -> int | None:
        """Return the number of steps of the whole run."""
        steps = self.state.get("max_steps")
        return steps if _is_whole(steps) and steps > 0 else None

    @property
    def losses(self) -> Curve:
        """Return the training loss."""
        history = self.state.get("log_history")
        return {
            entry["step"]: float(entry["loss"])
            for entry in (history if isinstance(history, list) else ())
            if isinstance(entry, dict)
            and _is_whole(entry.get("step"))
            and (isinstance(entry.get("loss"), float) or _is_whole(entry.get("loss")))
        }


def _is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number that a step can be."""
    return isinstance(value, int) and abs(value) <= MAX_STEP
