"""What keeps a job from being faster, and the first thing to change. Pure: measured layouts in, a sentence out.

The largest layout is judged, against the first. Rules are tried in the order of `RULES`; the first that applies is
told.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpuctl.scaling.measurements import Measured, RankPace, same_batch
from gpuctl.text import clean, milliseconds, percent

Kind = Literal["straggler", "data", "network", "links", "small_batch", "contention", "disturbed", "compute"]
"""`network`: communication between nodes; `links`: within a node; `disturbed`: the measurement says little."""

STRAGGLER = 1.2
"""A rank is a straggler that is busy by itself this many times as long as the median of all ranks."""
DATA_SHARE = 0.25
COMMUNICATION_SHARE = 0.2
SHORT_COMPUTE_MS = 10.0
"""A rank that computes for less than this in a step, and then waits, has too small a batch."""
FEW_BYTES = 1_000_000
"""Gradients of fewer bytes than this wait for the network's answer rather than for its bandwidth."""
GOOD_EFFICIENCY = 0.8
WIDE_SPREAD = 0.2
CONTRADICTING_SPREAD = 0.5
TOO_GOOD_EFFICIENCY = 1.05
"""A rank of many that is so much faster than one alone was not measured beside the same."""
ON_ONE_MACHINE = "These hosts share one machine: first measure on machines of their own."
ABOUT_MACHINES: frozenset[Kind] = frozenset({"straggler", "network", "contention", "compute"})
"""What is different on machines of their own."""


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """What was found."""

    kind: Kind
    sentence: str
    """What it is, with its figures."""
    advice: str
    """The first thing to change."""


def bottleneck(measured: Sequence[Measured]) -> Bottleneck | None:
    """What limits the largest of the layouts (at least one); None where the job told nothing of its steps."""
    judged = max(measured, key=lambda one: (one.layout.world_size, one.layout.nodes))
    if not judged.share.known:
        return None
    first = measured[0]
    found = next(found for rule in RULES if (found := rule(judged, first)) is not None)
    shared = judged.one_machine and judged.layout.nodes > 1 and found.kind in ABOUT_MACHINES
    return replace(found, advice=ON_ONE_MACHINE) if shared else found


def doubts(measured: Sequence[Measured]) -> list[str]:
    """Sentences on why the table (of at least one layout) may say little."""
    found, first = [], measured[0]
    widest = max(measured, key=lambda one: one.spread)
    if widest.spread > WIDE_SPREAD:
        found.append(
            f"The repetitions of {widest.layout.name} lie {percent(widest.spread)} of their median apart: repeat "
            "more often (--repeats), or take more epochs."
        )
    if disturbed(measured):
        best = _best(measured)
        found.append(
            f"A rank of {best.layout.name} is {best.efficiency(first):.1f} times as fast as one of "
            f"{first.layout.name}, which something held up: measure again when it has its node to itself."
        )
    if any(one.one_machine and one.layout.nodes > 1 for one in measured):
        found.append("The hosts share one machine: this is no measurement of machines.")
    if not all(same_batch((one, first)) for one in measured):
        found.append(
            "A rank's batch is not the same on each layout, so neither is its step: --batch-size, without "
            "--global-batch-size, has speed-ups compare the layouts alone."
        )
    return found


def disturbed(measured: Sequence[Measured]) -> bool:
    """Whether a rank of a larger layout is much faster than one alone: then nothing follows from the table."""
    return _best(measured).efficiency(measured[0]) > TOO_GOOD_EFFICIENCY


def comparable(measured: Sequence[Measured]) -> Sequence[Measured]:
    """The layouts (of at least one) whose speed-up says something: where the first was held up, that one alone."""
    first = measured[0]
    if disturbed(measured) or first.spread > CONTRADICTING_SPREAD:
        return measured[:1]
    return [one for one in measured if one is first or one.spread <= CONTRADICTING_SPREAD]


def contradicting(measured: Sequence[Measured]) -> list[Measured]:
    """The layouts (of at least one) whose figures contradict themselves.

    Their repetitions lie far apart, or their speed-up is above the number of ranks; then the first one's do, too.
    """
    first = measured[0]
    too_good = {
        one.layout
        for one in measured
        if same_batch((one, first)) and one.efficiency(first) > TOO_GOOD_EFFICIENCY
    }
    if too_good:
        too_good.add(first.layout)
    return [one for one in measured if one.layout in too_good or one.spread > CONTRADICTING_SPREAD]


def _best(measured: Sequence[Measured]) -> Measured:
    """The layout whose ranks are the fastest, of those whose batch is the first one's."""
    first = measured[0]
    alike = (one for one in measured if same_batch((one, first)))
    return max(alike, key=lambda one: one.efficiency(first))


def _straggler(judged: Measured, _first: Measured) -> Bottleneck | None:
    paces = judged.paces
    if len(paces) < 2:
        return None
    slowest = max(paces, key=lambda pace: pace.own_ms)
    factor = slowest.own_ms / _usual(paces)
    if factor < STRAGGLER:
        return None
    return Bottleneck(
        kind="straggler",
        sentence=f"Rank {slowest.rank} on {clean(slowest.node, 60)} holds up {judged.layout.name}: its own part of a "
        f"step takes {milliseconds(slowest.own_ms)}, {factor:.1f} times the median of all ranks.",
        advice="First look at what else runs on that node and at its GPU's clock and temperature (gpuctl top), and "
        "replace the machine if that explains nothing.",
    )


def _usual(paces: Sequence[RankPace]) -> float:
    return statistics.median_low([pace.own_ms for pace in paces])


def _data(judged: Measured, first: Measured) -> Bottleneck | None:
    data, communication = judged.share.data or 0.0, judged.share.communication or 0.0
    if data < DATA_SHARE or data < communication:
        return None
    resident = judged.job.loop == "fast"
    happens = "the ranks make their batches" if resident else "the ranks wait for their batch"
    advice = (
        "First take --loop fast, which keeps the images on the device."
        if judged.job.loop == "plain"
        else f"First take {_larger_batch(judged, first)}: the images are on the device, where a batch of more "
        "of them is made in as many operations."
        if resident and _on_gpus(judged)
        else "First give the ranks more CPU cores: a larger shape"
        + (", or fewer processes a node." if judged.layout.nproc > 1 else ".")
    )
    return Bottleneck(
        kind="data",
        sentence=f"Data is the bottleneck of {judged.layout.name}: {happens} for {percent(data)} of a step.",
        advice=advice,
    )


def _slowed(judged: Measured, first: Measured) -> Bottleneck | None:
    """Each rank computes for longer than one of the first layout, and that costs more than the waiting does."""
    now, alone = (_part_ms(one, one.share.compute) for one in (judged, first))
    waits = _part_ms(judged, judged.share.communication)
    if judged is first or not same_batch((judged, first)) or now is None or alone is None or waits is None:
        return None
    if judged.efficiency(first) >= GOOD_EFFICIENCY or now - alone <= waits:
        return None
    return _shared(
        judged,
        f"each computes for {milliseconds(now)} of a step, one of {first.layout.name} for {milliseconds(alone)}",
    )


def _shared(judged: Measured, why: str) -> Bottleneck:
    what = "a CPU, its memory, or power" if _on_gpus(judged) else "CPU cores or memory"
    return Bottleneck(
        kind="contention",
        sentence=f"The ranks of {judged.layout.name} slow each other down: {why}, so they share {what}.",
        advice="First take fewer processes a node, or machines of their own.",
    )


def _communication(judged: Measured, first: Measured) -> Bottleneck | None:
    share, job, layout = judged.share.communication or 0.0, judged.job, judged.layout
    if share < COMMUNICATION_SHARE:
        return None
    what = f"{_exposed(judged)} of a step"
    if job.gradient_bytes:
        what += f", for {job.gradient_bytes / 1e6:,.1f} MB of gradients"
    larger_batch = _larger_batch(judged, first)
    compute_ms = _part_ms(judged, judged.share.compute)
    few = job.gradient_bytes is not None and job.gradient_bytes < FEW_BYTES
    if compute_ms is not None and (few or compute_ms < SHORT_COMPUTE_MS):
        batch = f" of {job.batch_size}" if job.batch_size else ""
        return Bottleneck(
            kind="small_batch",
            sentence=f"The batch{batch} is too small for {layout.name}: each rank computes for "
            f"{milliseconds(compute_ms)}, and then waits for the others for {what}.",
            advice=f"First take {larger_batch}: fewer steps an epoch, each with more to compute and no more to send.",
        )
    smaller = (
        f"First take {larger_batch}, which sends less often"
        if job.compressed
        else "First take --compression half, which halves what is sent"
    )
    if layout.nodes == 1:
        lasting = (
            "GPUs that are linked by NVLink are the lasting way out"
            if _on_gpus(judged)
            else "one process sends nothing, and can use all of the node's cores"
        )
        return Bottleneck(
            kind="links",
            sentence=f"Communication within the node is the bottleneck of {layout.name}: {what}.",
            advice=f"{smaller}; {lasting}.",
        )
    lasting = (
        "a faster network between the nodes, or more GPUs in fewer nodes, are the lasting way out"
        if _on_gpus(judged)
        else "a faster network between the nodes, or fewer and larger nodes, are the lasting way out"
    )
    return Bottleneck(
        kind="network",
        sentence=f"Communication over the network is the bottleneck of {layout.name}: {what}.",
        advice=f"{smaller}; {lasting} (gpuctl shapes lists them).",
    )


def _on_gpus(judged: Measured) -> bool:
    return (judged.job.device or "").startswith("cuda")


def _larger_batch(judged: Measured, first: Measured) -> str:
    """What to ask the job for; where ranks have other batches on other layouts, it is the one of all together."""
    return "a larger --batch-size" if same_batch((judged, first)) else "a larger --global-batch-size"


def _exposed(judged: Measured) -> str:
    """`17.1 ms (44.7 %)`: what a step spends waiting for the others."""
    share = judged.share.communication
    spent = _part_ms(judged, share)
    return percent(share) if spent is None else f"{milliseconds(spent)} ({percent(share)})"


def _part_ms(judged: Measured, share: float | None) -> float | None:
    """A part of the median step, milliseconds."""
    step_ms = judged.step_ms.p50
    return None if step_ms is None or share is None else step_ms * share


def _contention(judged: Measured, first: Measured) -> Bottleneck | None:
    """The ranks hardly wait, and yet each is slower than one alone: its batch is smaller, or they share something."""
    efficiency = judged.efficiency(first)
    if judged is first or efficiency >= GOOD_EFFICIENCY:
        return None
    if not same_batch((judged, first)):
        return Bottleneck(
            kind="small_batch",
            sentence=f"The batch of a rank is {judged.job.batch_size} on {judged.layout.name} and "
            f"{first.job.batch_size} on {first.layout.name}: each rank does {percent(efficiency)} of what one of "
            f"{first.layout.name} does.",
            advice="First take a larger --global-batch-size, or the same --batch-size on each layout, to tell what "
            "the layouts themselves bring.",
        )
    return _shared(
        judged,
        f"they hardly wait for each other, and yet each does {percent(efficiency)} of what one of "
        f"{first.layout.name} does",
    )


def _disturbed(judged: Measured, first: Measured) -> Bottleneck | None:
    if not disturbed((first, judged)):
        return None
    return Bottleneck(
        kind="disturbed",
        sentence=f"Something else held up {first.layout.name}, whose rank is slower than each of "
        f"{judged.layout.name}: the speed-ups say nothing.",
        advice="First measure again when the machines have nothing else to do (gpuctl top).",
    )


def _compute(judged: Measured, first: Measured) -> Bottleneck:
    share = percent(judged.share.compute)
    faster = (
        "--precision bf16"
        if judged.job.precision in (None, "fp32") and _on_gpus(judged)
        else "a faster GPU or CPU for each rank"
    )
    if judged is first:
        return Bottleneck(
            kind="compute",
            sentence=f"Compute is the bottleneck of {judged.layout.name}: {share} of a step.",
            advice=f"First take {faster}, or more ranks: --layouts tells whether they help.",
        )
    return Bottleneck(
        kind="compute",
        sentence=f"Compute is the bottleneck of {judged.layout.name}, {share} of a step, and it scales well: "
        f"{percent(judged.efficiency(first))} efficiency over {first.layout.name}.",
        advice=f"First add ranks (--forecast tells what they would bring), or take {faster}.",
    )


RULES: tuple[Callable[[Measured, Measured], Bottleneck | None], ...] = (
    _straggler,
    _data,
    _slowed,
    _communication,
    _contention,
    _disturbed,
    _compute,
)
"""The last always applies."""
