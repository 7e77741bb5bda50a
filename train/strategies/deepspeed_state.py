"""Gather and restore the state that ZeRO divides among the ranks, weight by weight.

Each rank has a part of all weights in full precision, which the optimizer updates. The part may begin within a
weight.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from train.distributed.environment import DistributedEnvironment
from train.strategies.strategy import State

WEIGHTS_STAGE = 3
"""The stage of ZeRO that also divides the weights of the forward and backward pass."""


class DividedState:
    """A network's weights and their optimizer state. All ranks make the same calls."""

    def __init__(
        self,
        deepspeed: Any,  # noqa: ANN401 - a module
        env: DistributedEnvironment,
        network: nn.Module,
        stage: int,
    ) -> None:
        """`network`: before the engine changes it."""
        self._deepspeed = deepspeed
        self._env = env
        self._network = network
        self._stage = stage
        names: dict[nn.Parameter, list[str]] = {}
        for name, weight in network.named_parameters(remove_duplicate=False):
            names.setdefault(weight, []).append(name)
        self._names = names
        """The names of each weight; a tied one has several."""
        self._shapes = {weight: weight.shape for weight in names}

    def weights(self, *, shared: bool) -> State:
        """Gather weights and buffers in host memory: on rank 0, or, if `shared`, some on each rank."""
        gathered = self._buffers() if self._env.rank == 0 else {}
        for weight, keeps in self._keepers(shared=shared):
            whole = self._deepspeed.utils.safe_get_full_fp32_param(weight)
            if keeps:
                gathered |= dict.fromkeys(self._names[weight], whole.cpu())
        return gathered

    def of_optimizer(self, optimizer: torch.optim.Optimizer, parts: list[Tensor]) -> dict[str, State]:
        """Gather the weights' optimizer state, by first name: each rank returns the state of some weights."""
        get = self._deepspeed.utils.safe_get_full_optimizer_state
        values = {key: value for key, value in optimizer.state[parts[0]].items() if isinstance(value, Tensor)}
        gathered: dict[str, State] = {}
        for weight, keeps in self._keepers(shared=True):
            whole = {key: get(weight, key) if value.dim() else value for key, value in values.items()}
            if keeps:
                gathered[self._names[weight][0]] = {key: value.cpu() for key, value in whole.items()}
        return gathered

    @torch.no_grad()
    def load_weights(self, state: Mapping[str, Tensor], parts: list[Tensor]) -> None:
        """Load whole weights and buffers, which may be read on access.

        Raises ValueError if they belong to another network.
        """
        for name, buffer in self._buffers().items():
            buffer.copy_(_of_shape(state, name, buffer.shape))
        for weight, names in self._names.items():
            whole = _of_shape(state, names[0], self._shapes[weight]).to(weight.device, torch.float32)
            self._set(weight, whole, None, dict(enumerate(parts)))
            gathered = self._deepspeed.zero.GatheredParameters
            with gathered([weight], modifier_rank=0, enabled=self._stage == WEIGHTS_STAGE):
                weight.copy_(whole)

    def load_optimizer(
        self, optimizer: torch.optim.Optimizer, state: Mapping[int, State], parts: list[Tensor]
    ) -> None:
        """Load each weight's optimizer state, by the weight's number."""
        group = optimizer.param_groups[0]
        counts_on_device = bool(group.get("fused") or group.get("capturable"))
        for number, weight in enumerate(self._names):
            values = state.get(number, {})
            if number == 0 and values:
                for part in parts:
                    optimizer.state[part] = _begun(part, values, on_device=counts_on_device)
            for key, value in values.items():
                if isinstance(value, Tensor) and value.dim():
                    whole = _of_shape(values, key, self._shapes[weight]).to(weight.device, torch.float32)
                    held = {at: optimizer.state[part][key] for at, part in enumerate(parts)}
                    self._set(weight, whole, key, held)

    def _keepers(self, *, shared: bool) -> Iterator[tuple[nn.Parameter, bool]]:
        """Yield the weights, and whether this rank keeps each of them."""
        for number, weight in enumerate(self._names):
            keeper = number % self._env.world_size if shared else 0
            yield weight, keeper == self._env.rank

    def _set(self, weight: nn.Parameter, whole: Tensor, key: str | None, held: Mapping[int, Tensor]) -> None:
        """Set this rank's part of a weight in full precision, or of its optimizer state under a key.

        `held`: below stage 3, the parts that contain the weight, by the number of their group.
        """
        divided: Any = weight  # with the engine's attributes
        if self._stage == WEIGHTS_STAGE:
            size = divided.ds_tensor.numel()
            padded = torch.zeros(size * self._env.world_size, device=whole.device)
            padded[: whole.numel()] = whole.flatten()
            local_part = padded.narrow(0, self._env.rank * size, size)
            if key is None:
                self._deepspeed.utils.safe_set_local_fp32_param(weight, local_part)
            else:
                self._deepspeed.utils.safe_set_local_optimizer_state(weight, local_part, key)
        elif (place := divided._hp_mapping) is not None:  # noqa: SLF001 - its own functions need a step before
            in_part, in_weight = place.hp_fragment_address, place.lp_fragment_address
            part = whole.flatten().narrow(0, in_weight.start, in_weight.numel)
            held[place.param_group_index].narrow(0, in_part.start, in_part.numel).copy_(part)

    def _buffers(self) -> State:
        weights = {name for names in self._names.values() for name in names}
        return {name: value for name, value in self._network.state_dict().items() if name not in weights}


def _begun(part: Tensor, values: State, *, on_device: bool) -> State:
    """Return a part's optimizer state as after a first step, with zeros. `values`: the state of one weight."""

    def begun(value: Any) -> Any:  # noqa: ANN401 - an optimizer keeps anything
        if not isinstance(value, Tensor):
            return value
        if value.dim():
            return torch.zeros_like(part, requires_grad=False)
        return value.to(part.device) if on_device else value.clone()

    return {key: begun(value) for key, value in values.items()}


def _of_shape(state: Mapping[str, Any], name: str, shape: torch.Size) -> Tensor:
    if name not in state:
        raise ValueError(f"it has no {name}")
    value: Tensor = state[name]
    if value.shape != shape:
        raise ValueError(f"its {name} has shape {tuple(value.shape)} for {tuple(shape)}")
    return value
