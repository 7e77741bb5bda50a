"""A job's progress, from the metrics lines of all its ranks. Pure: the caller passes the clock."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gpuctl import text
from gpuctl.run_results.metric_names import EVENTS, epoch_of, loss_of, number, step_of, whole

WINDOW = 50
"""Lines a rank of which the speed is taken."""
LEAST_MARKS = 4
"""As many lines about steps tell how much time is left."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Progress of a job. `None`: not known."""

    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    steps: int | None = None
    """Of the whole run."""
    loss: float | None = None
    accuracy: float | None = None
    judged_after: int | None = None
    """The epoch after which the accuracy was measured. `None`: just now, or not known."""
    samples_per_s: float | None = None
    """Of all ranks that report."""
    left_s: float | None = None

    @property
    def fraction(self) -> float | None:
        """The finished part of the run, 0 .. 1."""
        return min(self.step / self.steps, 1.0) if self.step is not None and self.steps else None

    def where(self) -> list[str]:
        """The position as texts: `epoch 2/3`, `step 120/588`, `12.0 s left`."""
        parts = [_of("epoch", self.epoch, self.epochs), _of("step", self.step, self.steps)]
        if self.left_s:
            parts.append(f"{text.duration(self.left_s)} left")
        return [part for part in parts if part]

    def figures(self) -> list[str]:
        """The figures as texts: `loss 0.312`, `accuracy 95.1 % after epoch 2`, `8,412 samples/s`."""
        parts = []
        if self.loss is not None:
            parts.append(f"loss {text.loss(self.loss)}")
        if self.accuracy is not None:
            after = f" after epoch {self.judged_after}" if self.judged_after is not None else ""
            parts.append(f"accuracy {text.percent(self.accuracy)}{after}")
        if self.samples_per_s is not None:
            parts.append(f"{text.count(self.samples_per_s)} samples/s")
        return parts


class Progress:
    """Takes the lines as they come, and knows the state. Not for several threads at once."""

    def __init__(self) -> None:
        self._start: Mapping[str, Any] = {}
        self._epoch_line: Mapping[str, Any] = {}
        self._epoch_is_over = False
        """True: the first rank's last line is that of an epoch."""
        self._steps: dict[int, deque[tuple[float, float]]] = {}
        self._samples: dict[int, deque[tuple[float, float]]] = {}
        self._last: dict[int, Mapping[str, Any]] = {}

    def update(self, rank: int, line: Mapping[str, Any], now_s: float) -> bool:
        """Take over a rank's line; False where it says nothing about progress."""
        event = line.get("event")
        if event == "start":
            if rank == 0 or not self._start:
                self._start = line
            return False
        if event == "epoch":
            self._epoch_line = line
            self._epoch_is_over = True
            # What comes next, such as the validation, is no step: the speed is that of one epoch's steps.
            for marks in self._samples.values():
                marks.clear()
            return True
        step = step_of(line)
        if event in EVENTS or (step is None and (epoch_of(line) is None or loss_of(line) is None)):
            return False
        at = number(line.get("time"))
        at = now_s if at is None else at
        self._last[rank] = line
        self._epoch_is_over = self._epoch_is_over and rank != min(self._last)
        if step is not None:
            self._steps.setdefault(rank, deque(maxlen=WINDOW)).append((at, step))
        samples = number(line.get("samples"))
        if samples is not None:
            self._samples.setdefault(rank, deque(maxlen=WINDOW)).append((at, samples))
        return True

    def state(self) -> State:
        """The progress now."""
        leader = min(self._last, default=None)
        line = self._last[leader] if leader is not None else {}
        epochs, per_epoch = whole(self._start.get("epochs")), whole(self._start.get("steps_per_epoch"))
        steps = epochs * per_epoch if epochs and per_epoch and epochs > 0 and per_epoch > 0 else None
        step, epoch = step_of(line), epoch_of(line)
        done = int(step) if step is not None else None
        current = int(epoch) if epoch is not None else None
        if steps and done and per_epoch and current not in (None, (done - 1) // per_epoch + 1):
            # The run continues one of another number of ranks, whose epochs had other steps.
            steps = None
        over = whole(self._epoch_line.get("epoch"))
        if self._epoch_is_over and over is not None and steps and per_epoch:
            done = max(done or 0, over * per_epoch)
        steps_per_s = _steady_speed(self._steps[leader]) if leader in self._steps else None
        losses = [loss_of(line), loss_of(self._epoch_line)]
        loss = next(
            (loss for loss in (losses[::-1] if self._epoch_is_over else losses) if loss is not None), None
        )
        return State(
            epoch=(done - 1) // per_epoch + 1
            if current is None and steps and done and per_epoch
            else current,
            epochs=epochs,
            step=done,
            steps=steps,
            loss=loss,
            accuracy=number(self._epoch_line.get("accuracy")),
            judged_after=None if self._epoch_is_over else over,
            samples_per_s=self._samples_per_s(),
            left_s=max(steps - done, 0) / steps_per_s if steps and done is not None and steps_per_s else None,
        )

    def _samples_per_s(self) -> float | None:
        """The speed of the steps of the current epoch; before its first steps, the last epoch's own figure."""
        # A rank whose samples another rank counts always reports 0: do not wait for its first.
        counting = (marks for marks in self._samples.values() if not marks or marks[-1][1])
        speeds = [_speed(marks) for marks in counting]
        known = [speed for speed in speeds if speed is not None]
        whole_epoch = number(self._epoch_line.get("samples_per_s"))
        if whole_epoch is not None and len(known) < len(speeds):
            return whole_epoch
        return sum(known) if known else whole_epoch


def _speed(marks: deque[tuple[float, float]]) -> float | None:
    """Units a second over the marks, (seconds, units); `None` where they don't tell."""
    if not marks:
        return None
    (began, first), (ended, last) = marks[0], marks[-1]
    return (last - first) / (ended - began) if ended > began and last > first else None


def _steady_speed(marks: deque[tuple[float, float]]) -> float | None:
    """Units a second without what comes once as a run begins; `None` before some steps are known.

    Something is compiled, the first evaluation loads its libraries: until the window has moved on from there, the
    slowest of its intervals does not count.
    """
    if len(marks) < LEAST_MARKS:
        return None
    if len(marks) == marks.maxlen:
        return _speed(marks)
    took = [(later[0] - earlier[0], later[1] - earlier[1]) for earlier, later in pairwise(marks)]
    took.remove(max(took))
    seconds, units = sum(value for value, _ in took), sum(value for _, value in took)
    return units / seconds if seconds > 0 and units > 0 else None


def _of(name: str, value: int | None, total: int | None) -> str:
    """`epoch 2/3`, `epoch 2`, or nothing."""
    if value is None:
        return ""
    return f"{name} {value}/{total}" if total else f"{name} {value}"
