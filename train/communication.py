"""How the ranks' gradients are averaged: DistributedDataParallel's hooks, and what they send.

What PowerSGD remembers of earlier steps (the error it made, which it adds to the next gradients) is not in a
checkpoint: a run that goes on from one begins with whole gradients again.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from train.errors import BadOptions
from train.options import Compression

Hook = Callable[[Any], torch.futures.Future[torch.Tensor]]
"""Of a `GradBucket`."""

POWERSGD_RANK = 2
POWERSGD_AFTER = 0.1
"""Part of the run's steps that send whole gradients before PowerSGD begins: early ones are not of low rank."""


def parallel(
    model: nn.Module,
    device: torch.device,
    *,
    compression: Compression,
    bucket_mb: float | None,
    steps: int,
    on_ready: Callable[[], None],
) -> DistributedDataParallel:
    """The model, with its gradients averaged over all ranks. `on_ready`: a rank's own are all computed.

    `bucket_mb`: None has torch decide. `steps` of the whole run. Buffers, such as the running statistics of a
    normalisation, stay with each rank: they do not take part in training, and to send them would be to wait in every
    forward pass. Raises BadOptions.
    """
    if compression == "powersgd" and dist.get_backend() == "gloo":
        if bucket_mb is not None:
            raise BadOptions(
                "--compression powersgd takes all gradients at once on CPUs: leave out --bucket-mb."
            )
        # The steps of several buckets' compression can be in another order on another rank, and gloo takes what comes
        # next for what it waits for.
        bucket_mb = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20 + 1
    wrapped = DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        bucket_cap_mb=bucket_mb,
        gradient_as_bucket_view=True,
    )
    wrapped.broadcast_buffers = False  # the argument of this name is deprecated, and older torch has no other
    average = _hook(compression, dist.get_backend(), steps)

    def hook(
        _state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch does not declare it as its export
    ) -> torch.futures.Future[torch.Tensor]:
        # DDP starts its buckets in order: when the last one starts, there is nothing left to compute.
        if bucket.is_last():
            on_ready()
        return average(bucket)

    wrapped.register_comm_hook(None, hook)
    return wrapped


def gradient_bytes(model: nn.Module, compression: Compression) -> int | None:
    """What a rank gives into a step's all-reduce; None: it depends on the step."""
    if compression == "powersgd":
        return None
    whole = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return (
        sum(p.numel() * 2 for p in model.parameters() if p.requires_grad) if compression == "half" else whole
    )


def _hook(compression: Compression, backend: str, steps: int) -> Hook:
    group = dist.group.WORLD
    assert group is not None
    if compression == "half":
        # gloo can't add up bfloat16.
        half = default_hooks.fp16_compress_hook if backend == "gloo" else default_hooks.bf16_compress_hook
        return lambda bucket: half(group, bucket)
    if compression == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            group,
            matrix_approximation_rank=POWERSGD_RANK,
            start_powerSGD_iter=max(2, round(POWERSGD_AFTER * steps)),
        )
        return lambda bucket: powerSGD_hook.powerSGD_hook(state, bucket)
    return lambda bucket: default_hooks.allreduce_hook(group, bucket)
