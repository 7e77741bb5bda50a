"""A script's progress by lines of its log, for a script that reports none in its metrics. Pure."""

from collections import deque
from dataclasses import dataclass, field

from gpuctl.run_results.log_lines import LogLine
from gpuctl.run_results.speed import WINDOW, Mark, add_mark, pace, steady_speed


@dataclass(kw_only=True)
class ScriptProgress:
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
    _done: deque[Mark] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _fractions: deque[Mark] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def update(self, line: LogLine, now_s: float) -> bool:
        """Take a line. Returns whether it has progress."""
        if line.step is not None and line.steps is not None and self._is_side_bar(line):
            return False
        if line.epoch is None and line.step is None:
            return False
        next_epoch = self.epoch is not None and line.epoch not in (None, self.epoch)
        if line.epoch is not None:
            self.epoch, self.epochs = line.epoch, line.epochs or self.epochs
            self._first_epoch = min(self._first_epoch, line.epoch)
        if line.step is not None:
            if self.step is not None and (line.step < self.step or (next_epoch and line.step == self.step)):
                self._before += self.step
            elif next_epoch and self.step is not None:
                self._spans_epochs = True
            self.step, self.steps = line.step, line.steps
            add_mark(self._done, now_s, self._before + line.step)
        if line.loss is not None:
            self.loss = line.loss
        self.fraction = self._fraction(line)
        if self.fraction is not None:
            add_mark(self._fractions, now_s, self.fraction)
        return True

    def _is_side_bar(self, line: LogLine) -> bool:
        """Return whether a count is that of an evaluation, which is shorter than that of the training."""
        return line.epoch is None and (line.steps or 0) < (self.steps or 0)

    def _fraction(self, line: LogLine) -> float | None:
        of_steps = min(self.step / self.steps, 1.0) if self.step is not None and self.steps else None
        if self.epoch is None:
            # A count that began again is that of an epoch, and the number of epochs is not known.
            return None if self._before else of_steps
        begun = self.epoch - self._first_epoch
        if of_steps is not None and (line.epoch is None or line.step is not None):
            if self._spans_epochs and not self._before:
                return of_steps
        else:
            of_steps = None
        if not self.epochs:
            return None
        ended = 0.0 if line.loss is None else 1.0
        return min((begun + (ended if of_steps is None else of_steps)) / self.epochs, 1.0)

    @property
    def steps_per_s(self) -> float | None:
        """Return the speed of the median step."""
        return steady_speed(self._done)

    @property
    def left_s(self) -> float | None:
        """Return the time to the end of the run, if its end is known."""
        speed = pace(self._fractions, begins=len(self._fractions) < WINDOW)
        return None if self.fraction is None or speed is None else (1 - self.fraction) / speed
