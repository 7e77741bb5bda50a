"""Report the job: JSON lines for programs, a console for people.

The lines of the metrics file, each also with its `time` in Unix seconds and its `rank`:

    {"event": "start", "local_rank", "world_size", "device", "model", "dataset", "strategy", "epochs",
     "steps_per_epoch", "batch_size", "precision", "memory_savers", "loop", "parameters", "gradient_bytes",
     "seconds": {"device", "data", "model"}}
    {"step", "epoch", "loss", "samples", "step_ms", "data_ms", "compute_ms", "communication_ms"}
    {"event": "epoch", "epoch", "epoch_s", "first_steps_s", "samples", "loss", "accuracy", "perplexity",
     "samples_per_s", "lr", "training": {metric: value}, "validation": {metric: value}}           on rank 0 only
    {"event": "end", "loss", "accuracy", "perplexity", "samples_per_s", "tokens_per_s", "memory_gb", "mfu",
     "graphs", "step_ms": {"p50", "p95"}, "share": {"compute", "communication", "data"},
     "test": {metric: value} | null, "parts": {"first_steps", "steps", "evaluation", "checkpoints"}}
    {"event": "end", "accuracy", "perplexity", "epochs_before",
     "test" or "validation": {metric: value}}                                               nothing left to train
    {"event": "failed", "reason": "lost_peer" | "timed_out", "ranks"}        another rank failed, or did not arrive

Steps and epochs count from 1, steps through the whole run. A step's loss and times are this rank's, its `samples` the
number that this rank has processed so far (0 on a rank that computes a part of another rank's samples). Losses,
accuracies and speeds of `epoch` and `end` are of all ranks together. `accuracy` is of the validation images; in
`end`, of the test samples if the dataset has any. It is null for text, and `perplexity` and `tokens_per_s` are null
for images. `memory_gb` is the maximum over the ranks: allocated memory of its GPU (with `dp`, of all its GPUs;
reserved memory if steps are CUDA graphs), on a CPU the size of weights, gradients and optimizer state. `mfu` is the
model's operations as a fraction of the GPUs' peak rate (null: either is not known). `epochs_before` counts the epochs
of earlier runs. `batch_size` is a rank's, `gradient_bytes` its contribution to a step's all-reduce (null: it depends
on the step, or weights are sent, too). `memory_savers`: "activation_checkpointing", "cpu_offload". `strategy`: the
option's value, or `single`. `graphs`: whether the steady steps were CUDA graphs. If computing and sending overlap, as
with sharded weights, and in a step that is a graph and sends, the two parts of a step are null.
`train/reporting/timing.py` defines the times; speeds and `step_ms` are of steady steps, and null without steady
steps. `seconds` is the time to open the device and meet the other ranks, to load the data, and to build the model;
`parts`, also in seconds, the time after that. A number that is not finite is null. `ranks`: the ranks that this rank
waited for, as far as known.
"""

import contextlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import torch

from train.distributed.environment import DistributedEnvironment
from train.errors import NoPeers, NotWritten, PeerLost, PeerSilent
from train.options import Options
from train.reporting.device_use import DeviceUse
from train.reporting.timing import StepTime, Timing
from train.strategies.deepspeed_config import offloads

Json = str | int | float | dict[str, float] | dict[str, float | None] | list[int] | list[str] | None


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The results of an epoch, over all ranks."""

    number: int
    seconds: float
    """From the first step until every rank has taken its last, by this rank's clock, without the evaluation."""
    samples: int
    first_steps_s: float
    """Part of `seconds` for the first step of each batch size, which compiles and tunes."""
    timing: Timing | None
    """Steady steps, of all ranks together. `None`: no step was steady."""
    loss: float
    """Mean over the samples, each at its step."""
    lr: float
    """Learning rate of the last step."""
    training: dict[str, float]
    """Metrics of the training samples, each with the weights at its step."""
    validation: dict[str, float]
    """Metrics of the validation samples after the epoch."""

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the validation images, 0 .. 1; `None` if it was not requested."""
        return self.validation.get("accuracy")

    def scalars(self) -> dict[str, float]:
        """Return the values of curves, by tag."""
        speed = {} if self.samples_per_s is None else {"samples_per_s": self.samples_per_s}
        return {
            "loss": self.loss,
            "lr": self.lr,
            **speed,
            **{f"training/{name}": value for name, value in self.training.items()},
            **{f"validation/{name}": value for name, value in self.validation.items()},
        }

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second of all ranks together in steady steps; `None`: no step was steady."""
        return self.timing.samples_per_s if self.timing else None


def memory_savers(options: Options) -> list[str]:
    """Return the enabled options that save device memory."""
    enabled = {
        "activation_checkpointing": options.activation_checkpointing,
        "cpu_offload": options.cpu_offload or offloads(options),
    }
    return [name for name, is_given in enabled.items() if is_given]


class Report:
    """The metrics file of a rank, and the console of rank 0. A context manager.

    Each line is written whole and at once, so that the file can be followed while the job runs.
    """

    def __init__(self, *, path: Path | None, env: DistributedEnvironment, options: Options) -> None:
        """`path`: the file to append to; `None`: no file."""
        self._path = path
        self._env = env
        self._options = options
        self._file: FileIO | None = None
        self._parts_known = True

    def __enter__(self) -> "Report":  # noqa: PYI034  # typing.Self needs a newer Python than the nodes may have
        if self._path:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("ab", buffering=0)
            except OSError as error:
                raise self._not_written(error) from error
        return self

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        with contextlib.suppress(NotWritten):  # the original error matters more
            if isinstance(error, NoPeers):
                self._record(event="failed", reason="timed_out", ranks=error.ranks)
            elif isinstance(error, PeerLost):
                silent = isinstance(error, PeerSilent)
                self._record(event="failed", reason="timed_out" if silent else "lost_peer", ranks=[])
        if self._file:
            self._file.close()

    def start(
        self,
        device: torch.device,
        *,
        steps_per_epoch: int,
        batch_size: int,
        parameters: int,
        gradient_bytes: int | None,
        strategy: str,
        place: str = "",
        parts_known: bool = True,
        seconds: Mapping[str, float],
    ) -> None:
        """Write the first line, once all ranks have joined.

        `place`: the rank's part of the model; empty: all of the model. `parts_known`: whether a step's times separate
        computing from communication. `seconds`: duration of each part until now.
        """
        options, env = self._options, self._env
        self._parts_known = parts_known
        self._record(
            event="start",
            local_rank=env.local_rank,
            world_size=env.world_size,
            device=str(device),
            model=options.model,
            dataset=options.dataset,
            strategy=strategy,
            place=place or None,
            epochs=options.epochs,
            steps_per_epoch=steps_per_epoch,
            batch_size=batch_size,
            precision=options.precision,
            memory_savers=memory_savers(options),
            loop=options.loop,
            parameters=parameters,
            gradient_bytes=gradient_bytes,
            seconds=_rounded(seconds),
        )
        self.say(
            f"{options.model} ({parameters:,} weights) on {options.dataset}  world size {env.world_size} "
            f"({strategy}, {device.type})  epochs {options.epochs} of {steps_per_epoch} steps  batch {batch_size} a "
            f"rank  CPU threads {torch.get_num_threads()} a rank"
        )

    def step(self, step: int, *, epoch: int, loss: float, samples: int, step_time: StepTime) -> None:
        """Write the line of a step."""
        communication_ms = step_time.communication_ms if self._parts_known else None
        self._record(
            step=step,
            epoch=epoch,
            loss=loss,
            samples=samples,
            step_ms=round(step_time.step_ms, 3),
            data_ms=round(step_time.data_ms, 3),
            compute_ms=None if communication_ms is None else round(step_time.compute_ms, 3),
            communication_ms=None if communication_ms is None else round(communication_ms, 3),
        )

    def epoch(self, epoch: Epoch) -> None:
        """Write the line of an epoch, and print one, on rank 0."""
        if self._env.rank != 0:
            return
        self._record(
            event="epoch",
            epoch=epoch.number,
            epoch_s=epoch.seconds,
            first_steps_s=round(epoch.first_steps_s, 3),
            samples=epoch.samples,
            loss=epoch.loss,
            accuracy=epoch.accuracy,
            perplexity=epoch.validation.get("perplexity"),
            samples_per_s=epoch.samples_per_s,
            lr=epoch.lr,
            training=_finite(epoch.training),
            validation=_finite(epoch.validation),
        )
        evaluated = {name: value for name, value in epoch.validation.items() if name != "loss"}
        first = (
            f" (first steps {epoch.first_steps_s:.2f} s)"
            if epoch.first_steps_s > 0.05 * epoch.seconds
            else ""
        )
        parts = (
            f"epoch {epoch.number}/{self._options.epochs}",
            f"loss {epoch.loss:.4f}",
            _words(evaluated),
            self._speed(epoch.samples_per_s),
            f"{epoch.seconds:.2f} s{first}",
        )
        self.say("  ".join(part for part in parts if part))

    def end(
        self,
        epochs: Sequence[Epoch],
        timing: Timing | None,
        *,
        use: DeviceUse,
        flops_per_sample: float | None,
        test: dict[str, float] | None,
        parts: Mapping[str, float],
    ) -> None:
        """Write the last line, after the last epoch.

        `timing`: of all ranks together; `None`: no step was a steady one. `test`: the metrics of the test samples.
        `parts`: seconds by part, since the first line.
        """
        last = epochs[-1]
        evaluated = last.validation if test is None else test
        samples_per_s = timing.samples_per_s if timing else None
        self._record(
            event="end",
            loss=last.loss,
            accuracy=evaluated.get("accuracy"),
            perplexity=evaluated.get("perplexity"),
            samples_per_s=samples_per_s,
            tokens_per_s=samples_per_s * self._options.seq_len
            if samples_per_s and self._options.is_text
            else None,
            memory_gb=use.memory_gb,
            mfu=use.mfu(flops_per_sample * samples_per_s if flops_per_sample and samples_per_s else None),
            graphs=timing is not None and timing.graphs,
            step_ms={
                "p50": round(timing.p50_ms, 3) if timing else None,
                "p95": round(timing.p95_ms, 3) if timing else None,
            },
            share={
                "compute": timing.compute_share if timing and self._parts_known else None,
                "communication": timing.communication_share if timing and self._parts_known else None,
                "data": timing.data_share if timing else None,
            },
            test=None if test is None else _finite(test),
            parts=_rounded(parts),
        )
        shown = _words({name: value for name, value in evaluated.items() if name != "loss"})
        texts = [
            f"{shown}{' on the test samples' if test else ''}",
            self._speed(samples_per_s),
            self._steps(timing),
        ]
        self.say(", ".join(text for text in texts if text))

    def nothing_to_train(self, metrics: dict[str, float], *, epochs_before: int, on_test: bool) -> None:
        """Write another last line where nothing is left to train.

        `metrics`: of the test samples, or of the validation samples.
        """
        where = "test" if on_test else "validation"
        self._record(
            event="end",
            accuracy=metrics.get("accuracy"),
            perplexity=metrics.get("perplexity"),
            epochs_before=epochs_before,
            **{where: _finite(metrics)},
        )
        self.say(
            f"nothing is left to train: {epochs_before} of --epochs {self._options.epochs} are done. Give a larger "
            f"number to train on. The model as it is: {_words(metrics)}"
        )

    def _steps(self, timing: Timing | None) -> str:
        """Return `12.1 ms a step (p95 14.0): 80% compute, 15% communication, 5% data`; empty for `None`."""
        if timing is None:
            return ""
        parts = (
            f"{timing.compute_share:.0%} compute, {timing.communication_share:.0%} communication"
            if self._parts_known and timing.communication_share is not None
            else f"{1 - timing.data_share:.0%} compute and communication"
        )
        times = f"{timing.p50_ms:.1f} ms a step (p95 {timing.p95_ms:.1f})"
        return f"{times}: {parts}, {timing.data_share:.0%} data"

    def _speed(self, samples_per_s: float | None) -> str:
        if samples_per_s is None:
            return ""
        if self._options.is_text:
            return f"{samples_per_s * self._options.seq_len:,.0f} tokens/s"
        return f"{samples_per_s:,.0f} images/s"

    def say(self, text: str) -> None:
        """Print a line on rank 0."""
        if self._env.rank != 0:
            return
        try:
            print(text, flush=True)
        except OSError as error:
            raise NotWritten(f"The log (standard output) can't be written: {error.strerror}.") from error

    def _record(self, **values: Json) -> None:
        if not self._file:
            return
        line: dict[str, Json] = {"time": time.time(), "rank": self._env.rank}
        line |= {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        try:
            self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        except OSError as error:
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> NotWritten:
        return NotWritten(
            f"The metrics file {self._path} can't be written: {error.strerror}. Make room or give access there, "
            "or name another file in GPUCTL_METRICS."
        )


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in seconds.items()}


def _words(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in values.items())
