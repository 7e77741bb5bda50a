"""The interface between strategy and training loop, implemented for a single process without distribution."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.distributed.environment import DistributedEnvironment
from train.loss import autocast
from train.options import Options
from train.strategies.degrees import Degrees

State = dict[str, Any]


class Strategy:
    """A single rank with the whole model; subclasses distribute it.

    The loop calls `shard`, `optimizer` and `wrap` once, in this order, on every rank. States are whole: they do not
    depend on how the model was distributed, so any strategy can resume from them.
    """

    name = "single"
    """Name of the strategy in the result."""
    times_communication = True
    """Whether the timer's marks tell communication from computing."""
    fused_sgd = True
    """Whether torch's fused SGD can update the weights."""
    any_memory_format = True
    """Whether weights may have their channels innermost."""
    shards_without_weights = False
    """Whether `shard` accepts a network on the device `meta`, so that no rank ever has all of its weights."""
    own_precision = False
    """Whether the strategy manages half precision: no autocast around the network, no scaled loss."""
    reads_whole = False
    """Whether a checkpoint's weights are read whole, one by one, as this rank's parts are no tensors."""
    sharded = False
    """Whether ranks have different parts of the model or of the optimizer's state, so that each writes its parts."""

    def __init__(
        self,
        options: Options,
        env: DistributedEnvironment,
        device: torch.device,
        sizes: Degrees = Degrees(),  # noqa: B008 - it is frozen
    ) -> None:
        self.options = options
        self.env = env
        self.device = device
        self.sizes = sizes
        self.replica = sizes.replica(env.rank)
        """The number of the replica that this rank is of: which samples it takes."""
        self.counts = sizes.counts(env.rank)
        """Whether this rank counts the samples of its replica."""
        self.devices = [device]
        """All devices that this rank computes on."""
        self.set_up()

    def set_up(self) -> None:
        """Set the strategy's own attributes. Raises BadOptions and BadEnvironment."""

    @property
    def graphable(self) -> bool:
        """Return whether a step can be a CUDA graph. Subclasses opt in."""
        return type(self) is Strategy

    @property
    def weights_device(self) -> torch.device:
        """The device of weights, gradients and optimizer state between steps."""
        return torch.device("cpu") if self.options.cpu_offload else self.device

    def shard(
        self, network: nn.Module, example: Tensor, *, micro_batches: int, micro_batch_size: int
    ) -> None:
        """Distribute the weights of the network, in place. Raises BadOptions if it can't be divided like this.

        `example`: one input, [1, …]; `micro_batches`: of a rank's batch.
        """

    def optimizer(
        self, kind: type[torch.optim.Optimizer], weights: Iterable[nn.Parameter], settings: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        """Build the optimizer of that class."""
        return kind(weights, **settings)

    def name_of(self, weight: str) -> str:
        """Return the first name in the whole network of a weight that has several names."""
        return weight

    def own_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return the optimizer of the weights that this rank updates, with their state."""
        return optimizer

    def own_weights(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
        """Return the weights that this rank updates, by their first names in the whole network."""
        groups = self.own_optimizer(optimizer).param_groups
        ids = {id(weight) for group in groups for weight in group["params"]}
        return {
            self.name_of(name): weight for name, weight in network.named_parameters() if id(weight) in ids
        }

    def own_state(self, network: nn.Module) -> State:
        """Return the weights and buffers that this rank writes. Every rank calls this."""
        return network.state_dict()

    def own_optimizer_state(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, State]:
        """Return the optimizer's state of each weight that this rank writes, by the weight's name."""
        state = self.own_optimizer(optimizer).state
        return {name: state.get(weight, {}) for name, weight in self.own_weights(network, optimizer).items()}

    def wrap(self, model: nn.Module, *, steps: int, on_ready: Callable[[], None]) -> nn.Module:  # noqa: ARG002
        """Return the model with its loss so that a backward pass averages the gradients over the ranks.

        `steps`: of the whole run. `on_ready` is called when this rank's own gradients are computed.
        """
        return model

    def renew(self, model: nn.Module) -> nn.Module:
        """Return a wrapped model whose last backward pass was cut off as a new one. Every rank calls it."""
        return model

    def backward(
        self, model: nn.Module, batch: Sequence[tuple[Tensor, Tensor]], compute: "Compute"
    ) -> tuple[Tensor, Tensor | None]:
        """Add the gradients of a batch, given as micro-batches of images and labels.

        Returns its mean loss and its logits [b, classes], both without gradient. Logits may be `None`: for text, and
        on a rank that does not count samples. `compute` takes one micro-batch, and returns its share of the loss, and
        its logits.
        """
        losses: list[Tensor] = []
        logits: list[Tensor] = []
        for number, (images, labels) in enumerate(batch, 1):
            with self.micro_batch(model, last=number == len(batch)):
                loss, outputs = compute(images, labels)
            losses.append(loss)
            logits += [] if outputs is None else [outputs]
        if len(batch) == 1:
            return losses[0], logits[0] if logits else None
        return torch.stack(losses).sum(), torch.cat(logits) if logits else None

    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        """Forget the gradients of the step before."""
        optimizer.zero_grad()

    def propagate(self, loss: Tensor) -> None:
        """Add the gradients of a micro-batch's part of the loss."""
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it

    def micro_batch(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return the context of a micro-batch: with the last micro-batch of a batch the gradients are averaged."""
        return nullcontext()

    def clip(self, weights: Sequence[nn.Parameter], max_norm: float) -> None:
        """Scale the averaged gradients so that their norm over the whole model is at most `max_norm`."""
        nn.utils.clip_grad_norm_(weights, max_norm)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights by their gradients."""
        optimizer.step()

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context that the network and its loss compute in."""
        return autocast(self.options, self.device)

    def forward(self, network: nn.Module, images: Tensor) -> Tensor | None:
        """Return the logits [b, classes] of an evaluation; where this rank does not count, they may be `None`."""
        logits: Tensor = network(images)
        return logits

    def share_buffers(self, network: nn.Module) -> None:
        """Broadcast rank 0's running statistics."""
        if self.env.world_size > 1:
            for buffer in network.buffers():
                dist.broadcast(buffer, 0)

    def gradient_bytes(self, network: nn.Module) -> int | None:
        """Return the bytes that a rank adds to a step's all-reduce.

        `None`: the number depends on the step, or the step sends more than that.
        """
        compression = self.options.compression
        if self.name not in ("ddp", "single") or compression == "powersgd":
            return None
        trained = [p for p in network.parameters() if p.requires_grad]
        return sum(p.numel() * (2 if compression == "half" else p.element_size()) for p in trained)

    def model_state(self, network: nn.Module) -> State:
        """Return the whole weights and buffers, on rank 0 at least. Every rank calls it."""
        return network.state_dict()

    def scaler_state(self) -> State:
        """Return the state of the GradScaler; empty: no scaled loss, or the training step has the scaler."""
        return {}

    def load_scaler(self, state: State) -> None:
        """Restore the loss scale, unless the training step does."""

    def load_model(self, network: nn.Module, state: Mapping[str, Any]) -> None:
        """Load whole weights and buffers, which every rank has."""
        network.load_state_dict(state)

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: State) -> None:
        """Load an optimizer's whole state, which every rank has."""
        weights = weights_of(optimizer)
        local_state = {
            index: {name: self.part(weights[index], value) for name, value in values.items()}
            for index, values in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": local_state})

    def part(self, weight: Tensor, value: Any) -> Any:  # noqa: ANN401 - an optimizer's state holds anything
        """Return this rank's part of a weight's value, in the memory order of the weight.

        torch's fused operations go through both in memory order, and do not check it. The value stays on its device:
        an optimizer moves its values.
        """
        if not isinstance(value, Tensor) or value.shape != weight.shape:
            return value
        return torch.empty_like(weight, dtype=value.dtype, device=value.device).copy_(value)


Compute = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""Takes the images and labels of a micro-batch through the network and back."""


def weights_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the weights of all of an optimizer's groups, in the order of their numbers in its state."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def load_by_number(optimizer: torch.optim.Optimizer, values: Mapping[int, State], settings: State) -> None:
    """Load each weight's optimizer state, by the weight's number, with the same settings for every group."""
    groups, first = [], 0
    for group in optimizer.param_groups:
        end = first + len(group["params"])
        groups.append({**settings, "params": list(range(first, end))})
        first = end
    optimizer.load_state_dict({"state": dict(values), "param_groups": groups})


def keeps_statistics(network: nn.Module) -> bool:
    """Return whether a network keeps running statistics: they stay in full precision if weights are in half."""
    return any(buffer.is_floating_point() for buffer in network.buffers())
