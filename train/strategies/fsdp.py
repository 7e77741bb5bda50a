"""Fully sharded data parallel: each rank keeps its part of the weights, gradients and optimizer's state.

A part's weights are gathered before it computes, and freed after it. `zero2` frees them only after the backward pass.
`hsdp` shards within a node, and averages gradients between nodes: network traffic is as low as with `ddp`. With
layers split among ranks as well, this is the data-parallel part.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from train.strategies.degrees import SHARDED, gathers_in_half, strategy_name
from train.strategies.plan import Plan, plan_of
from train.strategies.strategy import State, Strategy, keeps_statistics, load_by_number, weights_of
from train.strategies.tensor_parallel import split_layers

# It warns of how tensors are gathered that are split in two ways: for a checkpoint, and not while training.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


class FullyShard(Strategy):
    """torch's `fully_shard` on each part of the network that the wrap policy names, and on the whole."""

    times_communication = False  # it overlaps with computing in both passes
    fused_sgd = False  # it has no rule for sharded weights
    any_memory_format = False
    shards_without_weights = True
    sharded = True

    def set_up(self) -> None:
        """Set the strategy's own attributes."""
        sizes = self.sizes
        self.name = strategy_name(self.options, sizes)
        shape = (sizes.pp, sizes.replicate, sizes.shard, sizes.tp)
        self.mesh = init_device_mesh(
            self.device.type, shape, mesh_dim_names=("pp", "replicate", "shard", "tp")
        )
        """All ranks. Some dimensions may be of one."""
        self._in_half = False
        """Whether weights are gathered in bf16, and compute so."""
        self._names: list[str] = []
        """The first names of the whole network's weights."""
        self._numbers: dict[str, int] = {}
        """The number of each weight of the whole network by its name; a tied one has several names."""

    def shard(
        self,
        network: nn.Module,
        example: Tensor,
        *,
        micro_batches: int,  # noqa: ARG002
        micro_batch_size: int,  # noqa: ARG002
    ) -> None:
        """Distribute the weights over the mesh, in place. Raises BadOptions for a policy that names no part."""
        self.shard_parts(network, network, self.plan(network, example))

    def plan(self, network: nn.Module, example: Tensor) -> Plan:
        """Plan with the whole network, whose names are kept. Raises BadOptions where it can't be divided so."""
        # With autocast, running statistics and weights can have different precisions.
        self._in_half = gathers_in_half(self.options, self.sizes) and not keeps_statistics(network)
        number = {id(p): at for at, p in enumerate(network.parameters())}
        self._numbers = {name: number[id(p)] for name, p in network.named_parameters(remove_duplicate=False)}
        self._names = [name for name, _ in network.named_parameters()]
        return plan_of(network, example, self.options, self.sizes)

    def shard_parts(self, root: nn.Module, network: nn.Module, plan: Plan) -> None:
        """Distribute the weights of a network, or of its stage `root`."""
        sizes, options = self.sizes, self.options
        self._network = network
        if plan.splits:
            split_layers(network, self.mesh["tp"], plan.splits)
        if sizes.replicas == 1:
            return
        parts = plan.parts_of(sizes.stage(self.env.rank))
        half = torch.bfloat16 if self._in_half else None
        whole = torch.float32 if half and sizes.stage(self.env.rank) == sizes.pp - 1 else None
        shard: Callable[..., FSDPModule] = partial(
            fully_shard,
            mesh=self.mesh["shard" if sizes.replicate == 1 else ("replicate", "shard")],
            reshard_after_forward=options.strategy in SHARDED and options.strategy != "zero2",
            offload_policy=CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
            if options.cpu_offload
            else OffloadPolicy(),
        )
        # Gradients are added up in whole precision, and so is the loss.
        policy = partial(MixedPrecisionPolicy, param_dtype=half, reduce_dtype=half and torch.float32)
        for name in parts:
            shard(network.get_submodule(name), mp_policy=policy())
        shard(root, mp_policy=policy(output_dtype=whole))
        if options.prefetch is not None:
            gather_ahead(
                root, [part for name, part in network.named_modules() if name in parts], options.prefetch
            )

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context for the network and its loss; empty if gathered weights already set the precision."""
        return nullcontext() if self._in_half else super().autocast()

    @cached_property
    def _weight_numbers(self) -> dict[int, int]:
        """The number of each weight of this rank by its `id`.

        Cached on first use: a network on `meta` gets its weights after sharding.
        """
        return {id(p): self._numbers[name] for name, p in self._network.named_parameters()}

    def optimizer(
        self, kind: type[torch.optim.Optimizer], weights: Iterable[nn.Parameter], settings: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        """Build the optimizer, with a group for each mesh: torch updates the weights of one mesh at once."""
        groups: dict[object, list[nn.Parameter]] = {}
        for weight in weights:
            groups.setdefault(weight.device_mesh if isinstance(weight, DTensor) else None, []).append(weight)
        return kind([{"params": group} for group in groups.values()], **settings)

    def micro_batch(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Keep the gradients of all but the last with this rank."""
        for part in model.children():
            if isinstance(part, FSDPModule):
                part.set_requires_gradient_sync(last)
        return nullcontext()

    def name_of(self, weight: str) -> str:
        """Return the first name in the whole network of a weight that has several: a stage may have another."""
        return self._names[self._numbers[weight]]

    def clip(self, weights: Sequence[nn.Parameter], max_norm: float) -> None:
        """Scale the gradients; each number of them is in the norm once, on however many ranks it is."""
        parts = [(local(p.grad), self.copies(p)) for p in weights if p.grad is not None]
        total = torch.zeros((), device=self.weights_device)
        for gradient, copies in parts:
            total = (
                total
                + gradient.square().sum(dtype=torch.promote_types(gradient.dtype, torch.float32)) / copies
            )
        total = total.to(self.device)
        dist.all_reduce(total)
        scale = (max_norm / (total.sqrt() + 1e-6)).clamp(max=1.0).to(self.weights_device)
        for gradient, _ in parts:
            gradient.mul_(scale)

    def share_buffers(self, network: nn.Module) -> None:
        """Give the ranks of a stage the running statistics of the first of them."""
        for buffer in network.buffers():
            for dimension in ("shard", "replicate"):
                dist.broadcast(buffer, group_src=0, group=self.mesh.get_group(dimension))

    def model_state(self, network: nn.Module) -> State:
        """Gather the weights on rank 0, one by one. Other ranks return nothing, or their stage's weights."""
        whole: State = {}
        keeps = self.env.rank % self.sizes.stage_ranks == 0
        for name, value in network.state_dict().items():
            full = value
            if isinstance(value, DTensor):
                # The ranks' group has no backend for host memory, so gather through the device's.
                full = cast("DTensor", value.to(self.device)).full_tensor()
            if keeps:
                whole[name] = full.cpu() if isinstance(full, Tensor) else full
        return whole

    def load_model(self, network: nn.Module, state: Mapping[str, Any]) -> None:
        """Load this rank's part of the weights."""
        current: State = network.state_dict()
        parts = {
            name: self.part(current[name], value) if name in current else value
            for name, value in state.items()
        }
        super().load_model(network, parts)

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: State) -> None:
        """Load this rank's part of the state."""
        weights = weights_of(optimizer)
        [settings] = state["param_groups"]
        numbers = [self._weight_numbers[id(p)] for p in weights]
        local_state = {
            index: {name: self.part(weights[index], value) for name, value in state["state"][number].items()}
            for index, number in enumerate(numbers)
            if number in state["state"]
        }
        load_by_number(optimizer, local_state, settings)

    def part(self, weight: Tensor, value: Any) -> Any:  # noqa: ANN401 - an optimizer's state holds anything
        """Return this rank's part of a whole value for that weight."""
        if not isinstance(weight, DTensor):
            return super().part(weight, value)
        if not (isinstance(value, Tensor) and value.shape == weight.shape):
            return value
        local_part = distribute_tensor(value.to(self.device), weight.device_mesh, weight.placements)
        return local_part.to(weight.device)

    def copies(self, weight: nn.Parameter) -> int:
        """Return how many ranks have the same part of a weight."""
        sharded = 1
        if isinstance(weight, DTensor):
            over = zip(weight.device_mesh.shape, weight.placements, strict=True)
            sharded = math.prod(size for size, placement in over if not placement.is_replicate())
        return self.sizes.stage_ranks // sharded


def gather_ahead(root: nn.Module, parts: Sequence[nn.Module], number: int) -> None:
    """Have each part gather the weights of the next `number` parts before it computes, in both passes.

    `parts`: in the order of the forward pass; `root`: the module that contains them.
    """
    everything = [root, *parts]
    for at, part in enumerate(everything):
        before = everything[max(1, at - number) : at] if at else everything[1:][-number:]
        assert isinstance(part, FSDPModule)
        part.set_modules_to_forward_prefetch(_sharded(everything[at + 1 : at + 1 + number]))
        part.set_modules_to_backward_prefetch(_sharded(before[::-1]))


def _sharded(parts: Sequence[nn.Module]) -> list[FSDPModule]:
    return [part for part in parts if isinstance(part, FSDPModule)]


def local(gradient: Tensor) -> Tensor:
    """Return this rank's part of a gradient."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
