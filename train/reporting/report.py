"""What the job reports: JSON lines for programs, a console for people.

The lines of the metrics file, each also with its `time` in Unix seconds and its `rank`:

    {"event": "start", "local_rank", "world_size", "device", "model", "dataset", "strategy", "epochs",
     "steps_per_epoch", "batch_size", "precision", "memory_savers", "loop", "parameters", "gradient_bytes"}
    {"step", "epoch", "loss", "samples", "step_ms", "data_ms", "compute_ms", "communication_ms"}
    {"event": "epoch", "epoch", "epoch_s", "loss", "accuracy", "perplexity", "samples_per_s", "lr",
     "training": {metric: value}, "validation": {metric: value}}                            on rank 0 only
    {"event": "end", "loss", "accuracy", "perplexity", "samples_per_s", "tokens_per_s", "memory_gb", "mfu",
     "step_ms": {"p50", "p95"}, "share": {"compute", "communication", "data"}, "test": {metric: value} | null}
    {"event": "end", "accuracy", "perplexity", "epochs_before",
     "test" or "validation": {metric: value}}                                               nothing left to train
    {"event": "failed", "reason": "lost_peer" | "timed_out", "ranks"}        another rank is gone, or did not come

Steps and epochs count from 1, steps through the whole run. A step's loss and times are those of this rank, its
`samples` the number that this rank has taken so far (0 on a rank that computes a part of what another one counts).
The losses, accuracies and speeds of `epoch` and `end` are those of all ranks together. `accuracy` is of the
validation images; in `end`, of the test images where there are any. It is null for text, and `perplexity` and
`tokens_per_s` are null for images. `memory_gb` is the most of any rank: on its GPU (with `dp`, all its GPUs) what was
allocated, on a CPU what weights, gradients and the optimizer's state take. `mfu` is the fraction of the GPUs' peak
rate that the model's own operations are (null: one of the two is not known). `epochs_before` counts the epochs of
earlier runs. `batch_size` is a rank's, `gradient_bytes` what it gives into a step's all-reduce (null: it depends on
the step, or weights are sent, too). `memory_savers`: "activation_checkpointing", "cpu_offload". `strategy` is that of
`--strategy`, or `single`. Where computing and sending overlap, as with sharded weights, the two parts of a step are
null. The times are defined in `train/reporting/timing.py`. A number that is not finite is null. `ranks` are those
that a rank waited for, as far as it knows them.
"""

import contextlib
import json
import math
import time
from collections.abc import Sequence
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
        """Accuracy on the validation images, 0 .. 1; None where it was not asked for."""
        return self.validation.get("accuracy")

    def scalars(self) -> dict[str, float]:
        """Return the values of curves, by tag."""
        return {
            "loss": self.loss,
            "lr": self.lr,
            "samples_per_s": self.samples_per_s,
            **{f"training/{name}": value for name, value in self.training.items()},
            **{f"validation/{name}": value for name, value in self.validation.items()},
        }

    @property
    def samples_per_s(self) -> float:
        """Samples a second of all ranks together."""
        return self.samples / self.seconds


def memory_savers(options: Options) -> list[str]:
    """Return the options that were given to keep less on the device."""
    given = {
        "activation_checkpointing": options.activation_checkpointing,
        "cpu_offload": options.cpu_offload or offloads(options),
    }
    return [name for name, is_given in given.items() if is_given]


class Report:
    """The metrics file of a rank, and the console of rank 0. A context manager.

    Each line is written whole and at once, so that the file can be followed while the job runs.
    """

    def __init__(self, *, path: Path | None, env: DistributedEnvironment, options: Options) -> None:
        """`path`: the file to append to; None: no file."""
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
        with contextlib.suppress(NotWritten):  # what it ended of is what is told
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
    ) -> None:
        """Write the first line, once all ranks have joined.

        `place`: which part of the model this rank has; empty: all of it. `parts_known`: whether the times of steps
        tell computing from communication.
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
        )
        self.say(
            f"{options.model} ({parameters:,} weights) on {options.dataset}  world size {env.world_size} "
            f"({strategy}, {device.type})  epochs {options.epochs} of {steps_per_epoch} steps  batch {batch_size} a "
            f"rank  CPU threads {torch.get_num_threads()} a rank"
        )

    def step(self, step: int, *, epoch: int, loss: float, samples: int, step_time: StepTime) -> None:
        """Write the line of a step."""
        self._record(
            step=step,
            epoch=epoch,
            loss=loss,
            samples=samples,
            step_ms=round(step_time.step_ms, 3),
            data_ms=round(step_time.data_ms, 3),
            compute_ms=round(step_time.compute_ms, 3) if self._parts_known else None,
            communication_ms=round(step_time.communication_ms, 3) if self._parts_known else None,
        )

    def epoch(self, epoch: Epoch) -> None:
        """Write the line of an epoch, and print one, on rank 0."""
        if self._env.rank != 0:
            return
        self._record(
            event="epoch",
            epoch=epoch.number,
            epoch_s=epoch.seconds,
            loss=epoch.loss,
            accuracy=epoch.accuracy,
            perplexity=epoch.validation.get("perplexity"),
            samples_per_s=epoch.samples_per_s,
            lr=epoch.lr,
            training=_finite(epoch.training),
            validation=_finite(epoch.validation),
        )
        evaluated = {name: value for name, value in epoch.validation.items() if name != "loss"}
        self.say(
            f"epoch {epoch.number}/{self._options.epochs}  loss {epoch.loss:.4f}  {_words(evaluated)}  "
            f"{self._speed(epoch.samples_per_s)}  {epoch.seconds:.2f} s"
        )

    def end(
        self,
        epochs: Sequence[Epoch],
        timing: Timing,
        *,
        use: DeviceUse,
        flops_per_sample: float | None,
        test: dict[str, float] | None,
    ) -> None:
        """Write the last line, after the last epoch. `test`: the metrics of the test images."""
        last = epochs[-1]
        evaluated = last.validation if test is None else test
        # The first one compiles.
        steady = epochs[1:] if self._options.compile and len(epochs) > 1 else epochs
        samples_per_s = sum(epoch.samples for epoch in steady) / sum(epoch.seconds for epoch in steady)
        self._record(
            event="end",
            loss=last.loss,
            accuracy=evaluated.get("accuracy"),
            perplexity=evaluated.get("perplexity"),
            samples_per_s=samples_per_s,
            tokens_per_s=samples_per_s * self._options.seq_len if self._options.is_text else None,
            memory_gb=use.memory_gb,
            mfu=use.mfu(flops_per_sample and flops_per_sample * samples_per_s),
            step_ms={"p50": round(timing.p50_ms, 3), "p95": round(timing.p95_ms, 3)},
            share={
                "compute": timing.compute_share if self._parts_known else None,
                "communication": timing.communication_share if self._parts_known else None,
                "data": timing.data_share,
            },
            test=None if test is None else _finite(test),
        )
        parts = (
            f"{timing.compute_share:.0%} compute, {timing.communication_share:.0%} communication"
            if self._parts_known
            else f"{1 - timing.data_share:.0%} compute and communication"
        )
        shown = _words({name: value for name, value in evaluated.items() if name != "loss"})
        self.say(
            f"{shown}{' on the test images' if test else ''}, {self._speed(samples_per_s)}, "
            f"{timing.p50_ms:.1f} ms a step (p95 {timing.p95_ms:.1f}): {parts}, {timing.data_share:.0%} data"
        )

    def nothing_to_train(self, metrics: dict[str, float], *, epochs_before: int, on_test: bool) -> None:
        """Write another last line where nothing is left to train.

        `metrics`: of the test images, or of the validation samples.
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

    def _speed(self, samples_per_s: float) -> str:
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


def _words(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in values.items())
