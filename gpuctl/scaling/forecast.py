"""Forecast of another layout's speed and cost from a measured one, before machines are rented. Pure.

A step of a layout of n ranks is the measured rank's own work, which stays the same, as each rank keeps its batch,
and the averaging of the gradients. That is a ring all-reduce for each of DistributedDataParallel's buckets: together
2 (n - 1) / n times the gradients' bytes over the slowest link of the ring, each link at its bus bandwidth (as
measured by `train.allreduce`), and for each bucket the ring's latency, which only the slow end of every range counts.

Assumptions that no measurement can replace beforehand:

- the part of the averaging that is hidden behind the backward pass. The slow end of every range hides nothing, the
  fast end as much as fits behind the whole backward pass, which is `BACKWARD` of the compute time;
- that a link with only a vendor's figure reaches that figure at the fast end, and at the slow end
  `network_links.NOMINAL_AT_LEAST` times the figure, after `network_links.UNMEASURED_HOP_S`;
- that the nodes are like the measured one, and share nothing but the network; and a GPU's work does not depend on
  the other GPUs of its node. Processes on CPUs compete for cores, so their number a node has to have been measured.

A cost is given for nodes like the measured ones only, so not for more processes a node than these have GPUs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpuctl.command_results import same_fields
from gpuctl.scaling.gradient_buckets import buckets_of
from gpuctl.scaling.measurements import Layout, Measured
from gpuctl.scaling.network_links import Bandwidth, Network, rounds
from inventories.text import plural

BACKWARD = 2 / 3
"""Of the compute time: the backward pass does about twice the arithmetic of the forward pass."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A rank's own work in a step, measured on some layout: the base of a forecast."""

    layout: Layout
    data_ms: float
    compute_ms: float
    gradient_bytes: int
    buckets: int
    """All-reduces of the gradients."""
    batch_size: int
    """Samples a step and rank."""
    samples: int
    """Samples of an epoch."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """The range of a forecast."""

    fast: float
    """With full overlap of averaging and backward pass, and no latency."""
    slow: float
    """With no overlap, and all latency."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A layout's forecast."""

    layout: Layout
    steps: int
    """Steps of an epoch."""
    bandwidth: Bandwidth | None
    """Bandwidth of the slowest link. `None`: a single rank."""
    buckets: int
    """All-reduces a step, each with its `latency_ms` at the slow end."""
    latency_ms: float
    communication_ms: Range
    """Part of a step's time, without communication hidden behind the backward pass."""
    step_ms: Range
    epoch_s: Range
    samples_per_s: Range


def ring_ms(gradient_bytes: int, ranks: int, gb_s: float) -> float:
    """Return the milliseconds of a ring all-reduce over links of `gb_s`."""
    return rounds(ranks) * gradient_bytes / (gb_s * 1e6)


def steps_an_epoch(samples: int, batch_size: int, ranks: int) -> int:
    """Return the steps of each rank, with a last, partial batch."""
    return math.ceil(math.ceil(samples / ranks) / batch_size)


def forecast(step: Step, layout: Layout, network: Network) -> Forecast | None:
    """Return the layout's forecast. `None`: the bandwidth of its slowest link is not known."""
    ranks = layout.world_size
    link = network.slowest(layout) if ranks > 1 else None
    if ranks > 1 and link is None:
        return None
    averaging_fast = averaging_slow = latency_ms = 0.0
    if link is not None:
        latency_ms = network.latency_s(layout) * 1000
        averaging_fast = ring_ms(step.gradient_bytes, ranks, link.gb_s)
        averaging_slow = ring_ms(step.gradient_bytes, ranks, link.at_least_gb_s) + step.buckets * latency_ms
    communication = Range(fast=max(0.0, averaging_fast - BACKWARD * step.compute_ms), slow=averaging_slow)
    own_ms = step.data_ms + step.compute_ms
    step_ms = Range(fast=own_ms + communication.fast, slow=own_ms + communication.slow)
    steps = steps_an_epoch(step.samples, step.batch_size, ranks)
    epoch_s = Range(fast=steps * step_ms.fast / 1000, slow=steps * step_ms.slow / 1000)
    return Forecast(
        layout=layout,
        steps=steps,
        bandwidth=link,
        buckets=step.buckets,
        latency_ms=latency_ms,
        communication_ms=communication,
        step_ms=step_ms,
        epoch_s=epoch_s,
        samples_per_s=Range(fast=step.samples / epoch_s.fast, slow=step.samples / epoch_s.slow),
    )


def step_of(measured: Measured, bucket_mb: float | None = None) -> Step | None:
    """Return the step of a measured layout. `None`: the job did not report shares, batch and epochs.

    A steady step if their speed is known; otherwise an epoch's time divided by its steps.
    """
    share, job, buckets = measured.share, measured.job, buckets_of(measured.job, bucket_mb)
    if share.compute is None or share.data is None or buckets is None or not job.batch_size:
        return None
    if not measured.by_epoch:
        return None
    ranks = measured.layout.world_size
    if measured.is_steady:
        step_ms = 1000 * job.batch_size * ranks / measured.samples_per_s
    else:
        step_ms = 1000 * measured.epoch_s / steps_an_epoch(measured.samples, job.batch_size, ranks)
    return Step(
        layout=measured.layout,
        data_ms=step_ms * share.data,
        compute_ms=step_ms * share.compute,
        gradient_bytes=buckets.sent_bytes,
        buckets=buckets.count,
        batch_size=job.batch_size,
        samples=measured.samples,
    )


def base_for(layout: Layout, measured: Sequence[Measured]) -> Measured:
    """Return the measured layout to start from: one with as many ranks a node, otherwise the largest.

    A measured layout is forecast from a smaller one, so that forecast and measurement can be compared.
    """
    smaller = [point for point in measured if point.layout.world_size < layout.world_size]
    others_measured = [point for point in measured if point.layout != layout]
    return max(
        smaller or others_measured or measured,
        key=lambda point: (point.layout.nproc == layout.nproc, point.layout.world_size),
    )


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """A requested layout: its forecast, its cost, and its measurement if it has one."""

    layout: Layout
    base: Measured
    """The measured layout that the forecast starts from."""
    first: Measured
    """The first measured layout, which speed-ups are relative to."""
    forecast: Forecast | None
    node_hourly_usd: float | None
    """Price of a node that can run the layout. `None`: not known."""
    why: str | None
    """The reason for a missing forecast or price."""
    measured: Measured | None

    @property
    def step_ms(self) -> Range | None:
        """Milliseconds of a step."""
        return self.forecast.step_ms if self.forecast else None

    @property
    def epoch_s(self) -> Range | None:
        """Seconds of an epoch."""
        return self.forecast.epoch_s if self.forecast else None

    @property
    def samples_per_s(self) -> Range | None:
        """Speed of all ranks together."""
        return self.forecast.samples_per_s if self.forecast else None

    @property
    def speed_up(self) -> Range | None:
        """Relative to the first layout."""
        return self._per(self.first.samples_per_s)

    @property
    def efficiency(self) -> Range | None:
        """The speed-up, a rank."""
        return self._per(self.first.samples_per_s * self.layout.world_size / self.first.layout.world_size)

    @property
    def epoch_usd(self) -> Range | None:
        """Price of an epoch on nodes of the measured price. `None`: that price is not known, or does not apply."""
        if self.forecast is None or self.node_hourly_usd is None:
            return None
        usd_per_s = self.node_hourly_usd * self.layout.nodes / 3600
        epoch_s = self.forecast.epoch_s
        return Range(fast=usd_per_s * epoch_s.fast, slow=usd_per_s * epoch_s.slow)

    def _per(self, unit: float) -> Range | None:
        if self.forecast is None:
            return None
        speed = self.forecast.samples_per_s
        return Range(fast=speed.fast / unit, slow=speed.slow / unit)

    def document(self) -> "BenchForecast":
        """Return the element of the document of `bench --json`."""
        link = self.forecast.bandwidth if self.forecast else None
        return BenchForecast(
            **same_fields(BenchForecast, self.forecast)
            | same_fields(BenchForecast, self)
            | {
                "layout": self.layout.name,
                "nnodes": self.layout.nodes,
                "nproc_per_node": self.layout.nproc,
                "world_size": self.layout.world_size,
                "from_": self.base.layout.name,
                "bandwidth_gb_s": link.gb_s if link else None,
                "bandwidth_source": link.source if link else None,
                "measured_epoch_s": self.measured.epoch_s if self.measured else None,
            }
        )


@dataclass(frozen=True, kw_only=True)
class BenchForecast:
    """A forecast's element of `bench --json`."""

    layout: str
    nnodes: int
    nproc_per_node: int
    world_size: int
    from_: str
    """The measured layout that the forecast starts from; `from` in JSON."""
    steps: int | None = None
    """Steps of an epoch."""
    bandwidth_gb_s: float | None
    bandwidth_source: str | None
    buckets: int | None = None
    latency_ms: float | None = None
    communication_ms: Range | None = None
    step_ms: Range | None
    epoch_s: Range | None
    samples_per_s: Range | None
    speed_up: Range | None
    """Relative to the first measured layout."""
    efficiency: Range | None
    epoch_usd: Range | None
    measured_epoch_s: float | None
    """Set if the layout was measured, too."""
    why: str | None
    """The reason for a missing forecast or price."""


def outlook(
    layout: Layout,
    measured: Sequence[Measured],
    network: Network,
    *,
    gpus_a_node: int,
    bucket_mb: float | None = None,
) -> Outlook:
    """Forecast a layout from measured ones (at least one).

    `gpus_a_node`: GPUs of a measured node. `bucket_mb`: the job's --bucket-mb.
    """
    on_cpus = measured[0].job.device == "cpu"
    alike = [point for point in measured if point.layout.nproc == layout.nproc]
    base = base_for(layout, alike if on_cpus and alike else measured)
    usd = None if base.hourly_usd is None else base.hourly_usd / base.layout.nodes
    step = step_of(base, bucket_mb)
    predicted, why = None, None
    if step is None:
        why = f"The runs on {base.layout.name} did not tell their steps' shares, gradients and batch."
    elif on_cpus and not alike:
        why = (
            f"Processes that share a node's CPU slow each other down: measure one with {layout.nproc} "
            f"(--layouts 1x{layout.nproc}) to foretell more of them."
        )
    elif (predicted := forecast(step, layout, network)) is None:
        where = "between the nodes" if layout.nodes > 1 else "within a node"
        why = f"The bandwidth {where} is not known: {HOW_TO_KNOW[layout.nodes > 1]}."
    elif not on_cpus and 0 < gpus_a_node < layout.nproc and usd is not None:
        usd = None
        why = (
            f"No cost: the measured nodes have {plural(gpus_a_node, 'GPU')}, and the price of nodes with "
            f"{layout.nproc} is not known (gpuctl shapes lists some)."
        )
    return Outlook(
        layout=layout,
        base=base,
        first=measured[0],
        forecast=predicted,
        node_hourly_usd=usd,
        why=why,
        measured=next((point for point in measured if point.layout == layout), None),
    )


HOW_TO_KNOW = {
    True: "name it with --bandwidth-gb-s",
    False: "it is measured where a node has several GPUs",
}
"""True: the link is between nodes → advice on an unknown bandwidth."""
