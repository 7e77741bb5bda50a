"""Cut a row of layers into groups of neighbours with similar cost. Imports nothing heavy."""

from collections.abc import Sequence

from train.errors import BadOptions


def best_cut(costs: Sequence[float], weights: Sequence[int], stages: int) -> list[range]:
    """Return the groups with the lowest maximum cost, each with weights.

    Raises BadOptions if the groups outnumber the layers with weights.
    """
    layers, whole = len(costs), sum(costs) or 1.0
    # For each number of stages: by end, the lowest cost of the most expensive stage, and where the last stage begins.
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
        usable = sum(1 for number in weights if number)
        raise BadOptions(
            f"--pp {stages} is more stages than the network has layers with weights ({usable}): give fewer."
        )
    cut, end = [], layers
    for row in reversed(best[1:]):
        begin = row[end][1]
        cut.append(range(begin, end))
        end = begin
    return cut[::-1]
