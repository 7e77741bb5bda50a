"""The bottleneck of a job, and the first thing to change. Pure: measured layouts in, a sentence out.

The largest layout is compared with the first. Rules are tried in the order of `RULES`; the first that applies wins.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpuctl.scaling.measurements import Measured, same_batch
from gpuctl.text import clean, milliseconds, percent

Kind = Literal["straggler", "data", "network", "links", "small_batch", "contention", "disturbed", "compute"]
"""`network`: communication between nodes; `links`: within a node; `disturbed`: the measurement says little."""

STRAGGLER = 1.2
"""Multiple of the ranks' median busy time from which a rank is a straggler."""
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
"""Efficiency above which the first layout's measurement was disturbed."""
ON_ONE_MACHINE = "These hosts share one machine: first measure on machines of their own."
ABOUT_MACHINES: frozenset[Kind] = frozenset({"straggler", "network", "contention", "compute"})
"""Kinds that hosts on one machine can't be judged by."""


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """A bottleneck, and advice on it."""

    kind: Kind
    sentence: str
    """Description with figures."""
    advice: str
    """The first thing to change."""


def bottleneck(measured: Sequence[Measured]) -> Bottleneck | None:
    """Return the bottleneck of the largest layout (at least one). `None`: the job reported no shares of its steps."""
    judged = max(measured, key=lambda point: (point.layout.world_size, point.layout.nodes))
    if not judged.share.known:
        return None
    first = measured[0]
    finding = next(finding for rule in RULES if (finding := rule(judged, first)) is not None)
    shared = judged.one_machine and judged.layout.nodes > 1 and finding.kind in ABOUT_MACHINES
    return replace(finding, advice=ON_ONE_MACHINE) if shared else finding


def doubts(measured: Sequence[Measured]) -> list[str]:
    """Return sentences on why the table (of at least one layout) may mislead."""
    sentences, first = [], measured[0]
    widest = max(measured, key=lambda point: point.spread)
    if widest.spread > WIDE_SPREAD:
        sentences.append(
            f"The repetitions of {widest.layout.name} lie {percent(widest.spread)} of their median apart: repeat "
            "more often (--repeats), or take more epochs."
        )
    if disturbed(measured):
        best = _best(measured)
        sentences.append(
            f"A rank of {best.layout.name} is {best.efficiency(first):.1f} times as fast as one of "
            f"{first.layout.name}, which something held up: measure again when it has its node to itself."
        )
    if any(point.one_machine and point.layout.nodes > 1 for point in measured):
        sentences.append("The hosts share one machine: this is no measurement of machines.")
    if not all(same_batch((point, first)) for point in measured):
        sentences.append(
            "A rank's batch is not the same on each layout, so neither is its step: --batch-size, without "
            "--global-batch-size, has speed-ups compare the layouts alone."
        )
    return sentences


def disturbed(measured: Sequence[Measured]) -> bool:
    """Return whether a rank of a larger layout is much faster than one of the first layout."""
    return _best(measured).efficiency(measured[0]) > TOO_GOOD_EFFICIENCY


def comparable(measured: Sequence[Measured]) -> Sequence[Measured]:
    """Return the layouts with a meaningful speed-up; only the first layout if its own measurement was disturbed."""
    first = measured[0]
    if disturbed(measured) or first.spread > CONTRADICTING_SPREAD:
        return measured[:1]
    return [point for point in measured if point is first or point.spread <= CONTRADICTING_SPREAD]


def contradicting(measured: Sequence[Measured]) -> list[Measured]:
    """Return the layouts (of at least one) with contradicting figures.

    Repetitions far apart, or a speed-up above the number of ranks, which puts the first layout in doubt, too.
    """
    first = measured[0]
    too_good = {
        point.layout
        for point in measured
        if same_batch((point, first)) and point.efficiency(first) > TOO_GOOD_EFFICIENCY
    }
    if too_good:
        too_good.add(first.layout)
    return [point for point in measured if point.layout in too_good or point.spread > CONTRADICTING_SPREAD]


def _best(measured: Sequence[Measured]) -> Measured:
    """Return the layout with the fastest ranks, among layouts with the first layout's batch."""
    first = measured[0]
    same_batches = (point for point in measured if same_batch((point, first)))
    return max(same_batches, key=lambda point: point.efficiency(first))


def _straggler(judged: Measured, _first: Measured) -> Bottleneck | None:
    paces = judged.paces
    if len(paces) < 2:
        return None
    slowest = max(paces, key=lambda pace: pace.own_ms)
    factor = slowest.own_ms / statistics.median_low(pace.own_ms for pace in paces)
    if factor < STRAGGLER:
        return None
    return Bottleneck(
        kind="straggler",
        sentence=f"Rank {slowest.rank} on {clean(slowest.node, 60)} holds up {judged.layout.name}: its own part of a "
        f"step takes {milliseconds(slowest.own_ms)}, {factor:.1f} times the median of all ranks.",
        advice="First look at what else runs on that node and at its GPU's clock and temperature (gpuctl top), and "
        "replace the machine if that explains nothing.",
    )


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
    """Judge ranks that compute for longer than a rank of the first layout, by more than they wait."""
    now, alone = (_part_ms(point, point.share.compute) for point in (judged, first))
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
    resource = "a CPU, its memory, or power" if _on_gpus(judged) else "CPU cores or memory"
    return Bottleneck(
        kind="contention",
        sentence=f"The ranks of {judged.layout.name} slow each other down: {why}, so they share {resource}.",
        advice="First take fewer processes a node, or machines of their own.",
    )


def _communication(judged: Measured, first: Measured) -> Bottleneck | None:
    share, job, layout = judged.share.communication or 0.0, judged.job, judged.layout
    if share < COMMUNICATION_SHARE:
        return None
    waiting_ms = _part_ms(judged, share)
    waiting = percent(share) if waiting_ms is None else f"{milliseconds(waiting_ms)} ({percent(share)})"
    waiting += " of a step"
    if job.gradient_bytes:
        waiting += f", for {job.gradient_bytes / 1e6:,.1f} MB of gradients"
    larger_batch = _larger_batch(judged, first)
    compute_ms = _part_ms(judged, judged.share.compute)
    sends_few = job.gradient_bytes is not None and job.gradient_bytes < FEW_BYTES
    if compute_ms is not None and (sends_few or compute_ms < SHORT_COMPUTE_MS):
        batch = f" of {job.batch_size}" if job.batch_size else ""
        return Bottleneck(
            kind="small_batch",
            sentence=f"The batch{batch} is too small for {layout.name}: each rank computes for "
            f"{milliseconds(compute_ms)}, and then waits for the others for {waiting}.",
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
            sentence=f"Communication within the node is the bottleneck of {layout.name}: {waiting}.",
            advice=f"{smaller}; {lasting}.",
        )
    lasting = (
        "a faster network between the nodes, or more GPUs in fewer nodes, are the lasting way out"
        if _on_gpus(judged)
        else "a faster network between the nodes, or fewer and larger nodes, are the lasting way out"
    )
    return Bottleneck(
        kind="network",
        sentence=f"Communication over the network is the bottleneck of {layout.name}: {waiting}.",
        advice=f"{smaller}; {lasting} (gpuctl shapes lists them).",
    )


def _on_gpus(judged: Measured) -> bool:
    return (judged.job.device or "").startswith("cuda")


def _larger_batch(judged: Measured, first: Measured) -> str:
    """Return the option for a larger batch: of a rank, or of all ranks if layouts differ in the batch of a rank."""
    return "a larger --batch-size" if same_batch((judged, first)) else "a larger --global-batch-size"


def _part_ms(judged: Measured, share: float | None) -> float | None:
    """Return a part of the median step, ms."""
    step_ms = judged.step_ms.p50
    return None if step_ms is None or share is None else step_ms * share


def _contention(judged: Measured, first: Measured) -> Bottleneck | None:
    """Judge ranks that hardly wait, yet are slower than a rank of the first layout."""
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
"""The last rule always applies."""
