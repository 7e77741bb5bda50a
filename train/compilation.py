"""Compiled code for the shapes of a whole batch.

Compiling takes seconds for each shape, too much for a few steps. Other shapes, such as the last batch of an epoch and
evaluations, run without compiled code.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from train.strategies.wrapping import repeated_blocks

MAX_GRAPHS = 64
"""Maximum compiled versions of one function. Past torch's limit of 8 a function runs without them, for ever."""


@contextmanager
def uncompiled() -> Iterator[None]:
    """Compute without compiled code, forward and backward."""
    with torch.compiler.set_stance("force_eager"):
        yield


def whole_batch_sizes(batch_size: int, micro_batch_size: int) -> frozenset[int]:
    """Return the sizes of the micro-batches of a whole batch: the last one may be smaller."""
    return frozenset({micro_batch_size, batch_size % micro_batch_size or micro_batch_size})


def compiled_blocks(network: nn.Module) -> list[nn.Module]:
    """Return the blocks to compile one by one, so that equal blocks share a graph.

    Empty: the network repeats few blocks, and compiles faster as a whole.
    """
    blocks = list(repeated_blocks(network).values())
    # Their text has the widths of all layers within them.
    kinds = len(set(map(str, blocks)))
    return blocks if 2 * kinds <= len(blocks) else []


def compile_in_parts(model: nn.Module, blocks: list[nn.Module]) -> None:
    """Have the blocks compiled at their first call, or the model where they are empty: one graph for each shape.

    Otherwise a second shape makes torch compile a graph for any, which is slower, and use it for the first as well.
    """
    from torch._dynamo import config  # importing it takes as long as torch itself

    config.cache_size_limit = MAX_GRAPHS
    # DistributedDataParallel averages a block's gradients while the block before it computes. For the same, torch
    # divides a network that is compiled whole along the buckets.
    config.optimize_ddp = not blocks
    for part in blocks or [model]:
        part.compile(dynamic=False)
