"""Activation checkpointing: repeated blocks keep their input for the backward pass, and compute the rest again there.

The network stays as it is: names of weights and parts do not change.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from train.errors import BadOptions
from train.strategies.wrapping import repeated_blocks


def recompute_blocks(network: nn.Module) -> None:
    """Make the repeated blocks compute their activations again in the backward pass, in place.

    Raises BadOptions without repeated blocks.
    """
    blocks = repeated_blocks(network)
    if not blocks:
        raise BadOptions(
            "--activation-checkpointing is for networks of repeated blocks, such as transformers and residual "
            "networks, and this one has none: leave it out, or take another --model."
        )
    kinds = {kind: type(kind.__name__, (Recomputed, kind), {}) for kind in set(map(type, blocks.values()))}
    for block in blocks.values():
        block.__class__ = kinds[type(block)]


class Recomputed(nn.Module):
    """A mix-in before a block's own class, whose activations are computed again in the backward pass."""

    def forward(self, *inputs: Any) -> Any:  # noqa: ANN401 - as the block has it
        """Compute as the block does."""
        again: dict[str, Any] = {}
        if not torch.compiler.is_compiling():
            again["context_fn"] = lambda: (nullcontext(), _without_statistics(self))
        return checkpoint(super().forward, *inputs, use_reentrant=False, **again)


@contextmanager
def _without_statistics(block: nn.Module) -> Iterator[None]:
    """Discard the block's writes to its buffers, such as running statistics: the first pass wrote them."""
    originals: list[tuple[nn.Module, dict[str, Tensor | None]]] = []
    for part in block.modules():
        buffers = part._buffers  # noqa: SLF001 - setting a buffer by name would change their order
        originals.append((part, dict(buffers)))
        buffers.update({name: None if value is None else value.clone() for name, value in buffers.items()})
    try:
        yield
    finally:
        for part, original in originals:
            part._buffers.update(original)  # noqa: SLF001
