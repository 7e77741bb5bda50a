"""How fast the links of a cluster are, of a measurement, the user's own word, or the shape's figure. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpuctl.forecast import Bandwidth, Network, Source

Line = Mapping[str, Any]
"""Of `train.allreduce`: `scope`, `bytes`, `bus_gb_s`, …"""


def network_of(
    lines: Sequence[Line],
    *,
    nnodes: int,
    gradient_bytes: int,
    given_gb_s: float | None = None,
    nominal_gb_s: float | None = None,
) -> Network:
    """The links between `nnodes` nodes and within them, for averaging so many bytes.

    Small messages are slower: of each link the measurement counts whose size is nearest. Between nodes the user's
    word (`given_gb_s`) goes before it, and the shape's figure (`nominal_gb_s`) behind.
    """
    everywhere, inside = _at(lines, "all", gradient_bytes), _at(lines, "node", gradient_bytes)
    within = inside if nnodes > 1 else everywhere
    between = everywhere if nnodes > 1 else None
    return Network(
        between=_bandwidth(given_gb_s, "given")
        or _bandwidth(between, "measured")
        or _bandwidth(nominal_gb_s, "shape"),
        within=_bandwidth(within, "measured"),
    )


def nominal_gb_s(shape: str | None, *, rdma: bool) -> float | None:
    """The vendor's figure for a shape's network, GB/s; None where the catalog does not have it.

    `rdma`: whether the machines' own network for that is set up.
    """
    from provision.catalog import SHAPES

    known = SHAPES.get(shape or "")
    if known is None:
        return None
    gbps = known.rdma_gbps if rdma and known.rdma_gbps else known.network_gbps
    return gbps / 8 if gbps > 0 else None


def _at(lines: Sequence[Line], scope: str, size: int) -> float | None:
    """The bandwidth of the slowest group of that scope, at the measured size that is nearest."""
    found = [line for line in lines if line["scope"] == scope]
    if not found:
        return None
    nearest = min(
        (line["bytes"] for line in found), key=lambda measured: abs(math.log(measured / max(size, 1)))
    )
    return float(min(line["bus_gb_s"] for line in found if line["bytes"] == nearest))


def _bandwidth(gb_s: float | None, source: Source) -> Bandwidth | None:
    return Bandwidth(gb_s=gb_s, source=source) if gb_s else None
