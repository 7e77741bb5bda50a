"""Compare the built-in job's step with the tutorials' loop: the same model, batch, optimizer and kind of data.

The tutorials' loop: PIL images through RandomHorizontalFlip, ToTensor and Normalize one by one, a DataLoader without
workers, `loss.item()` at every step. Ours: the parts of `python -m train`, as with `--loop plain` and with `--loop
fast`, and each choice of the fast loop alone on top of the plain loop. All take the same number of steps in each
round, in an order that changes. Prints medians of images a second, and median ratios to the tutorials' loop. The cost
of clocks and metrics is measured in pairs of a few steps, with and without them. The operations of a step, and for
known GPUs their floors, show the distance to the device's best.

On a CPU it is `cnn` on images of MNIST's shape, on a GPU `resnet18` on CIFAR-10's, there also in bf16 and compiled.
With `--compile` the compiled fast loop is measured on a CPU as well, after a minute or so for the compiler. Exits 1
if the fastest loop is less than 1.3 times (on a GPU: 10 times) as fast as the tutorials', if the fast loop is slower
than the plain loop, or if clocks and metrics cost more than 1 %.

    python bench/train_step.py [--compile] [ROUNDS [STEPS]]
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.parts.commands import median_ratio, turned
from bench.parts.floors import step_floor
from bench.parts.network import network_cost
from bench.parts.published import Published
from train.batches.batch import Batches, Normalize
from train.batches.data_loader import DataLoaderBatches
from train.batches.in_memory import InMemoryBatches
from train.batches.sampling import RankSampler
from train.data.dataset import Samples
from train.distributed.environment import DistributedEnvironment
from train.models.networks import build_model
from train.optimization.optimizer import build_optimizer
from train.options import Options
from train.reporting.gpu_peaks import peaks_of
from train.reporting.metrics import MetricsManager
from train.reporting.progress import TrainingProgress
from train.reporting.report import Report
from train.reporting.step_logger import StepLogger
from train.reporting.timing import StepTimer
from train.strategies.strategy import Strategy
from train.train_step import ModelWithLoss, TrainStep

BATCH = 64
WARM_UP = 12
COST_LIMIT = 1.01
PAIRS, PAIR_STEPS = 100, 4
Loop = Callable[[int], float]
"""Takes that number of steps; returns seconds."""


class Ours:
    """The built-in job's parts, with some of the fast loop's choices."""

    def __init__(
        self,
        options: Options,
        images: Samples,
        classes: int,
        device: torch.device,
        folder: Path,
        *,
        resident: bool,
        channels_last: bool,
        fused: bool,
        reported: bool = True,
    ) -> None:
        channels = images.inputs.shape[1]
        mean, std = (0.5,) * channels, (0.25,) * channels
        sampler = RankSampler(seed=0, rank=0, world_size=1, augmentation="flip" if channels == 3 else "none")
        self._made: Batches
        if resident:
            self._made = InMemoryBatches(
                images, Normalize(mean, std, device), sampler, device, storage=device
            )
        else:
            self._made = DataLoaderBatches(images, Normalize(mean, std, torch.device("cpu")), sampler, device)
        self._batches: Iterator[tuple[torch.Tensor, torch.Tensor]] = iter(())
        self._epoch = 0
        self._device = device
        torch.manual_seed(0)
        model = build_model(options, tuple(images.inputs.shape[1:]), classes).to(device)
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        model.to(memory_format=self._format)
        self._timer = StepTimer(device) if reported else Silent(device)
        strategy = Strategy(options, DistributedEnvironment(), device)
        optimizer = build_optimizer(strategy, model.parameters(), fused=fused)
        self._step = TrainStep(
            options,
            ModelWithLoss(model, options),
            optimizer,
            self._timer,
            strategy,
            batch_size=BATCH,
            micro_batch_size=BATCH,
        )
        self._progress = TrainingProgress(device)
        self._metrics = MetricsManager(options.metrics, classes, device)
        self._report = Report(path=folder / "metrics.jsonl", env=DistributedEnvironment(), options=options)
        self._log = StepLogger(self._report, self._timer, device, options.log_every, counts=True)
        self._reported = reported

    def __call__(self, steps: int) -> float:
        with self._report:
            began = time.perf_counter()
            for _ in range(steps):
                self._timer.start()
                images, labels = self._next()
                images = images.contiguous(memory_format=self._format)
                self._timer.data_ready(len(labels))
                loss, logits = self._step(images, labels)
                self._timer.end()
                if self._reported:
                    loss_sum = loss.double() * len(labels)
                    self._metrics.update(logits, labels, loss_sum)
                    self._progress.add_step(len(labels), loss_sum, consumed=0, counts=True)
                    self._log.add(self._progress, loss)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            return time.perf_counter() - began

    def _next(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch = next(self._batches, None)
        if batch is None or len(batch[1]) < BATCH:
            self._epoch += 1
            self._batches = iter(self._made.epoch(self._epoch, BATCH))
            batch = next(self._batches)
        return batch


class Silent(StepTimer):
    """A timer that records nothing."""

    def start(self) -> None: ...
    def data_ready(self, samples: int) -> None: ...
    def gradients_ready(self) -> None: ...
    def backward_done(self) -> None: ...
    def end(self) -> None: ...


def main() -> int:
    numbers = [word for word in sys.argv[1:] if word != "--compile"]
    rounds = int(numbers[0]) if numbers else 7
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    on_gpu = device.type == "cuda"
    steps = int(numbers[1]) if len(numbers) > 1 else (200 if on_gpu else 40)
    shape, model = ((3, 32, 32), "resnet18") if on_gpu else ((1, 28, 28), "cnn")
    limit = 10.0 if on_gpu else 1.3
    options = Options(model=model, lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    images = Samples(
        inputs=torch.randint(256, (BATCH * 100, *shape), generator=generator, dtype=torch.uint8),
        labels=torch.randint(10, (BATCH * 100,), generator=generator),
    )
    hardware = torch.cuda.get_device_name(device) if on_gpu else f"{os.cpu_count()} cores"
    print(f"{model}, batch {BATCH}, {'x'.join(map(str, shape))}, torch {torch.__version__}, {hardware}:")
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)

        def ours(
            options: Options = options,
            *,
            resident: bool = False,
            last: bool = False,
            fused: bool = False,
            reported: bool = True,
        ) -> Loop:
            return Ours(
                options, images, 10, device, folder,
                resident=resident, channels_last=last, fused=fused, reported=reported,
            )  # fmt: skip

        loops: dict[str, Loop] = {
            "the tutorials' loop": Published(options, images, 10, device, batch_size=BATCH),
            "--loop plain": ours(),
            "plain + data on the device": ours(resident=True),
            "plain + channels last": ours(last=True),
            "plain + fused optimizer": ours(fused=True),
            "--loop fast": ours(resident=True, last=True, fused=True),
        }
        if on_gpu or "--compile" in sys.argv:
            loops["fast, --compile"] = ours(
                replace(options, compile=True), resident=True, last=True, fused=True
            )
        if on_gpu:
            half = replace(options, precision="bf16")
            for name, chosen in (
                ("fast, --precision bf16", half),
                ("fast, bf16, --compile", replace(half, compile=True)),
            ):
                loops[name] = ours(chosen, resident=True, last=True, fused=True)
        silent = ours(resident=True, last=True, fused=True, reported=False)
        for loop in [*loops.values(), silent]:
            loop(WARM_UP)
        times: dict[str, list[float]] = {name: [] for name in loops}
        for number in range(rounds):
            for name in turned(list(loops), number):
                times[name].append(loops[name](steps))
        cost = cost_of(loops["--loop fast"], silent)
    missed = judge(times, cost, steps, limit)
    print_floors(options, shape, steps / statistics.median(fastest(times)), hardware)
    return missed


def print_floors(options: Options, shape: tuple[int, int, int], steps_per_s: float, device: str) -> None:
    """Print the distance of the fastest loop from the device's best."""
    network = network_cost(options, shape, 10)
    operations = network.flop_per_image * BATCH
    print(
        f"  {network.flop_per_image / 1e6:.1f} MFLOP an image, forward and backward: the fastest does "
        f"{operations * steps_per_s / 1e12:.3f} TFLOP/s"
    )
    peaks = peaks_of(device)
    if peaks is not None:
        floor = step_floor(network, BATCH, "bf16", tflops=peaks.tflops["bf16"], gb_s=peaks.gb_s)
        print(
            f"  floors of a step of {1000 / steps_per_s:.3f} ms: {floor['compute_ms']:.3f} ms for the arithmetic in "
            f"bf16, {floor['memory_ms']:.3f} ms for the way through memory"
        )


def cost_of(reporting: Loop, silent: Loop) -> float:
    """Return the median ratio of a few steps with clocks and metrics to equally many without."""
    ratios = []
    for number in range(PAIRS):
        if number % 2:
            first, second = reporting(PAIR_STEPS), silent(PAIR_STEPS)
        else:
            second, first = silent(PAIR_STEPS), reporting(PAIR_STEPS)
        ratios.append(first / second)
    return statistics.median(ratios)


def judge(times: dict[str, list[float]], cost: float, steps: int, limit: float) -> int:
    """Print the table. Returns 1 if a limit is missed."""
    base = times["the tutorials' loop"]
    for name, seconds in times.items():
        speed = steps * BATCH / statistics.median(seconds)
        print(
            f"  {name:28} {speed:10,.0f} images/s   {median_ratio(base, seconds):6.2f} x the tutorials' loop"
        )
    fast = times["--loop fast"]
    print(f"  clocks and metrics: {cost - 1:+.1%} of a step")
    missed = []
    if median_ratio(base, fastest(times)) < limit:
        missed.append(f"the fastest loop is less than {limit:g} times as fast as the tutorials'")
    if median_ratio(times["--loop plain"], fast) < 1:
        missed.append("the fast loop is slower than the plain one")
    if cost > COST_LIMIT:
        missed.append("clocks and metrics cost more than 1 %")
    for sentence in missed:
        print(sentence, file=sys.stderr)
    return 1 if missed else 0


def fastest(times: dict[str, list[float]]) -> list[float]:
    """Return the times of the fastest loop that the job's options can choose; other loops show single choices."""
    return min((times[name] for name in times if "fast" in name), key=statistics.median)


if __name__ == "__main__":
    sys.exit(main())
