"""A script's progress by its log and by files of its libraries, for scripts without metrics. Pure."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuctl.run_results.speed import WINDOW, Mark, add_mark, pace, steady_speed
from gpuctl.run_results.written_files import StateFile, WrittenFile, reader_of
from inventories.runs.result import LossSource
from remote.shared.log_lines import LogLine
from remote.shared.script_files import NAMES

MAX_FILES = 64
"""Files of libraries that are kept; a run has a few, and a Trainer's state for each checkpoint."""


@dataclass(kw_only=True)
class LogProgress:
    """The latest values of the lines. `None`: no line had them."""

    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    steps: int | None = None
    """The total of the steps: of the epoch, if the lines have one."""
    loss: float | None = None
    fraction: float | None = None
    """The finished part of the run, 0 .. 1."""
    _first_epoch: int = 1
    _before: int = 0
    """Steps before the count began again."""
    _spans_epochs: bool = False
    """The count went on from one epoch to the next."""
    _epoch_changed: bool = False
    """Since the count began."""
    done: deque[Mark] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _fractions: deque[Mark] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def update(self, line: LogLine, now_s: float) -> bool:
        """Take a line. Returns whether it has progress."""
        if line.step is not None and line.steps is not None:
            is_over = self.step is not None and self.step == self.steps and self.epoch is None
            if is_over and self.loss is None and line.steps != self.steps:
                # The count so far was of other work, such as data that were prepared before training.
                self.step = self.steps = self.fraction = None
                self._before = 0
                self.done.clear()
                self._fractions.clear()
            if line.epoch is None and line.steps < (self.steps or 0):
                return False  # the count of an evaluation, which is shorter than that of the training
        if line.epoch is None and line.step is None:
            return False
        next_epoch = self.epoch is not None and line.epoch not in (None, self.epoch)
        self._epoch_changed = self._epoch_changed or next_epoch
        if line.epoch is not None:
            self.epoch, self.epochs = line.epoch, line.epochs or self.epochs
            self._first_epoch = min(self._first_epoch, line.epoch)
        if line.step is not None:
            if self.step is not None and (line.step < self.step or (next_epoch and line.step == self.step)):
                self._before += self.step
                self._epoch_changed = False
            elif self.step is not None and line.step > self.step and self._epoch_changed:
                self._spans_epochs = True
            self.step, self.steps = line.step, line.steps
            add_mark(self.done, now_s, self._before + line.step)
        if line.loss is not None:
            self.loss = line.loss
        fraction = self._fraction(line)
        if line.step is None and self.fraction is not None:
            # A line on an evaluation, or on an epoch without its total, is no step back.
            fraction = max(self.fraction, fraction or 0.0)
        self.fraction = fraction
        if self.fraction is not None:
            add_mark(self._fractions, now_s, self.fraction)
        return True

    def _fraction(self, line: LogLine) -> float | None:
        of_steps = min(self.step / self.steps, 1.0) if self.step is not None and self.steps else None
        if self.epoch is None:
            # A count that began again is that of an epoch, and the number of epochs is not known.
            return None if self._before else of_steps
        begun = self.epoch - self._first_epoch
        if line.epoch is not None and line.step is None:
            of_steps = None  # of an earlier line, perhaps of the epoch before
        if of_steps is not None and self._spans_epochs and not self._before:
            return of_steps
        if not self.epochs:
            return None
        ended = 0.0 if line.loss is None else 1.0
        return min((begun + (ended if of_steps is None else of_steps)) / self.epochs, 1.0)

    @property
    def left_s(self) -> float | None:
        """Return the time to the end of the run, if its end is known."""
        speed = pace(self._fractions, begins=len(self._fractions) < WINDOW)
        return None if self.fraction is None or speed is None else (1 - self.fraction) / speed


@dataclass(frozen=True, kw_only=True)
class LastLoss:
    """The last training loss of a source."""

    source: LossSource
    loss: float
    step: int | None = None
    points: int = 0
    """Losses in its file."""


class FileProgress:
    """The latest losses in the files of a script's libraries."""

    def __init__(self) -> None:
        self._files: dict[str, WrittenFile] = {}
        self._last: dict[str, LastLoss] = {}
        self.steps: int | None = None
        """The number of steps of the whole run. `None`: no file has it."""
        self.done: deque[Mark] = deque(maxlen=WINDOW)

    def update(self, path: str, body: bytes, now_s: float, *, begins: bool) -> bool:
        """Take the next part of a file; `begins`: its first one. Returns whether the file has a training loss."""
        file = reader_of(path) if begins else self._files.get(path)
        if file is None:
            return False
        if path not in self._files and len(self._files) >= MAX_FILES:
            same = (other for other, its in self._files.items() if its.source == file.source)
            if (oldest := next(same, None)) is None:
                return False
            del self._files[oldest]
            self._last.pop(oldest, None)
        self._files.pop(path, None)
        self._files[path] = file  # as the newest
        file.feed(body)
        if isinstance(file, StateFile):
            self.steps = file.steps or self.steps
        if not (losses := file.losses):
            return False
        step = max(losses)
        self._last[path] = LastLoss(source=file.source, loss=losses[step], step=step, points=len(losses))
        if self.last is not None and self.last.step is not None:
            add_mark(self.done, now_s, self.last.step)
        return True

    @property
    def last(self) -> LastLoss | None:
        """Return the last loss in the file that counts: the first kind's with the most losses."""
        kinds = list(NAMES)
        return max(
            self._last.values(), key=lambda last: (-kinds.index(last.source), last.points), default=None
        )


class ScriptProgress:
    """The progress by the log and the files together."""

    def __init__(self) -> None:
        self.log = LogProgress()
        self.files = FileProgress()

    @property
    def last_loss(self) -> LastLoss | None:
        """Return the loss of the source that counts in the results.

        The Trainer's state is written with checkpoints only, so the log comes before it here.
        """
        in_files, in_log = self.files.last, self.log.loss
        if in_log is None or (in_files is not None and in_files.source != "Trainer"):
            return in_files
        return LastLoss(source="log", loss=in_log)

    @property
    def step(self) -> int | None:
        """Return the step: the log's, or else that of the files."""
        in_files = self.files.last
        return self.log.step if self._in_log else None if in_files is None else in_files.step

    @property
    def steps(self) -> int | None:
        """Return the total of the steps."""
        return self.log.steps if self._in_log else self.files.steps

    @property
    def _in_log(self) -> bool:
        return self.log.step is not None or self.log.epoch is not None

    @property
    def _done(self) -> Sequence[Mark]:
        return self.log.done if self._in_log else self.files.done

    @property
    def steps_per_s(self) -> float | None:
        """Return the speed of the median step."""
        return steady_speed(self._done)

    @property
    def fraction(self) -> float | None:
        """Return the finished part of the run, 0 .. 1."""
        total = self.files.steps
        if self.log.fraction is not None or self.step is None or total is None:
            return self.log.fraction
        return min(self.step / total, 1.0) if self.steps in (None, total) else None

    @property
    def left_s(self) -> float | None:
        """Return the time to the end of the run, if its end is known."""
        if self.log.fraction is not None:
            return self.log.left_s
        speed = pace(self._done, begins=len(self._done) < WINDOW)
        if self.fraction is None or self.files.steps is None or speed is None:
            return None
        return (1 - self.fraction) * self.files.steps / speed
