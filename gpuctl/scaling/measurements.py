"""What a bench measured: the same job on several layouts, and how well it scales. Pure.

A layout is so many nodes with so many processes on each. Each of its repetitions is a run of its own; what is told
of a layout is the median of them, and how far they lie apart.
"""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from gpuctl.errors import Usage
from gpuctl.run_results import metrics as told
from inventories.run import Result, Share, StepMs

MOST_LAYOUTS = 32
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
    def of(cls, start: told.Line) -> Self:
        """From the line of its start."""
        return cls(
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
    """The median of its epochs; without the first, which warms up, where there are several."""
    samples: float
    """That all ranks together took in such an epoch."""
    step_ms: StepMs
    share: Share
    paces: tuple[RankPace, ...] = ()
    """Of the ranks that told of it."""

    @property
    def samples_per_s(self) -> float:
        """Of all ranks together."""
        return self.samples / self.epoch_s


def repetition_of(result: Result, metrics: Mapping[int, Sequence[told.Line]]) -> Repetition | None:
    """What a run measured, from its result and its metrics lines by rank; None where it told of no epoch."""
    epochs = [
        (seconds, samples_per_s * seconds)
        for line in told.events(metrics.get(0, ()), "epoch")
        if (seconds := told.number(line.get("epoch_s")))
        and (samples_per_s := told.number(line.get("samples_per_s")))
    ]
    steady = epochs[1:] or epochs
    if not steady:
        return None
    return Repetition(
        run=result.run,
        epoch_s=statistics.median(seconds for seconds, _ in steady),
        samples=statistics.median(samples for _, samples in steady),
        step_ms=result.train.step_ms,
        share=result.train.share,
        paces=tuple(
            RankPace(rank=rank.rank, node=rank.node, own_ms=own_ms)
            for rank in result.ranks
            if (own_ms := _own_ms(metrics.get(rank.rank, ()))) is not None
        ),
    )


def _own_ms(lines: Sequence[told.Line]) -> float | None:
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
        """How far the slowest repetition lies from the fastest, as a part of the median."""
        return (max(self.epochs_s) - min(self.epochs_s)) / self.epoch_s

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
        """What the machines cost for an epoch; None where their price is not known."""
        return None if self.hourly_usd is None else self.hourly_usd * self.epoch_s / 3600

    def speed_up(self, base: "Measured") -> float:
        """How many times as many samples a second as `base`."""
        return self.samples_per_s / base.samples_per_s

    def efficiency(self, base: "Measured") -> float:
        """The speed-up, a rank."""
        return self.speed_up(base) * base.layout.world_size / self.layout.world_size

    def document(self, base: "Measured", *, compared: bool = True) -> "BenchLayout":
        """The layout's element of the document of `bench --json`; `base`: the first layout.

        `compared`: whether the two can be compared: else the figures of it are null.
        """
        return BenchLayout(
            layout=self.layout.name,
            nnodes=self.layout.nodes,
            nproc_per_node=self.layout.nproc,
            world_size=self.layout.world_size,
            batch_size=self.job.batch_size,
            runs=tuple(one.run for one in self.repetitions),
            epoch_s=self.epochs_s,
            epoch_s_median=self.epoch_s,
            samples_per_s=self.samples_per_s,
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
    """Of each repetition."""
    epoch_s_median: float
    samples_per_s: float
    """Of all ranks together, the median."""
    speed_up: float | None
    """Over the first layout. None: the two can't be compared."""
    efficiency: float | None
    """The speed-up, a rank."""
    step_ms: StepMs
    share: Share
    hourly_usd: float | None
    """Of the machines that took part."""
    epoch_usd: float | None


def same_batch(measured: Iterable[Measured]) -> bool:
    """Whether a rank's step is of as many samples on each layout: else it is another step."""
    return len({one.job.batch_size for one in measured}) < 2


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
