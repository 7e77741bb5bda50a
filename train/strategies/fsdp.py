"""Fully sharded data parallel: each rank keeps its part of the weights, gradients and optimizer's state.

The weights of a part of the network are gathered before it computes, and given up after it. `zero2` gives them up
after the backward pass alone. `hsdp` shards within a node, and averages gradients between nodes: what crosses the
network is as little as with `ddp`. Where layers are split among ranks as well, this is the data-parallel part of it.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from train.distributed.environment import DistributedEnvironment
from train.options import Options
from train.strategies.degrees import SHARDED, Degrees, strategy_name
from train.strategies.strategy import State, Strategy
from train.strategies.tensor_parallel import split_layers, split_plan
from train.strategies.wrapping import parts_to_wrap

# It warns of how tensors are gathered that are split in two ways: for a checkpoint, and not while training.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


class FullyShard(Strategy):
    """torch's `fully_shard` on each part of the network that the wrap policy names, and on the whole."""

    times_communication = False  # it overlaps with computing in both passes
    fused_sgd = False  # it has no rule for sharded weights
    any_memory_format = False
    shards_without_weights = True
    sharded = True

    def __init__(
        self, options: Options, env: DistributedEnvironment, device: torch.device, sizes: Degrees
    ) -> None:
        super().__init__(options, env, device, sizes)
        self.name = strategy_name(options, sizes)
        shape = (sizes.pp, sizes.replicate, sizes.shard, sizes.tp)
        self.mesh = init_device_mesh(device.type, shape, mesh_dim_names=("pp", "replicate", "shard", "tp"))
        """All ranks. Some dimensions may be of one."""
        self.splits: dict[str, str] = {}
        """By what each layer is split among the ranks of `tp`: `columns` or `rows`, by its name."""
        self.parts: list[str] = []
        """The parts that are sharded by themselves, each before what it is in."""
        self._names: list[str] = []
        """The first names of the whole network's weights."""
        self._numbers: dict[str, int] = {}
        """The number of each weight of the whole network by its name; a tied one has several names."""

    def shard(
        self,
        network: nn.Module,
        example: Tensor,  # noqa: ARG002
        *,
        micro_batches: int,  # noqa: ARG002
        micro_batch_size: int,  # noqa: ARG002
    ) -> None:
        """Distribute the weights over the mesh, in place. Raises BadOptions for a policy that names no part."""
        self.plan(network)
        self.shard_parts(network, network)

    def plan(self, network: nn.Module) -> None:
        """Plan with the whole network: which layers are split, which parts are sharded by themselves.

        Raises BadOptions where no layer can be split, and for a policy that names no part.
        """
        self.splits = split_plan(network, self.sizes.tp) if self.sizes.tp > 1 else {}
        self.parts = list(parts_to_wrap(network, self.options.wrap)) if self.sizes.replicas > 1 else []
        number = {id(p): at for at, p in enumerate(network.parameters())}
        self._numbers = {name: number[id(p)] for name, p in network.named_parameters(remove_duplicate=False)}
        self._names = [name for name, _ in network.named_parameters()]

    def shard_parts(self, root: nn.Module, network: nn.Module) -> None:
        """Distribute the weights of a network, or of the stage `root` of it."""
        if self.splits:
            split_layers(network, self.mesh["tp"], self.splits)
        if self.sizes.replicas > 1:
            reshard = self.options.strategy in SHARDED and self.options.strategy != "zero2"
            mesh = self.mesh["shard" if self.sizes.replicate == 1 else ("replicate", "shard")]
            for part in [*map(network.get_submodule, self.parts), root]:
                fully_shard(part, mesh=mesh, reshard_after_forward=reshard)
        self._network = network

    @cached_property
    def _own(self) -> dict[int, int]:
        """The number of each weight of this rank by its `id`.

        They are looked up late: a network without weights gets them after it is sharded.
        """
        return {id(p): self._numbers[name] for name, p in self._network.named_parameters()}

    def optimizer(
        self, kind: type[torch.optim.Optimizer], weights: Iterable[nn.Parameter], settings: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        """Build the optimizer, with a group for the weights of each mesh: torch updates those of one at once."""
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

    def clip(self, weights: Sequence[nn.Parameter], most: float) -> None:
        """Scale the gradients; each number of them is in the norm once, on however many ranks it is."""
        parts = [(local(p.grad), self.copies(p)) for p in weights if p.grad is not None]
        total = torch.zeros((), device=self.device)
        for gradient, copies in parts:
            total = (
                total
                + gradient.square().sum(dtype=torch.promote_types(gradient.dtype, torch.float32)) / copies
            )
        dist.all_reduce(total)
        scale = (most / (total.sqrt() + 1e-6)).clamp(max=1.0)
        for gradient, _ in parts:
            gradient.mul_(scale)

    def share_buffers(self, network: nn.Module) -> None:
        """Give the ranks of a stage the running statistics of the first of them."""
        for buffer in network.buffers():
            for dimension in ("shard", "replicate"):
                dist.broadcast(buffer, group_src=0, group=self.mesh.get_group(dimension))

    def model_state(self, network: nn.Module) -> State:
        """Gather the weights on rank 0, one by one; the others have none, or those of their stage."""
        return self._whole(network.state_dict())

    def load_model(self, network: nn.Module, state: State) -> None:
        """Take this rank's part of the weights."""
        own: State = network.state_dict()
        super().load_model(
            network,
            {name: self.part(own[name], value) if name in own else value for name, value in state.items()},
        )

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: State) -> None:
        """Take this rank's part of the state."""
        weights = _weights(optimizer)
        [settings] = state["param_groups"]
        numbers = [self._own[id(p)] for p in weights]
        own = {
            index: {name: self.part(weights[index], value) for name, value in state["state"][number].items()}
            for index, number in enumerate(numbers)
            if number in state["state"]
        }
        groups, begin = [], 0
        for group in optimizer.param_groups:
            end = begin + len(group["params"])
            groups.append({**settings, "params": list(range(begin, end))})
            begin = end
        optimizer.load_state_dict({"state": own, "param_groups": groups})

    def part(self, weight: Tensor, value: Any) -> Any:  # noqa: ANN401 - an optimizer's state holds anything
        """Return this rank's part of a whole value for that weight."""
        if not isinstance(weight, DTensor):
            return super().part(weight, value)
        if not (isinstance(value, Tensor) and value.shape == weight.shape):
            return value
        return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)

    def copies(self, weight: nn.Parameter) -> int:
        """Return how many ranks have the same part of a weight."""
        sharded = 1
        if isinstance(weight, DTensor):
            over = zip(weight.device_mesh.shape, weight.placements, strict=True)
            sharded = math.prod(size for size, placement in over if not placement.is_replicate())
        return self.env.world_size // self.sizes.pp // sharded

    def _whole(self, values: Mapping[str, Any]) -> State:
        """Gather the tensors among the values in the memory of the host of each stage's first rank."""
        whole: State = {}
        keeps = self.env.rank % (self.sizes.replicas * self.sizes.tp) == 0
        for name, value in values.items():
            full = value.full_tensor() if isinstance(value, DTensor) else value
            if keeps:
                whole[name] = full.cpu() if isinstance(full, Tensor) else full
        return whole


def local(gradient: Tensor) -> Tensor:
    """Return this rank's part of a gradient."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _weights(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]
