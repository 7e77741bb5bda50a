"""A job's progress, from the metrics lines of all its ranks, else from its log. Pure: the caller passes the clock."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuctl import text
from gpuctl.run_results.metric_names import EVENTS, epoch_of, loss_of, number, step_of, whole
from gpuctl.run_results.script_progress import ScriptProgress
from gpuctl.run_results.speed import WINDOW, Mark, add_mark, pace, steady_speed
from inventories.runs.result import LossSource
from remote.shared.log_lines import LogLine


@dataclass(frozen=True, kw_only=True)
class State:
    """Progress of a job. `None`: not known."""

    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    steps: int | None = None
    """The total of the steps: of the whole run, or of an epoch of a script."""
    fraction: float | None = None
    """The finished part of the run, 0 .. 1."""
    loss: float | None = None
    loss_from: LossSource | None = None
    """`None`: metrics."""
    accuracy: float | None = None
    judged_after: int | None = None
    """The epoch after which the accuracy was measured. `None`: just now, or not known."""
    samples_per_s: float | None = None
    """Of all ranks that report."""
    steps_per_s: float | None = None
    left_s: float | None = None

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
            source = f" ({self.loss_from})" if self.loss_from else ""
            parts.append(f"loss {text.loss(self.loss)}{source}")
        if self.accuracy is not None:
            after = f" after epoch {self.judged_after}" if self.judged_after is not None else ""
            parts.append(f"accuracy {text.percent(self.accuracy)}{after}")
        if self.samples_per_s is not None:
            parts.append(f"{text.count(self.samples_per_s)} samples/s")
        elif self.steps_per_s is not None:
            parts.append(f"{text.count(self.steps_per_s)} steps/s")
        return parts


class Progress:
    """Takes the lines as they come, and knows the state. Not for several threads at once."""

    def __init__(self) -> None:
        self._start: Mapping[str, Any] = {}
        self._epoch_line: Mapping[str, Any] = {}
        self._epoch_is_over = False
        """True: the first rank's last line is that of an epoch."""
        self._steps: dict[int, deque[Mark]] = {}
        self._samples: dict[int, deque[Mark]] = {}
        self._last: dict[int, Mapping[str, Any]] = {}
        self._script = ScriptProgress()

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
        self._last[rank] = line
        self._epoch_is_over = self._epoch_is_over and rank != min(self._last)
        if step is not None:
            _add(self._steps, rank, line, now_s, step)
        samples = number(line.get("samples"))
        if samples is not None:
            _add(self._samples, rank, line, now_s, samples)
        return True

    def log(self, rank: int | None, line: str, now_s: float) -> bool:
        """Take a line of a rank's log; False if it has no progress, or metrics have it."""
        return rank == 0 and self._script.log.update(LogLine.of(line), now_s) and not self._last

    def script_file(self, path: str, body: bytes, now_s: float, *, begins: bool) -> bool:
        """Take a part of a file of the script's libraries; False if it has no loss, or metrics have progress."""
        return self._script.files.update(path, body, now_s, begins=begins) and not self._last

    def state(self) -> State:
        """The progress now."""
        script, last_loss = self._script, self._script.last_loss
        if not self._last and not self._epoch_line:
            return State(
                epoch=script.log.epoch,
                epochs=script.log.epochs or whole(self._start.get("epochs")),
                step=script.step,
                steps=script.steps,
                fraction=script.fraction,
                loss=last_loss.loss if last_loss else None,
                loss_from=last_loss.source if last_loss else None,
                steps_per_s=script.steps_per_s,
                left_s=script.left_s,
            )
        leader = min(self._last, default=None)
        line = self._last[leader] if leader is not None else {}
        epochs, per_epoch = whole(self._start.get("epochs")), whole(self._start.get("steps_per_epoch"))
        steps = epochs * per_epoch if epochs and per_epoch and epochs > 0 and per_epoch > 0 else None
        if steps is None and (of_run := whole(line.get("max_steps"))) is not None and of_run > 0:
            steps = of_run
        step, epoch = step_of(line), epoch_of(line)
        done = int(step) if step is not None else None
        current = int(epoch) if epoch is not None else None
        if steps and done and per_epoch and current not in (None, (done - 1) // per_epoch + 1):
            # The run continues one of another number of ranks, whose epochs had other steps.
            steps = None
        over = whole(self._epoch_line.get("epoch"))
        if self._epoch_is_over and over is not None and steps and per_epoch:
            done = max(done or 0, over * per_epoch)
        marks = self._steps.get(leader, deque()) if leader is not None else deque()
        all_steps_per_s = pace(marks, begins=len(marks) < WINDOW)
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
            fraction=min(done / steps, 1.0) if steps and done is not None else None,
            loss=last_loss.loss if loss is None and last_loss else loss,
            loss_from=last_loss.source if loss is None and last_loss else None,
            accuracy=number(self._epoch_line.get("accuracy")),
            judged_after=None if self._epoch_is_over else over,
            samples_per_s=self._samples_per_s(),
            steps_per_s=steady_speed(marks),
            left_s=max(steps - done, 0) / all_steps_per_s
            if steps and done is not None and all_steps_per_s
            else None,
        )

    def _samples_per_s(self) -> float | None:
        """The speed of the steps of the current epoch; before its first steps, the last epoch's own figure."""
        # A rank whose samples another rank counts always reports 0: do not wait for its first.
        counting = (marks for marks in self._samples.values() if not marks or marks[-1][1])
        speeds = [steady_speed(marks) for marks in counting]
        known = [speed for speed in speeds if speed is not None]
        whole_epoch = number(self._epoch_line.get("samples_per_s"))
        if whole_epoch is not None and len(known) < len(speeds):
            return whole_epoch
        return sum(known) if known else whole_epoch


def _add(
    marks: dict[int, deque[Mark]], rank: int, line: Mapping[str, Any], now_s: float, units: float
) -> None:
    """Add a mark by the line's own time, or else by its arrival."""
    of_rank = marks.setdefault(rank, deque(maxlen=WINDOW))
    if (at := number(line.get("time"))) is None:
        add_mark(of_rank, now_s, units)
    else:
        of_rank.append((at, units))


def _of(name: str, value: int | None, total: int | None) -> str:
    """`epoch 2/3`, `epoch 2`, or nothing."""
    if value is None:
        return ""
    return f"{name} {value}/{total}" if total else f"{name} {value}"
