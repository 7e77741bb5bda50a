"""Fully sharded data parallel: each rank keeps its part of the weights, gradients and optimizer's state.

The weights of a part of the network are gathered before it computes, and given up after it. `zero2` gives them up
after the backward pass alone. `hsdp` shards within a node, and averages gradients between nodes: what crosses the
network is as little as with `ddp`.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from train.distributed.environment import DistributedEnvironment
from train.errors import BadOptions
from train.options import Options
from train.strategies.strategy import State, Strategy
from train.strategies.wrapping import parts_to_wrap


class FullyShard(Strategy):
    """torch's `fully_shard` on each part of the network that the wrap policy names, and on the whole."""

    times_communication = False  # it overlaps with computing in both passes
    fused_sgd = False  # it has no rule for sharded weights
    any_memory_format = False
    sharded = True

    def __init__(self, options: Options, env: DistributedEnvironment, device: torch.device) -> None:
        super().__init__(options, env, device)
        self.name = options.strategy
        self._mesh = _mesh(options, env, device)

    def shard(self, network: nn.Module) -> None:
        """Distribute the weights over the mesh, in place. Raises BadOptions for a policy that names no part."""
        reshard = self.options.strategy != "zero2"
        for part in [*parts_to_wrap(network, self.options.wrap).values(), network]:
            fully_shard(part, mesh=self._mesh, reshard_after_forward=reshard)

    def micro_batch(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Keep the gradients of all but the last with this rank."""
        for part in model.children():
            assert isinstance(part, FSDPModule)
            part.set_requires_gradient_sync(last)
        return nullcontext()

    def model_state(self, network: nn.Module) -> State:
        """Gather the weights on rank 0, one by one; the others have none."""
        return self._whole(network.state_dict())

    def load_model(self, network: nn.Module, state: State) -> None:
        """Take this rank's part of the weights."""
        own: State = network.state_dict()
        super().load_model(
            network,
            {name: self.part(own[name], value) if name in own else value for name, value in state.items()},
        )

    def part(self, weight: Tensor, value: Any) -> Any:  # noqa: ANN401 - an optimizer's state holds anything
        """Return this rank's part of a whole value for that weight."""
        if not (isinstance(weight, DTensor) and isinstance(value, Tensor) and value.shape == weight.shape):
            return value
        return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)

    def _whole(self, values: Mapping[str, Any]) -> State:
        """Gather the tensors among the values in the memory of rank 0's host."""
        whole: State = {}
        for name, value in values.items():
            full = value.full_tensor() if isinstance(value, DTensor) else value
            if self.env.rank == 0:
                whole[name] = full.cpu() if isinstance(full, Tensor) else full
        return whole


def _mesh(options: Options, env: DistributedEnvironment, device: torch.device) -> DeviceMesh:
    if options.strategy != "hsdp":
        return init_device_mesh(device.type, (env.world_size,), mesh_dim_names=("shard",))
    on_nodes = [0] * env.world_size
    dist.all_gather_object(
        on_nodes, env.local_world_size
    )  # all ranks decide alike, or some would wait for ever
    if len(set(on_nodes)) > 1:
        raise BadOptions(
            f"--strategy hsdp shards within a node, and some nodes have {min(on_nodes)} ranks, others "
            f"{max(on_nodes)}: start as many on each, or take --strategy fsdp."
        )
    nodes = env.world_size // env.local_world_size
    return init_device_mesh(device.type, (nodes, env.local_world_size), mesh_dim_names=("replicate", "shard"))
