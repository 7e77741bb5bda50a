"""Measure how much of the ranks' devices a run used: memory, and the peak rate."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.options import Precision
from train.reporting.gpu_peaks import peak_tflops


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """Use of all ranks' devices."""

    memory_gb: float
    """Maximum over the ranks; a rank with several GPUs adds these up."""
    peak_tflops: float | None
    """Sum of the devices' peak rates in their data sheets. `None`: unknown for at least one."""

    def mfu(self, flops_per_s: float | None) -> float | None:
        """Return `flops_per_s` as a fraction of the peak rate (model FLOPs utilisation)."""
        if flops_per_s is None or not self.peak_tflops:
            return None
        return flops_per_s / (self.peak_tflops * 1e12)


def device_use(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    devices: Sequence[torch.device],
    precision: Precision,
    *,
    graphs: bool = False,
) -> DeviceUse:
    """Return the use by all ranks after a step. Every rank calls this, with its devices.

    `graphs`: steps are CUDA graphs, whose memory stays reserved while nothing in it is allocated.
    """
    if devices[0].type == "cuda":
        peak = torch.cuda.max_memory_reserved if graphs else torch.cuda.max_memory_allocated
        memory = sum(map(peak, devices))
        tflops = peak_tflops([torch.cuda.get_device_name(device) for device in devices], precision)
    else:
        memory, tflops = stored_bytes(_tensors(model, optimizer)), None
    local_use: tuple[int, float | None] = (memory, tflops)
    of_ranks = [local_use]
    if dist.is_initialized() and dist.get_world_size() > 1:
        of_ranks = [local_use] * dist.get_world_size()
        dist.all_gather_object(of_ranks, local_use)
    known = [tflops for _, tflops in of_ranks if tflops is not None]
    return DeviceUse(
        memory_gb=max(memory for memory, _ in of_ranks) / 1e9,
        peak_tflops=sum(known) if len(known) == len(of_ranks) else None,
    )


def stored_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of this rank's memory behind the tensors; shared memory counts once."""
    storages = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if not local.is_meta:
            storage = local.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield parameters, buffers, gradients and the optimizer's state."""
    for parameter in model.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad
    yield from model.buffers()
    # ZeroRedundancyOptimizer keeps its rank's part of the state in an optimizer of its own.
    for values in getattr(optimizer, "optim", optimizer).state.values():
        yield from (value for value in values.values() if isinstance(value, Tensor))
