"""Data parallel training: every rank has the whole model, and DistributedDataParallel averages the gradients.

What PowerSGD remembers of earlier steps (the error it made, which it adds to the next gradients) is not in a
checkpoint: a resumed run begins with whole gradients again.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from train.errors import BadOptions
from train.options import Compression

Hook = Callable[[Any], torch.futures.Future[torch.Tensor]]
"""Averages a `GradBucket`."""

POWERSGD_RANK = 2
POWERSGD_AFTER = 0.1
"""Fraction of the run's steps that send whole gradients before PowerSGD begins: early ones are not of low rank."""


def wrap(
    model: nn.Module,
    device: torch.device,
    *,
    compression: Compression,
    bucket_mb: float | None,
    steps: int,
    on_ready: Callable[[], None],
) -> DistributedDataParallel:
    """Wrap the model so that its gradients are averaged over all ranks. Raises BadOptions.

    `bucket_mb`: None lets torch decide. `steps`: of the whole run. `on_ready` is called when this rank's gradients
    are computed. Buffers, such as the running statistics of a normalisation, stay with each rank: they take no
    part in training, and to send them would be to wait in every forward pass.
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
    average = _averaging_hook(compression, dist.get_backend(), steps)

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


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """Return the context in which the gradients of a model stay with this rank."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def gradient_bytes(model: nn.Module, compression: Compression) -> int | None:
    """Return the bytes that a rank gives into a step's all-reduce; None: it depends on the step."""
    if compression == "powersgd":
        return None
    trained = [p for p in model.parameters() if p.requires_grad]
    return sum(p.numel() * (2 if compression == "half" else p.element_size()) for p in trained)


def _averaging_hook(compression: Compression, backend: str, steps: int) -> Hook:
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
