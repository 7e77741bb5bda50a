"""Torch's own count of a rank's memory, to compare with the arithmetic.

The job's network is built without memory (torch's fake tensors), as one rank among ranks that do not exist (its
process group `fake`), and torch's tracker counts the tensors that a step keeps. Of the blocks, which are alike, a few
are enough.
"""

import warnings
from dataclasses import replace
from typing import Any

from train.advice.memory import Batch, computed_as, fullest_rank, gathered, is_wrapped, saved, stages_of
from train.advice.network import text_network
from train.distributed.environment import DistributedEnvironment
from train.models.gpt_sizes import GPT_SIZES
from train.options import Options
from train.strategies.degrees import degrees

BLOCKS = 3
LOGITS_KEPT = 2 / 3
"""Part of a network's outputs, as the arithmetic counts them, before the backward pass: their gradient does not exist
yet."""


def compare(
    options: Options, *, count: int, gpus: int, micro_batch: int, vocabulary: int
) -> dict[str, float | str]:
    """Return `arithmetic_gb` and `torch_gb`, or the clause `left_out`: the reason for no count.

    Both have weights, the optimizer's state and the tensors that are kept for the backward pass.
    """
    env = DistributedEnvironment(world_size=count * gpus, local_world_size=gpus)
    sizes = degrees(options, env)
    if sizes.pp > 1:
        return {"left_out": "a pipeline's stages can't be built on one computer"}
    if options.cpu_offload:
        return {"left_out": "without a GPU its memory and the host's are one"}
    if sizes.tp > 1 and sizes.replicas > 1:
        return {"left_out": "torch divides ranks that are not there in one way only"}
    try:
        import torch  # noqa: F401
    except ImportError:
        return {"left_out": "torch is not installed here"}
    whole = GPT_SIZES[options.model]
    size = replace(whole, layers=min(whole.layers, BLOCKS))
    network = text_network(
        size,
        vocabulary=vocabulary,
        length=options.seq_len,
        precision=options.precision,
        by_blocks=not options.wrap.startswith("size:"),
    )
    batch = Batch(micro_batch=micro_batch, number=1)
    [stage] = stages_of(computed_as(network, options, sizes), 1, sizes.tp)
    fullest = fullest_rank(network, options, sizes, batch)
    counted = fullest.weights + saved(stage, options, batch) + LOGITS_KEPT * fullest.outputs
    if options.strategy != "zero1":  # torch's ZeroRedundancyOptimizer would have to send its parts
        counted += fullest.optimizer
    if options.strategy == "zero2" and is_wrapped(options, sizes):
        counted += gathered(stage, network, options, sizes, replace(batch, number=2))
    tracked = _tracked(options, env, micro_batch, vocabulary, layers=size.layers)
    return {"arithmetic_gb": round(counted / 1e9, 3), "torch_gb": round(tracked / 1e9, 3)}


def _tracked(
    options: Options, env: DistributedEnvironment, micro_batch: int, vocabulary: int, *, layers: int
) -> float:
    """Return the bytes of a rank after a forward pass, when the optimizer has its state."""
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from train.loss import mean_loss
    from train.models.gpt import assemble
    from train.optimization.optimizer import build_optimizer
    from train.strategies.choice import build_strategy
    from train.strategies.recompute import recompute_blocks
    from train.strategies.strategy import Strategy

    warnings.simplefilter("ignore")
    device = torch.device("cpu")
    dist.init_process_group("fake", rank=0, world_size=env.world_size, store=FakeStore())
    sizes = degrees(options, env)
    wrapped = is_wrapped(options, sizes)
    divided = wrapped or sizes.tp > 1
    strategy = build_strategy(options, env, device) if divided else Strategy(options, env, device)
    size = replace(GPT_SIZES[options.model], layers=layers)
    with FakeTensorMode():
        network = assemble(vocabulary, size)
        if options.precision == "fp64":
            network.double()
        tokens = torch.zeros(micro_batch, options.seq_len, dtype=torch.int64)
        if options.activation_checkpointing:
            recompute_blocks(network)
        strategy.shard(network, tokens[:1], micro_batches=1, micro_batch_size=micro_batch)
        keep = options.strategy != "zero1"
        optimizer = build_optimizer(strategy, network.parameters(), fused=True) if keep else None
        with _tracker(network, optimizer, wrapped=wrapped) as tracker:

            def forward() -> torch.Tensor:
                with strategy.autocast():
                    return mean_loss(network(tokens), tokens)

            torch.autograd.backward(forward())
            if optimizer is not None:
                optimizer.step()
            network.zero_grad()
            tracker.reset_mod_stats()
            loss = forward()  # held, with all that its backward pass needs
            [of_device] = tracker.get_tracker_snapshot().values()
            del loss
            return float(of_device["Total"])


def _tracker(network: Any, optimizer: Any, *, wrapped: bool) -> Any:  # noqa: ANN401 - torch is not imported yet
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker

    if wrapped:
        return FSDPMemTracker(network, optimizer)
    tracker = MemTracker()
    tracker.track_external(network, *([] if optimizer is None else [optimizer]))
    return tracker
