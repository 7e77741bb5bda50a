"""Run the built-in job on a device step by step, as `python -m train` builds it, with its clock under control."""

import functools
import gc
import json
import math
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench.parts.device import synchronize
from bench.parts.gpu_plan import Steps
from bench.parts.published import Published
from bench.parts.sections import NoTime
from train.data.dataset import Dataset, Samples
from train.data.load import READERS, begin_to_load, load_dataset, read_synthetic
from train.distributed.environment import DistributedEnvironment
from train.job import set_arithmetic
from train.options import Options
from train.reporting.report import Report
from train.reporting.timing import StepTimer, TimeParts, summarize
from train.trainer import Trainer

ROOT = Path(__file__).parents[2]
CLASSES = 10


def job(images: int, batch_size: int, **chosen: Any) -> Options:  # noqa: ANN401 - the fields of Options
    """Return the options of a job on synthetic images of CIFAR-10's shape, without files."""
    return Options(
        dataset="synthetic",
        synthetic=(images, 3, 32, 32, CLASSES),
        batch_size=batch_size,
        epochs=10,
        checkpoint_every=0,
        save=False,
        tensorboard=False,
        **chosen,
    )


def keep_images() -> None:
    """Make the job's images only once in this process."""
    made = functools.lru_cache(maxsize=2)(
        lambda seed, shape: read_synthetic(Options(seed=seed, synthetic=shape), DistributedEnvironment())
    )
    READERS["synthetic"] = lambda options, _env: made(options.seed, options.synthetic)


@contextmanager
def dataset_of(dataset: Dataset) -> Iterator[None]:
    """Replace the job's dataset by this dataset."""
    name: Any = dataset.name
    before = READERS[name]
    READERS[name] = lambda _options, _env: dataset
    try:
        yield
    finally:
        READERS[name] = before


def images_of(options: Options) -> Dataset:
    """Return the job's images."""
    return load_dataset(options, DistributedEnvironment())


@contextmanager
def trainer_of(options: Options, device: torch.device, folder: Path) -> Iterator[Trainer]:
    """Yield the job, ready for its first step. Its step lines are in the folder's new `metrics.jsonl`."""
    clear(device)
    set_arithmetic(options)
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    with Report(path=metrics, env=DistributedEnvironment(), options=options) as report:
        env = DistributedEnvironment()
        load = begin_to_load(options, env, in_thread=False)
        trainer = Trainer(options, env, device, report, folder / "checkpoints", TimeParts(), load)
        yield trainer
        trainer.finish()


def clear(device: torch.device) -> None:
    """Clear the traces of an earlier job: compiled code, memory, the peak."""
    if "torch._dynamo" in sys.modules:  # importing it takes seconds
        torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def losses_of(folder: Path) -> list[float]:
    """Return the losses of the reported steps."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "step" in line]


class Stopped(Exception):
    """The job must not take another step."""


class Pace:
    """Records the start of each step, runs due actions, and may end the job."""

    def __init__(self, timer: StepTimer, until: float) -> None:
        """No step begins after `until` (monotonic)."""
        self.began: list[float] = []
        self.at: dict[int, Callable[[], object]] = {}
        """Actions before the step of that number, counted from 0."""
        self._start = timer.start
        self._until = until
        timer.start = self._begin  # type: ignore[method-assign]

    def _begin(self) -> None:
        if time.monotonic() > self._until:
            raise Stopped
        self.at.pop(len(self.began), lambda: None)()
        self.began.append(time.perf_counter())
        self._start()

    def in_steps(self, count: int, then: Callable[[], object]) -> None:
        """Call `then` before the `count`-th step from now."""
        self.at[len(self.began) + count] = then


def stop() -> None:
    """End the job."""
    raise Stopped


def measure(
    options: Options, device: torch.device, folder: Path, *, steps: Steps, until: float
) -> dict[str, Any]:
    """Return milliseconds a steady step, memory and losses of a job. Raises NoTime for too few steps.

    Between the two clocks are only whole steps, and both wait for the device. `waits`: places where later steps wait
    for the GPU; `None`: not checked.
    """
    with trainer_of(options, device, folder) as trainer:
        pace = Pace(trainer.timer, until)
        steady = Steady(device, steps)
        pace.in_steps(steps.warm_up, steady.begin)
        pace.in_steps(steps.warm_up + steps.counted, stop)
        with suppress(Stopped):
            trainer.train_epoch()
        timed = steady.end(len(pace.began))
        step_times = trainer.timer.steps()
        summary = summarize(step_times)
        watch = steps.watched > 0 and time.monotonic() < until
        waits = waits_of(trainer, pace, steps.watched) if watch else None
        return {
            "options": differing(options),
            **timed,
            "graph_steps": sum(step.in_graph for step in step_times[steps.warm_up :]),
            "first_step_s": pace.began[1] - pace.began[0],
            "warm_up_s": steady.began - pace.began[0],
            "p50_ms": summary and summary.p50_ms,
            "p95_ms": summary and summary.p95_ms,
            "data_share": summary and summary.data_share,
            "waits": waits,
            **memory(device, graphs=summary is not None and summary.graphs),
            "losses": losses_of(folder)[:5],
            "loss_every": options.log_every,
        }


def measure_published(
    options: Options, device: torch.device, *, steps: Steps, until: float
) -> dict[str, Any]:
    """Return the same for the published loop, with torch's default arithmetic."""
    clear(device)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = True, False
    torch.set_float32_matmul_precision("highest")
    assert options.batch_size is not None
    images = images_of(options).training
    assert isinstance(images, Samples)
    loop = Published(options, images, CLASSES, device, batch_size=options.batch_size)
    began = time.perf_counter()
    first_step_s = loop(1)
    steady = Steady(device, steps)
    loop(steps.warm_up - 1)
    steady.begin()
    total = steps.warm_up
    while total < steps.warm_up + steps.counted and time.monotonic() < until:
        loop(1)
        total += 1
    return {
        "options": differing(options),
        **steady.end(total),
        "first_step_s": first_step_s,
        "warm_up_s": steady.began - began,
        **memory(device),
    }


class Steady:
    """The clock of the timed steps."""

    def __init__(self, device: torch.device, steps: Steps) -> None:
        self.began = math.inf
        self._device = device
        self._steps = steps

    def begin(self) -> None:
        """Start the clock once the device has finished the warm-up."""
        synchronize(self._device)
        self.began = time.perf_counter()

    def end(self, total: int) -> dict[str, float]:
        """Return the number of timed steps among `total`, and milliseconds a step. Raises NoTime for too few."""
        synchronize(self._device)
        seconds, count = time.perf_counter() - self.began, total - self._steps.warm_up
        if count < self._steps.minimum:
            needed = f"{self._steps.warm_up} of warm-up and {self._steps.minimum} others are needed"
            raise NoTime(f"{total} steps were taken, and {needed}")
        return {"steps": count, "step_ms": seconds / count * 1e3}


def memory(device: torch.device, *, graphs: bool = False) -> dict[str, int | None]:
    """Return the peak memory since `clear`; with CUDA graphs the reserved memory, as graphs keep it."""
    if device.type != "cuda":
        return {"peak_memory_bytes": None, "peak_reserved_bytes": None}
    reserved = torch.cuda.max_memory_reserved(device)
    return {
        "peak_memory_bytes": reserved if graphs else torch.cuda.max_memory_allocated(device),
        "peak_reserved_bytes": reserved,
    }


def differing(options: Options) -> dict[str, Any]:
    """Return the options that differ from their defaults."""
    usual = asdict(Options())
    return {name: value for name, value in asdict(options).items() if value != usual[name]}


class Waits:
    """Counts the places where the host waits for the GPU, from `on` until the end of the block.

    Sources: the warnings of CUDA's debug mode, and calls of `torch.cuda.synchronize`. The mode does not report copies
    from unpinned memory, which wait as well.
    """

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        """Number of waits, by lines of code, innermost first."""
        self._watching = False

    def __enter__(self) -> "Waits":  # noqa: PYI034
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = self._shown
        self._synchronize = torch.cuda.synchronize
        torch.cuda.synchronize = self._synchronized
        return self

    def __exit__(self, *error: object) -> None:
        self._mode("default")
        torch.cuda.synchronize = self._synchronize
        self._caught.__exit__(None, None, None)

    def on(self) -> None:
        """Start counting."""
        self._mode("warn")
        self._watching = True

    @staticmethod
    def _mode(mode: str) -> None:
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode(mode)

    def _shown(self, message: Warning | str, *_: object, **__: object) -> None:
        if "called a synchronizing" in str(message):
            self._count()

    def _synchronized(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - torch's own
        self._count()
        self._synchronize(*arguments, **named)

    def _count(self) -> None:
        if not self._watching:
            return
        ours = [
            f"{Path(frame.filename).relative_to(ROOT)}:{frame.lineno} {frame.name}"
            for frame in reversed(traceback.extract_stack())
            if frame.filename.startswith(str(ROOT / "train"))
        ]
        where = " < ".join(ours[:3]) or "outside of train/"
        self.places[where] = self.places.get(where, 0) + 1


def waits_of(trainer: Trainer, pace: Pace, steps: int) -> dict[str, int]:
    """Return where the first `steps` steps of an epoch, and their batches, wait for the GPU; then end the job.

    The epoch must have more steps, so its end is not included.
    """
    with Waits() as waits:
        pace.in_steps(0, waits.on)
        pace.in_steps(steps, stop)
        try:
            trainer.train_epoch()
        except Stopped:
            return waits.places
    raise RuntimeError(f"an epoch has no more than {steps} steps")
