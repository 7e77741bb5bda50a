"""How fast the links of a cluster are, of a measurement, the user's own word, or the shape's figure. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpuctl.scaling.measurements import Layout

NOMINAL_AT_LEAST = 0.5
"""Of the vendor's figure: the two A10 machines of 48 Gbps of the OCI example took 17 ms for 67 MB, 66 % of it."""
UNMEASURED_HOP_S = 1e-4
"""From one node to the next where nobody measured it: TCP within a data center takes some tens of microseconds."""

Line = Mapping[str, Any]
"""Of `train.allreduce`: `scope`, `rank`, `world_size`, `bytes`, `seconds`, `bus_gb_s`, …"""
Source = Literal["measured", "given", "shape"]


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """What a link carries in each direction, GB/s (10**9 bytes)."""

    gb_s: float
    source: Source
    """`shape`: the vendor's figure for that kind of machine."""
    hop_s: float = 0.0
    """Until a message's first byte is over it."""

    @property
    def at_least_gb_s(self) -> float:
        """What to count on."""
        return self.gb_s * NOMINAL_AT_LEAST if self.source == "shape" else self.gb_s


@dataclass(frozen=True, kw_only=True)
class Network:
    """The links of a cluster; None: not known."""

    between: Bandwidth | None = None
    """Between nodes."""
    within: Bandwidth | None = None
    """Between the ranks of one node, which is taken to be no slower than between nodes where only that is known."""

    def slowest(self, layout: Layout) -> Bandwidth | None:
        """The link that decides in a layout of several ranks; None where a link is not known that may be it."""
        if layout.nodes == 1:
            return self.within
        if self.between is None or self.within is None or layout.nproc == 1:
            return self.between
        return min(self.between, self.within, key=lambda link: link.at_least_gb_s)

    def latency_s(self, layout: Layout) -> float:
        """What a ring all-reduce takes at most before its bytes count: it goes round almost twice."""
        between = self.between.hop_s if self.between else 0.0
        within = self.within.hop_s if self.within else between
        across = layout.nodes if layout.nodes > 1 else 0
        return rounds(layout.world_size) * (across * between + (layout.world_size - across) * within)


def rounds(ranks: int) -> float:
    """How often every byte of a ring all-reduce passes each link."""
    return 2 * (ranks - 1) / ranks


def network_of(
    lines: Sequence[Line],
    *,
    nnodes: int,
    bucket_bytes: int,
    given_gb_s: float | None = None,
    nominal_gb_s: float | None = None,
) -> Network:
    """The links between `nnodes` nodes and within them, for all-reduces of so many bytes.

    Small messages are slower: of each link the measurement counts whose size is nearest; the smallest tells the
    latency. Between nodes the user's word (`given_gb_s`) goes before it, and the shape's figure (`nominal_gb_s`)
    behind.
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
    """The vendor's figure for a shape's network, GB/s; None where the catalog does not have it.

    `rdma`: whether the machines' own network for that is set up.
    """
    from provision.pricing.catalog import SHAPES

    known = SHAPES.get(shape or "")
    if known is None:
        return None
    gbps = known.rdma_gbps if rdma and known.rdma_gbps else known.network_gbps
    return gbps / 8 if gbps > 0 else None


def _measured(lines: Sequence[Line], scope: str, size: int, *, nodes: int) -> Bandwidth | None:
    """The links of that scope, as its slowest group of ranks has them; a group is on so many nodes."""
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
    """Of one group's lines: seconds = latency + bytes by bandwidth, which is never less than what was measured."""
    smallest = min(lines, key=lambda line: line["bytes"])
    larger = [line for line in lines if line is not smallest] or [smallest]
    nearest = min(larger, key=lambda line: abs(math.log(line["bytes"] / max(size, 1))))
    gb_s, ranks = float(nearest["bus_gb_s"]), smallest["world_size"]
    latency_s = max(0.0, smallest["seconds"] - rounds(ranks) * smallest["bytes"] / (gb_s * 1e9))
    # Within a node a message is there much sooner than between nodes, where that is part of the way.
    hops = rounds(ranks) * (nodes if nodes > 1 else ranks)
    return Bandwidth(gb_s=gb_s, source="measured", hop_s=latency_s / hops)
