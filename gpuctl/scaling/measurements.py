"""What a bench measured: the same job on several layouts, and how well it scales. Pure.

A layout is so many nodes with so many processes on each. Each of its repetitions is a run of its own; what is told
of a layout is the median of them, and how far they lie apart.
"""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from gpuctl import text
from gpuctl.errors import Usage
from gpuctl.run_results import metrics as told
from gpuctl.run_results.metric_names import Line, number
from inventories.run import Result, Share, StepMs

MOST_LAYOUTS = 32
Unit: TypeAlias = Literal["samples", "steps", "epochs"]
"""What a speed counts."""
_LAYOUT = re.compile(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})")


@dataclass(frozen=True, kw_only=True, order=True)
class Layout:
    """So many nodes, with so many processes on each."""

    nodes: int
    nproc: int

    @property
    def name(self) -> str:
        """As it is typed: `2x4`."""
        return f"{self.nodes}x{self.nproc}"

    @property
    def world_size(self) -> int:
        """Processes on all nodes."""
        return self.nodes * self.nproc


def parse_layouts(words: str, option: str) -> tuple[Layout, ...]:
    """`1x1,2x4` → layouts, each once, in their order. Raises Usage, which names the option."""
    found: dict[Layout, None] = {}
    for word in words.split(","):
        match = _LAYOUT.fullmatch(word.strip())
        if match is None:
            raise Usage(
                f"{option} {words!r} is not possible: {word.strip()!r} is no layout. Write NODESxPROCESSES, "
                f"separated by commas, as in {option} 1x1,2x4: two nodes with four processes each are 2x4."
            )
        found[Layout(nodes=int(match[1]), nproc=int(match[2]))] = None
    if len(found) > MOST_LAYOUTS:
        raise Usage(f"{option} names {len(found)} layouts: name at most {MOST_LAYOUTS}.")
    return tuple(found)


def default_layouts(gpus: Sequence[int]) -> tuple[Layout, ...]:
    """One process, one whole node, all nodes. `gpus`: how many each node has, at least one node."""
    nproc = max(min(gpus), 1)
    steps = (
        Layout(nodes=1, nproc=1),
        Layout(nodes=1, nproc=nproc),
        Layout(nodes=len(gpus), nproc=nproc),
    )
    return tuple(dict.fromkeys(steps))


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the job said of itself when it began; None: it did not say."""

    script: str | None = None
    """A person's own. None: the built-in job."""
    model: str | None = None
    dataset: str | None = None
    device: str | None = None
    loop: str | None = None
    precision: str | None = None
    batch_size: int | None = None
    """Samples a step and rank."""
    parameters: int | None = None
    gradient_bytes: int | None = None
    """What a rank gives into a step's all-reduce."""

    @property
    def compressed(self) -> bool:
        """True: it is known that fewer bytes are sent than the gradients have.

        A job that tells its parameters, but not the bytes, sends another number of them at each step: PowerSGD.
        """
        if self.parameters is None:
            return False
        return self.gradient_bytes is None or self.gradient_bytes < 4 * self.parameters

    @classmethod
    def of(cls, start: Line, script: str | None = None) -> Self:
        """From the line of its start. `script`: a person's own."""
        return cls(
            script=script,
            model=told.words(start.get("model")),
            dataset=told.words(start.get("dataset")),
            device=told.words(start.get("device")),
            loop=told.words(start.get("loop")),
            precision=told.words(start.get("precision")),
            batch_size=told.whole(start.get("batch_size")),
            parameters=told.whole(start.get("parameters")),
            gradient_bytes=told.whole(start.get("gradient_bytes")),
        )


@dataclass(frozen=True, kw_only=True)
class RankPace:
    """How long one rank was busy by itself in a step, not waiting for others."""

    rank: int
    node: str
    own_ms: float


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """One timed run."""

    run: str
    epoch_s: float
    """The median of its epochs; without the first, which warms up, where there are several. Else see `by_epoch`."""
    samples: float
    """That all ranks together took in such an epoch; steps or epochs where that is the `unit`."""
    step_ms: StepMs
    share: Share
    unit: Unit = "samples"
    steady_per_s: float | None = None
    """Of the unit, in steady steps. None: not known, and its speed is that of its epochs."""
    by_epoch: bool = True
    """False: the job timed no epoch, and `epoch_s` is the time of the run."""
    from_log: bool = False
    """True: counted from lines of its log over the whole run, with its start."""
    paces: tuple[RankPace, ...] = ()
    """Of the ranks that told of it."""

    @property
    def samples_per_s(self) -> float:
        """Of all ranks together; steps or epochs where that is the `unit`."""
        return self.steady_per_s or self.samples / self.epoch_s


def repetition_of_script(result: Result, metrics: Mapping[int, Sequence[Line]]) -> Repetition | None:
    """What a run of any script measured: by its epochs, else its samples, its steps, or what its log names of these.

    Steps are counted of all ranks together, as each has a batch of its own. None: it told of nothing that counts.
    """
    if found := repetition_of(result, metrics):
        return found
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


def repetition_of(result: Result, metrics: Mapping[int, Sequence[Line]]) -> Repetition | None:
    """What a run measured, from its result and its metrics lines by rank; None where it told of no epoch."""
    epochs = [
        (seconds, samples)
        for line in told.events(metrics.get(0, ()), "epoch")
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
        steady_per_s=number(told.event(metrics.get(0, ()), "end").get("samples_per_s")),
        step_ms=result.train.step_ms,
        share=result.train.share,
        paces=tuple(
            RankPace(rank=rank.rank, node=rank.node, own_ms=own_ms)
            for rank in result.ranks
            if (own_ms := _own_ms(metrics.get(rank.rank, ()))) is not None
        ),
    )


def _own_ms(lines: Sequence[Line]) -> float | None:
    """A rank's time a step without what it waited for others."""
    step_ms, waited = told.step_ms_of(lines).p50, told.share_of(lines).communication
    return None if step_ms is None or waited is None else step_ms * (1 - waited)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A layout, and its repetitions (at least one)."""

    layout: Layout
    job: Job
    hourly_usd: float | None
    """Price of the machines that take part; None: not known."""
    repetitions: tuple[Repetition, ...]
    one_machine: bool = False
    """True: its nodes are hosts on one machine."""

    @property
    def unit(self) -> Unit:
        """What its speed counts."""
        return self.repetitions[0].unit

    @property
    def by_epoch(self) -> bool:
        """Whether the job timed its epochs."""
        return all(one.by_epoch for one in self.repetitions)

    @property
    def is_steady(self) -> bool:
        """True: its speed is that of steady steps."""
        return all(one.steady_per_s for one in self.repetitions)

    @property
    def epoch_s(self) -> float:
        """The median."""
        return statistics.median(self.epochs_s)

    @property
    def epochs_s(self) -> tuple[float, ...]:
        """Of each repetition."""
        return tuple(one.epoch_s for one in self.repetitions)

    @property
    def spread(self) -> float:
        """How far the slowest repetition lies from the fastest in time for the same work, as a part of the median."""
        times = [1 / one.samples_per_s for one in self.repetitions]
        return (max(times) - min(times)) / statistics.median(times)

    @property
    def samples(self) -> int:
        """That all ranks together take in an epoch."""
        return round(statistics.median(one.samples for one in self.repetitions))

    @property
    def samples_per_s(self) -> float:
        """Of all ranks together, the median."""
        return statistics.median(one.samples_per_s for one in self.repetitions)

    @property
    def share(self) -> Share:
        """The mean of the repetitions that know their shares."""
        return told.mean_share(one.share for one in self.repetitions)

    @property
    def step_ms(self) -> StepMs:
        """The medians."""
        return StepMs(
            p50=_median(one.step_ms.p50 for one in self.repetitions),
            p95=_median(one.step_ms.p95 for one in self.repetitions),
        )

    @property
    def paces(self) -> tuple[RankPace, ...]:
        """Of each rank the median, by rank."""
        ranks: dict[tuple[int, str], list[float]] = {}
        for one in self.repetitions:
            for pace in one.paces:
                ranks.setdefault((pace.rank, pace.node), []).append(pace.own_ms)
        return tuple(
            RankPace(rank=rank, node=node, own_ms=statistics.median(times))
            for (rank, node), times in sorted(ranks.items())
        )

    @property
    def epoch_usd(self) -> float | None:
        """What the machines cost for an epoch; None where their price, or the epoch, is not known."""
        known = self.hourly_usd is not None and self.by_epoch
        return self.hourly_usd * self.epoch_s / 3600 if known and self.hourly_usd is not None else None

    def speed_up(self, base: "Measured") -> float:
        """How many times as many samples a second as `base`."""
        return self.samples_per_s / base.samples_per_s

    def efficiency(self, base: "Measured") -> float:
        """The speed-up, a rank."""
        return self.speed_up(base) * base.layout.world_size / self.layout.world_size

    def document(self, base: "Measured", *, compared: bool = True, disturbed: bool = False) -> "BenchLayout":
        """The layout's element of the document of `bench --json`; `base`: the first layout.

        `compared`: whether the two can be compared: else the figures of it are null. `disturbed`: see `BenchLayout`.
        """
        return BenchLayout(
            layout=self.layout.name,
            nnodes=self.layout.nodes,
            nproc_per_node=self.layout.nproc,
            world_size=self.layout.world_size,
            batch_size=self.job.batch_size,
            runs=tuple(one.run for one in self.repetitions),
            epoch_s=self.epochs_s if self.by_epoch else (),
            epoch_s_median=self.epoch_s if self.by_epoch else None,
            samples_per_s=self.samples_per_s if self.unit == "samples" else None,
            unit=self.unit,
            per_s=self.samples_per_s,
            from_log=any(one.from_log for one in self.repetitions),
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
    """What was measured on a layout."""

    layout: str
    """`2x4`: two nodes with four processes each."""
    nnodes: int
    nproc_per_node: int
    world_size: int
    batch_size: int | None
    """Of a rank."""
    runs: tuple[str, ...]
    epoch_s: tuple[float, ...]
    """Of each repetition. Empty: the script timed no epoch."""
    epoch_s_median: float | None
    samples_per_s: float | None
    """Of all ranks together, the median. None: the script told of no samples."""
    unit: Unit
    per_s: float
    """Of the unit, of all ranks together, the median."""
    from_log: bool
    """True: counted from lines of the script's log, over whole runs with their start."""
    spread: float
    """From the slowest repetition to the fastest, as a part of the median."""
    disturbed: bool
    """True: the figures contradicted themselves, also when they were measured again."""
    speed_up: float | None
    """Over the first layout. None: the two can't be compared."""
    efficiency: float | None
    """The speed-up, a rank."""
    step_ms: StepMs
    share: Share
    hourly_usd: float | None
    """Of the machines that took part."""
    epoch_usd: float | None


def title_of(measured: Sequence[Measured]) -> str:
    """`resnet18 on cifar10, batch 64 a rank`: what was measured on these layouts (at least one), if it is known."""
    job = measured[0].job
    about = " on ".join(text.clean(part, 40) for part in (job.model, job.dataset) if part)
    about = ": ".join(part for part in (text.clean(job.script or "", 40), about) if part)
    sizes = sorted({one.job.batch_size for one in measured if one.job.batch_size})
    if not sizes:
        return about
    size = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return f"{about}, batch {size} a rank" if about else f"batch {size} a rank"


def same_batch(measured: Iterable[Measured]) -> bool:
    """Whether a rank's step is of as many samples on each layout: else it is another step."""
    return len({one.job.batch_size for one in measured}) < 2


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
