"""Data parallel training: every rank has the whole model, and DistributedDataParallel averages the gradients.

`dp` is one process for all GPUs of a node, whose threads share an interpreter. torch recommends the other strategy:
this one is for comparison.

What PowerSGD remembers of earlier steps (the error it made, which it adds to the next gradients) is not in a
checkpoint: a resumed run begins with whole gradients again.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from train.errors import BadOptions
from train.options import Compression
from train.strategies.degrees import check_alone
from train.strategies.strategy import Strategy

Hook = Callable[[Any], torch.futures.Future[torch.Tensor]]
"""Averages a `GradBucket`."""

POWERSGD_RANK = 2
POWERSGD_AFTER = 0.1
"""Fraction of the run's steps that send whole gradients before PowerSGD begins: early ones are not of low rank."""


class DataParallel(Strategy):
    """DistributedDataParallel."""

    name = "ddp"

    @property
    def graphable(self) -> bool:
        """Return whether a step can be a CUDA graph: no GPU has shown it with compression."""
        return type(self) is DataParallel and self.options.compression == "none"

    def wrap(self, model: nn.Module, *, steps: int, on_ready: Callable[[], None]) -> DistributedDataParallel:
        """Wrap the model so that its gradients are averaged over all ranks. Raises BadOptions.

        Buffers, such as the running statistics of a normalisation, stay with each rank: they take no part in
        training, and to send them would be to wait in every forward pass.
        """
        compression, backend = self.options.compression, dist.get_backend()
        bucket_mb = self.options.bucket_mb
        if compression == "powersgd" and backend == "gloo":
            if bucket_mb is not None:
                raise BadOptions(
                    "--compression powersgd takes all gradients at once on CPUs: leave out --bucket-mb."
                )
            # Several buckets' compression can run in another order on another rank, and gloo takes any next message
            # as the expected message.
            bucket_mb = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20 + 1
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            bucket_cap_mb=bucket_mb,
            gradient_as_bucket_view=True,
        )
        wrapped.broadcast_buffers = (
            False  # the argument of this name is deprecated, and older torch has no other
        )
        # Its own times of every hundredth step, which nothing reads, can't be in a CUDA graph.
        wrapped._set_ddp_runtime_logging_sample_rate(2**31 - 1)  # type: ignore[no-untyped-call]  # noqa: SLF001
        average = _averaging_hook(compression, backend, steps)

        def hook(
            _state: object,
            bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch does not declare it as its export
        ) -> torch.futures.Future[torch.Tensor]:
            # DDP starts its buckets in order: when the last bucket starts, nothing is left to compute.
            if bucket.is_last():
                on_ready()
            return average(bucket)

        wrapped.register_comm_hook(None, hook)
        self._wrap = partial(self.wrap, steps=steps, on_ready=on_ready)
        return wrapped

    def renew(self, model: nn.Module) -> nn.Module:
        """Wrap the model anew: DistributedDataParallel can't be used after a pass in which gradients are missing."""
        assert isinstance(model, DistributedDataParallel)
        model._remove_autograd_hooks()  # type: ignore[no-untyped-call]  # noqa: SLF001 - gradients are averaged once
        return self._wrap(model.module)

    def micro_batch(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Keep the gradients of all but the last with this rank."""
        assert isinstance(model, DistributedDataParallel)
        return nullcontext() if last else model.no_sync()


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


class ThreadedDataParallel(Strategy):
    """torch's `DataParallel`: the batch is divided among the GPUs, the loss is computed on the first one."""

    name = "dp"

    def set_up(self) -> None:
        """Set the strategy's own attributes. Raises BadOptions."""
        check_alone(self.env)
        if self.device.type == "cuda":
            self.devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]

    def wrap(self, model: nn.Module, *, steps: int, on_ready: Callable[[], None]) -> nn.Module:  # noqa: ARG002
        """Wrap the model's network so that it computes on all GPUs. On CPUs the network stays as it is."""
        model.network = nn.DataParallel(model.get_submodule("network"))
        return model
