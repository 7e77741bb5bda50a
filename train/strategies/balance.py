"""Cuts a row of layers into neighbours that cost about the same. Imports nothing heavy."""

from collections.abc import Sequence

from train.errors import BadOptions


def best_cut(costs: Sequence[float], weights: Sequence[int], stages: int) -> list[range]:
    """Return which neighbours are together, so that the dearest group costs least, and none is without weights.

    Raises BadOptions where there are more groups than there are parts with weights.
    """
    layers, whole = len(costs), sum(costs) or 1.0
    # The least cost of the dearest of so many stages over the first layers, and where the last of them begins.
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for _ in range(stages):
        row: dict[int, tuple[float, int]] = {}
        for end in range(1, layers + 1):
            options = [
                (max(cost, sum(costs[begin:end]) / whole), begin)
                for begin, (cost, _) in best[-1].items()
                if begin < end and any(weights[begin:end])
            ]
            if options:
                row[end] = min(options)
        best.append(row)
    if layers not in best[-1]:
        able = sum(1 for one in weights if one)
        raise BadOptions(
            f"--pp {stages} is more stages than the network has layers with weights ({able}): give fewer."
        )
    found, end = [], layers
    for row in reversed(best[1:]):
        begin = row[end][1]
        found.append(range(begin, end))
        end = begin
    return found[::-1]
