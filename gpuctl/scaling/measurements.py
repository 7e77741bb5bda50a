"""Measurements of a bench: the same job on several layouts, and how well it scales. Pure.

A layout is a number of nodes and of processes on each. Each repetition is a run; a layout's figures are medians over
its repetitions, with their spread.
"""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from gpuctl import text
from gpuctl.errors import Usage
from gpuctl.run_results.metric_names import Line, number, whole, words
from gpuctl.run_results.rank_metrics import RankMetrics, mean_share
from inventories.runs.result import Result, Share, StepMs

MAX_LAYOUTS = 32
Unit: TypeAlias = Literal["samples", "steps", "epochs"]
"""Unit of a speed's numerator."""
_LAYOUT = re.compile(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})")


@dataclass(frozen=True, kw_only=True, order=True)
class Layout:
    """A number of nodes, and of processes on each."""

    nodes: int
    nproc: int

    @property
    def name(self) -> str:
        """The name that a user types: `2x4`."""
        return f"{self.nodes}x{self.nproc}"

    @property
    def world_size(self) -> int:
        """Processes on all nodes."""
        return self.nodes * self.nproc


def parse_layouts(words: str, option: str) -> tuple[Layout, ...]:
    """Parse `1x1,2x4` as layouts, each once, in their order. Raises Usage, which names the option."""
    layouts: dict[Layout, None] = {}
    for word in words.split(","):
        match = _LAYOUT.fullmatch(word.strip())
        if match is None:
            raise Usage(
                f"{option} {words!r} is not possible: {word.strip()!r} is no layout. Write NODESxPROCESSES, "
                f"separated by commas, as in {option} 1x1,2x4: two nodes with four processes each are 2x4."
            )
        layouts[Layout(nodes=int(match[1]), nproc=int(match[2]))] = None
    if len(layouts) > MAX_LAYOUTS:
        raise Usage(f"{option} names {len(layouts)} layouts: name at most {MAX_LAYOUTS}.")
    return tuple(layouts)


def default_layouts(gpus: Sequence[int]) -> tuple[Layout, ...]:
    """Return one process, one whole node, all nodes. `gpus`: GPUs of each node (at least one node)."""
    nproc = max(min(gpus), 1)
    steps = (
        Layout(nodes=1, nproc=1),
        Layout(nodes=1, nproc=nproc),
        Layout(nodes=len(gpus), nproc=nproc),
    )
    return tuple(dict.fromkeys(steps))


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job's settings, from the metrics line of its start. `None`: not in that line."""

    script: str | None = None
    """The user's script. `None`: the built-in job."""
    model: str | None = None
    dataset: str | None = None
    device: str | None = None
    loop: str | None = None
    precision: str | None = None
    batch_size: int | None = None
    """Samples a step and rank."""
    parameters: int | None = None
    gradient_bytes: int | None = None
    """Bytes that a rank contributes to a step's all-reduce."""

    @property
    def compressed(self) -> bool:
        """True: the job sends fewer bytes than its gradients have.

        A job that reports parameters but no bytes sends a varying number of bytes a step: PowerSGD.
        """
        if self.parameters is None:
            return False
        return self.gradient_bytes is None or self.gradient_bytes < 4 * self.parameters

    @classmethod
    def of(cls, start: Line, script: str | None = None) -> Self:
        """Read the line of a job's start. `script`: the user's."""
        return cls(
            script=script,
            model=words(start.get("model")),
            dataset=words(start.get("dataset")),
            device=words(start.get("device")),
            loop=words(start.get("loop")),
            precision=words(start.get("precision")),
            batch_size=whole(start.get("batch_size")),
            parameters=whole(start.get("parameters")),
            gradient_bytes=whole(start.get("gradient_bytes")),
        )


@dataclass(frozen=True, kw_only=True)
class RankPace:
    """A rank's busy time in a step, without its waits for other ranks."""

    rank: int
    node: str
    own_ms: float


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """A timed run."""

    run: str
    epoch_s: float
    """Median seconds of its epochs, of several without the first, which warms up. Otherwise see `by_epoch`."""
    samples: float
    """Samples that all ranks together took in such an epoch; in the `unit`, which may be steps or epochs."""
    step_ms: StepMs
    share: Share
    unit: Unit = "samples"
    steady_per_s: float | None = None
    """Speed of steady steps, in the unit a second. `None`: not known, and the speed is that of the epochs."""
    by_epoch: bool = True
    """False: the job timed no epoch, and `epoch_s` is the time of the run."""
    from_log: bool = False
    """True: counted from lines of its log over the whole run, with its start."""
    paces: tuple[RankPace, ...] = ()
    """Busy times of the ranks that reported one."""

    @property
    def samples_per_s(self) -> float:
        """Speed of all ranks together, in the `unit` a second."""
        return self.steady_per_s or self.samples / self.epoch_s


def repetition_of_script(result: Result, metrics: Mapping[int, RankMetrics]) -> Repetition | None:
    """Return the measurement of a run of any script: its epochs, else samples, steps, or numbers in its log.

    Steps are summed over all ranks, as each rank has its own batch. `None`: the run reported no countable work.
    """
    if by_epochs := repetition_of(result, metrics):
        return by_epochs
    train, run_s, ranks = result.train, result.seconds.train, result.world_size
    if not run_s:
        return None
    unit: Unit
    if per_s := train.samples_per_s:
        unit = "samples"
    elif train.step_ms.p50:
        unit, per_s = "steps", ranks * 1000 / train.step_ms.p50
    elif train.loss_from == "log" and len(train.loss_at) > 1:
        counted = train.loss_at[-1] - train.loss_at[0] + 1
        by_step = train.loss_by == "step"
        unit, per_s = ("steps", counted * ranks / run_s) if by_step else ("epochs", counted / run_s)
    else:
        return None
    return Repetition(
        run=result.run,
        epoch_s=run_s,
        samples=per_s * run_s,
        step_ms=train.step_ms,
        share=train.share,
        unit=unit,
        by_epoch=False,
        from_log=train.loss_from == "log" and not train.samples_per_s and not train.step_ms.p50,
    )


def repetition_of(result: Result, metrics: Mapping[int, RankMetrics]) -> Repetition | None:
    """Return a run's measurement from its result and its metrics lines by rank. `None`: no epoch was reported."""
    first = metrics.get(0, RankMetrics())
    epochs = [
        (seconds, samples)
        for line in first.epochs
        if (seconds := number(line.get("epoch_s")))
        and (samples := number(line.get("samples")) or seconds * (number(line.get("samples_per_s")) or 0.0))
    ]
    steady = epochs[1:] or epochs
    if not steady:
        return None
    return Repetition(
        run=result.run,
        epoch_s=statistics.median(seconds for seconds, _ in steady),
        samples=statistics.median(samples for _, samples in steady),
        steady_per_s=number(first.end.get("samples_per_s")),
        step_ms=result.train.step_ms,
        share=result.train.share,
        paces=tuple(
            RankPace(rank=rank.rank, node=rank.node, own_ms=own_ms)
            for rank in result.ranks
            if rank.rank in metrics and (own_ms := _own_ms(metrics[rank.rank])) is not None
        ),
    )


def _own_ms(metrics: RankMetrics) -> float | None:
    """Return a rank's time a step, without its waits for other ranks."""
    step_ms, waited = metrics.step_ms.p50, metrics.share.communication
    return None if step_ms is None or waited is None else step_ms * (1 - waited)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A layout, and its repetitions (at least one)."""

    layout: Layout
    job: Job
    hourly_usd: float | None
    """Price of the machines that take part; `None`: not known."""
    repetitions: tuple[Repetition, ...]
    one_machine: bool = False
    """True: the nodes are hosts on one machine."""

    @property
    def unit(self) -> Unit:
        """The unit of its speed."""
        return self.repetitions[0].unit

    @property
    def by_epoch(self) -> bool:
        """True: the job timed its epochs."""
        return all(repetition.by_epoch for repetition in self.repetitions)

    @property
    def is_steady(self) -> bool:
        """True: its speed is that of steady steps."""
        return all(repetition.steady_per_s for repetition in self.repetitions)

    @property
    def epoch_s(self) -> float:
        """Median seconds of an epoch."""
        return statistics.median(self.epochs_s)

    @property
    def epochs_s(self) -> tuple[float, ...]:
        """Seconds of an epoch, of each repetition."""
        return tuple(repetition.epoch_s for repetition in self.repetitions)

    @property
    def spread(self) -> float:
        """Slowest minus fastest time of the repetitions for the same work, as a part of the median."""
        times = [1 / repetition.samples_per_s for repetition in self.repetitions]
        return (max(times) - min(times)) / statistics.median(times)

    @property
    def samples(self) -> int:
        """Samples of an epoch, of all ranks together."""
        return round(statistics.median(repetition.samples for repetition in self.repetitions))

    @property
    def samples_per_s(self) -> float:
        """Median speed of all ranks together."""
        return statistics.median(repetition.samples_per_s for repetition in self.repetitions)

    @property
    def share(self) -> Share:
        """The mean over the repetitions with known shares."""
        return mean_share(repetition.share for repetition in self.repetitions)

    @property
    def step_ms(self) -> StepMs:
        """The medians of the repetitions' steps."""
        return StepMs(
            p50=_median(repetition.step_ms.p50 for repetition in self.repetitions),
            p95=_median(repetition.step_ms.p95 for repetition in self.repetitions),
        )

    @property
    def paces(self) -> tuple[RankPace, ...]:
        """The median of each rank, in the order of ranks."""
        ranks: dict[tuple[int, str], list[float]] = {}
        for repetition in self.repetitions:
            for pace in repetition.paces:
                ranks.setdefault((pace.rank, pace.node), []).append(pace.own_ms)
        return tuple(
            RankPace(rank=rank, node=node, own_ms=statistics.median(times))
            for (rank, node), times in sorted(ranks.items())
        )

    @property
    def epoch_usd(self) -> float | None:
        """Price of the machines for an epoch. `None`: their price or the epoch's time is not known."""
        known = self.hourly_usd is not None and self.by_epoch
        return self.hourly_usd * self.epoch_s / 3600 if known and self.hourly_usd is not None else None

    def speed_up(self, base: "Measured") -> float:
        """Return this layout's speed as a multiple of that of `base`."""
        return self.samples_per_s / base.samples_per_s

    def efficiency(self, base: "Measured") -> float:
        """Return the speed-up a rank."""
        return self.speed_up(base) * base.layout.world_size / self.layout.world_size

    def document(self, base: "Measured", *, compared: bool = True, disturbed: bool = False) -> "BenchLayout":
        """Return the layout's element of the document of `bench --json`. `base`: the first layout.

        `compared`: False leaves out the comparison with `base`. `disturbed`: see `BenchLayout`.
        """
        return BenchLayout(
            layout=self.layout.name,
            nnodes=self.layout.nodes,
            nproc_per_node=self.layout.nproc,
            world_size=self.layout.world_size,
            batch_size=self.job.batch_size,
            runs=tuple(repetition.run for repetition in self.repetitions),
            epoch_s=self.epochs_s if self.by_epoch else (),
            epoch_s_median=self.epoch_s if self.by_epoch else None,
            samples_per_s=self.samples_per_s if self.unit == "samples" else None,
            unit=self.unit,
            per_s=self.samples_per_s,
            from_log=any(repetition.from_log for repetition in self.repetitions),
            spread=self.spread,
            disturbed=disturbed,
            speed_up=self.speed_up(base) if compared else None,
            efficiency=self.efficiency(base) if compared else None,
            step_ms=self.step_ms,
            share=self.share,
            hourly_usd=self.hourly_usd,
            epoch_usd=self.epoch_usd,
        )


@dataclass(frozen=True, kw_only=True)
class BenchLayout:
    """A layout's element of `bench --json`."""

    layout: str
    """`2x4`: two nodes with four processes each."""
    nnodes: int
    nproc_per_node: int
    world_size: int
    batch_size: int | None
    """Samples of a step of a rank."""
    runs: tuple[str, ...]
    epoch_s: tuple[float, ...]
    """Seconds of each repetition. Empty: the script timed no epoch."""
    epoch_s_median: float | None
    samples_per_s: float | None
    """Median over the repetitions, of all ranks together. `None`: the script reported no samples."""
    unit: Unit
    per_s: float
    """Median speed of all ranks together, in the unit."""
    from_log: bool
    """True: counted from lines of the script's log, over whole runs with their start."""
    spread: float
    """Slowest minus fastest repetition, as a part of the median."""
    disturbed: bool
    """True: the figures contradicted themselves, also when they were measured again."""
    speed_up: float | None
    """Relative to the first layout. `None`: not comparable."""
    efficiency: float | None
    """Speed-up a rank."""
    step_ms: StepMs
    share: Share
    hourly_usd: float | None
    """Price of the machines that took part."""
    epoch_usd: float | None


def title_of(measured: Sequence[Measured]) -> str:
    """Return `resnet18 on cifar10, batch 64 a rank`: the job of these layouts (at least one), as far as known."""
    job = measured[0].job
    about = " on ".join(text.clean(part, 40) for part in (job.model, job.dataset) if part)
    about = ": ".join(part for part in (text.clean(job.script or "", 40), about) if part)
    sizes = sorted({point.job.batch_size for point in measured if point.job.batch_size})
    if not sizes:
        return about
    size = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return f"{about}, batch {size} a rank" if about else f"batch {size} a rank"


def same_batch(measured: Iterable[Measured]) -> bool:
    """Return whether a rank's step has the same number of samples on each layout."""
    return len({point.job.batch_size for point in measured}) < 2


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
