"""What a strategy does for the training loop. The class is that of a single process, which distributes nothing."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from train.distributed.environment import DistributedEnvironment
from train.options import Options

State = dict[str, Any]


class Strategy:
    """The whole model on one rank. Others override what they do otherwise.

    The loop calls `shard`, `optimizer` and `wrap` once, in this order, on every rank. States are whole: they do not
    show how the model was distributed, so that any strategy can go on from them.
    """

    name = "single"
    """As the result tells it."""
    times_communication = True
    """Whether the timer's marks tell communication from computing."""
    fused_sgd = True
    """Whether torch's fused SGD can update the weights."""
    any_memory_format = True
    """Whether weights may have their channels innermost."""
    sharded = False
    """Whether ranks have different parts of the model or of the optimizer's state: each writes its own then."""

    def __init__(self, options: Options, env: DistributedEnvironment, device: torch.device) -> None:
        self.options = options
        self.env = env
        self.device = device

    def shard(self, network: nn.Module) -> None:
        """Distribute the weights of the network, in place."""

    def optimizer(
        self, kind: type[torch.optim.Optimizer], weights: Iterable[nn.Parameter], settings: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        """Build the optimizer of that class."""
        return kind(weights, **settings)

    def own_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return the optimizer of the weights that this rank updates, with their state."""
        return optimizer

    def wrap(self, model: nn.Module, *, steps: int, on_ready: Callable[[], None]) -> nn.Module:  # noqa: ARG002
        """Return the model with its loss so that a backward pass averages the gradients over the ranks.

        `steps`: of the whole run. `on_ready` is called when this rank's own gradients are computed.
        """
        return model

    def micro_batch(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return the context of a micro-batch: with the last one of a batch the gradients are averaged."""
        return nullcontext()

    def gradient_bytes(self, network: nn.Module) -> int | None:
        """Return the bytes that a rank gives into a step's all-reduce, where there are several ranks.

        None: it depends on the step, or what is sent is more than that.
        """
        compression = self.options.compression
        if self.options.strategy != "ddp" or compression == "powersgd":
            return None
        trained = [p for p in network.parameters() if p.requires_grad]
        return sum(p.numel() * (2 if compression == "half" else p.element_size()) for p in trained)

    def model_state(self, network: nn.Module) -> State:
        """Return the whole weights and buffers, on rank 0 at least. Every rank calls it."""
        return network.state_dict()

    def load_model(self, network: nn.Module, state: State) -> None:
        """Take over whole weights and buffers, which every rank has."""
        network.load_state_dict(state)

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: State) -> None:
        """Take over an optimizer's whole state, which every rank has."""
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        own = {
            index: {name: self.part(weights[index], value) for name, value in values.items()}
            for index, values in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": own})

    def part(self, weight: Tensor, value: Any) -> Any:  # noqa: ANN401 - an optimizer's state holds anything
        """Return what this rank keeps of a value for that weight, in the order in which the weight is in memory.

        torch's fused operations go through both in memory, and would not notice another order. The value stays on its
        device: an optimizer moves what it takes.
        """
        if not isinstance(value, Tensor) or value.shape != weight.shape:
            return value
        return torch.empty_like(weight, dtype=value.dtype, device=value.device).copy_(value)
