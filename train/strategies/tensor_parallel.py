"""Tensor parallel: pairs of linear layers are split among ranks, the first by its columns, the second by its rows.

Each rank computes the layers between the pair for its part only; the sum over the ranks is the pair's output. All
other layers are whole on every rank, which computes the same with them. A model declares its pairs by `by_columns`
and `by_rows`: see `train/models/gpt.py`.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from train.errors import BadOptions

ELEMENTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Dropout, nn.Identity)
"""Layers that compute each number from that number alone."""


@runtime_checkable
class Splittable(Protocol):
    """A module with linear layers that lists which of them can be split."""

    by_columns: tuple[str, ...]
    by_rows: tuple[str, ...]
    parts: int
    """Number of units that the columns consist of: a rank takes whole units."""


def split_layers(network: nn.Module, mesh: DeviceMesh, plan: Mapping[str, str]) -> None:
    """Split the planned layers that are in this network (it may be a stage of the planned network), in place."""
    modules = dict(network.named_modules())
    styles: dict[str, ParallelStyle] = {
        name: ColwiseParallel() if by == "columns" else RowwiseParallel()
        for name, by in plan.items()
        if name in modules
    }
    parallelize_module(network, mesh, styles)


def split_plan(network: nn.Module, ranks: int) -> dict[str, str]:
    """Return how each layer is split, `columns` or `rows`, by name. Raises BadOptions if no layer can be split."""
    plan: dict[str, str] = {}
    narrow = []
    for name, part in network.named_modules():
        for columns, rows, width in _pairs(part):
            if width % ranks:
                narrow.append(width)
                continue
            plan |= {f"{name}.{layer}".lstrip("."): "columns" for layer in columns}
            plan |= {f"{name}.{layer}".lstrip("."): "rows" for layer in rows}
    if plan:
        return plan
    if narrow:
        widths = ", ".join(map(str, sorted(set(narrow))))
        raise BadOptions(
            f"--tp {ranks} does not divide any layer of this network (widths and heads: {widths}): change it."
        )
    raise BadOptions(
        "--tp splits pairs of linear layers, such as those of a transformer, and this network has none: take "
        "--strategy fsdp, or another --model."
    )


def _pairs(part: nn.Module) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], int]]:
    """Yield the pairs directly within a module: their names, and the width that the degree has to divide."""
    if isinstance(part, Splittable):
        yield part.by_columns, part.by_rows, part.parts
    if not isinstance(part, nn.Sequential):
        return
    first: tuple[str, nn.Linear] | None = None
    for name, layer in part.named_children():
        if isinstance(layer, nn.Linear):
            if first is None:
                first = (name, layer)
            else:
                yield (first[0],), (name,), first[1].out_features
                first = None
        elif not isinstance(layer, ELEMENTWISE):
            first = None
