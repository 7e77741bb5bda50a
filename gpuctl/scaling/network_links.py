"""Bandwidth of a cluster's links: measured, given by the user, or the shape's nominal figure. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpuctl.scaling.measurements import Layout

NOMINAL_AT_LEAST = 0.5
"""Fraction of the vendor's figure: the two A10 machines of 48 Gbps of the OCI example took 17 ms for 67 MB, 66 %."""
UNMEASURED_HOP_S = 1e-4
"""Latency from node to node without a measurement: TCP within a data center takes some tens of microseconds."""

Line = Mapping[str, Any]
"""A line of `train.allreduce`: `scope`, `rank`, `world_size`, `bytes`, `seconds`, `bus_gb_s`, …"""
Source = Literal["measured", "given", "shape"]


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Bandwidth of a link in each direction, GB/s (10**9 bytes)."""

    gb_s: float
    source: Source
    """`shape`: the vendor's figure for that kind of machine."""
    hop_s: float = 0.0
    """Seconds until a message's first byte arrives."""

    @property
    def at_least_gb_s(self) -> float:
        """The bandwidth to count on."""
        return self.gb_s * NOMINAL_AT_LEAST if self.source == "shape" else self.gb_s


@dataclass(frozen=True, kw_only=True)
class Network:
    """The links of a cluster. `None`: not known."""

    between: Bandwidth | None = None
    """The link between nodes."""
    within: Bandwidth | None = None
    """The link between the ranks of a node; if unknown, taken to be no slower than the link between nodes."""

    def slowest(self, layout: Layout) -> Bandwidth | None:
        """Return the slowest link of a layout of several ranks. `None`: one of the links is not known."""
        if layout.nodes == 1:
            return self.within
        if self.between is None or self.within is None or layout.nproc == 1:
            return self.between
        return min(self.between, self.within, key=lambda link: link.at_least_gb_s)

    def latency_s(self, layout: Layout) -> float:
        """Return the longest latency of a ring all-reduce, s: a message travels round the ring almost twice."""
        between = self.between.hop_s if self.between else 0.0
        within = self.within.hop_s if self.within else between
        across = layout.nodes if layout.nodes > 1 else 0
        return rounds(layout.world_size) * (across * between + (layout.world_size - across) * within)


def rounds(ranks: int) -> float:
    """Return how often each byte of a ring all-reduce passes each link."""
    return 2 * (ranks - 1) / ranks


def network_of(
    lines: Sequence[Line],
    *,
    nnodes: int,
    bucket_bytes: int,
    given_gb_s: float | None = None,
    nominal_gb_s: float | None = None,
) -> Network:
    """Return the links between `nnodes` nodes and within them, for all-reduces of `bucket_bytes`.

    Small messages are slower: for each link the measurement of the nearest size counts; the smallest size gives the
    latency. Between nodes `given_gb_s`, the user's figure, has precedence over the measurement, which has precedence
    over `nominal_gb_s`, the shape's.
    """
    everywhere = _measured(lines, "all", bucket_bytes, nodes=nnodes)
    inside = _measured(lines, "node", bucket_bytes, nodes=1)
    within = inside if nnodes > 1 else everywhere
    between = everywhere if nnodes > 1 else None
    hop_s = between.hop_s if between else UNMEASURED_HOP_S
    if given_gb_s:
        between = Bandwidth(gb_s=given_gb_s, source="given", hop_s=hop_s)
    elif between is None and nominal_gb_s:
        between = Bandwidth(gb_s=nominal_gb_s, source="shape", hop_s=hop_s)
    return Network(between=between, within=within)


def nominal_gb_s(shape: str | None, *, rdma: bool) -> float | None:
    """Return the vendor's figure for a shape's network, GB/s. `None`: not in the catalog.

    `rdma`: True if the machines' RDMA network is set up.
    """
    from provision.pricing.catalog import SHAPES

    known = SHAPES.get(shape or "")
    if known is None:
        return None
    gbps = known.rdma_gbps if rdma and known.rdma_gbps else known.network_gbps
    return gbps / 8 if gbps > 0 else None


def _measured(lines: Sequence[Line], scope: str, size: int, *, nodes: int) -> Bandwidth | None:
    """Return the bandwidth of the slowest group of ranks of that scope. `nodes`: nodes of a group."""
    ranks = {line["rank"] for line in lines if line["scope"] == scope}
    groups = [
        _of_group([line for line in lines if (line["scope"], line["rank"]) == (scope, rank)], size, nodes)
        for rank in ranks
    ]
    if not groups:
        return None
    return Bandwidth(
        gb_s=min(link.gb_s for link in groups), source="measured", hop_s=max(link.hop_s for link in groups)
    )


def _of_group(lines: Sequence[Line], size: int, nodes: int) -> Bandwidth:
    """Fit latency and bandwidth to the lines of a group; the bandwidth is at least the measured one."""
    smallest = min(lines, key=lambda line: line["bytes"])
    larger = [line for line in lines if line is not smallest] or [smallest]
    nearest = min(larger, key=lambda line: abs(math.log(line["bytes"] / max(size, 1))))
    gb_s, ranks = float(nearest["bus_gb_s"]), smallest["world_size"]
    latency_s = max(0.0, smallest["seconds"] - rounds(ranks) * smallest["bytes"] / (gb_s * 1e9))
    # A message within a node takes much less time than one between nodes, so only node hops count.
    hops = rounds(ranks) * (nodes if nodes > 1 else ranks)
    return Bandwidth(gb_s=gb_s, source="measured", hop_s=latency_s / hops)
