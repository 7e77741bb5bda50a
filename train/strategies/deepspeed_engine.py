"""DeepSpeed distributes the model and takes the steps: the model is whole on every rank, or in parts by ZeRO.

DeepSpeed's checkpoints depend on the number of ranks. So weights and optimizer state are gathered one by one instead,
and written under the bare model's names, as with any strategy.
"""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.distributed.environment import DistributedEnvironment
from train.errors import BadEnvironment, BadOptions
from train.options import Options
from train.strategies.deepspeed_config import (
    HALVES,
    config_of,
    engine_config,
    has_autocast,
    name_of,
    optimizer_settings,
    stage_of,
)
from train.strategies.deepspeed_state import WEIGHTS_STAGE, DividedState
from train.strategies.strategy import State, Strategy, keeps_statistics, weights_of


class DeepSpeed(Strategy):
    """DeepSpeed's engine around the network."""

    times_communication = False  # the engine sends within the passes and the update
    any_memory_format = False
    own_precision = True

    def set_up(self) -> None:
        """Set the strategy's own attributes. Raises BadOptions and BadEnvironment."""
        self.name = name_of(self.options)
        self._stage = stage_of(self.options)
        self.sharded = self.reads_whole = self._stage > 0
        self._deepspeed = _deepspeed(self.env, self.device)
        if (
            self.options.precision == "fp16"
            and not self._deepspeed.accelerator.get_accelerator().is_fp16_supported()
        ):
            raise BadOptions("DeepSpeed can't compute in fp16 on these processors: take bf16, or GPUs.")
        self._batch = (1, 1)
        """The size of a micro-batch, and how many a batch has."""

    def shard(
        self,
        network: nn.Module,
        example: Tensor,  # noqa: ARG002
        *,
        micro_batches: int,
        micro_batch_size: int,
    ) -> None:
        """Record the weights for the engine to divide, and the batch's division. Raises BadOptions."""
        check_precision(self.options, network)
        self._batch = (micro_batch_size, micro_batches)
        self._divided = DividedState(self._deepspeed, self.env, network, self._stage)

    def optimizer(
        self, kind: type[torch.optim.Optimizer], weights: Iterable[nn.Parameter], settings: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        """Build the optimizer; the engine replaces its weights by this rank's parts of them."""
        self._optimizer = kind(weights, **{**settings, **optimizer_settings(self.options)})
        return self._optimizer

    def wrap(self, model: nn.Module, *, steps: int, on_ready: Callable[[], None]) -> nn.Module:  # noqa: ARG002
        """Put the engine around the model's network. The loss is computed outside the engine."""
        network = model.get_submodule("network")
        size, number = self._batch
        config = engine_config(
            self.options, micro_batch=size, micro_batches=number, world_size=self.env.world_size
        )
        self._engine, *_ = self._deepspeed.initialize(model=network, optimizer=self._optimizer, config=config)
        model.network = self._engine
        if self.options.precision in ("bf16", "fp16"):
            _take_and_return_full_precision(network)
        return model

    def micro_batch(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002
        """Tell the engine whether the update follows: a last batch may have fewer micro-batches than the others."""
        self._engine.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        """Leave it to the engine, which does it in `update`, and keeps some in the host's memory."""

    def propagate(self, loss: Tensor) -> None:
        """Add the gradients. The loss is weighted by its part of the batch already."""
        self._engine.backward(loss, scale_wrt_gas=False)

    def clip(self, weights: Sequence[nn.Parameter], max_norm: float) -> None:
        """Leave it to the engine, which clips in `update`."""

    def update(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        """Have the engine clip the gradients, and update the weights."""
        self._engine.step()

    def autocast(self) -> AbstractContextManager[None]:
        """Leave it to the engine."""
        return nullcontext()

    def forward(self, network: nn.Module, images: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return the logits [b, classes] of an evaluation."""
        # Weights that are gathered in inference mode could not be trained later.
        with torch.inference_mode(mode=False), torch.no_grad():
            logits: Tensor = self._engine(images.clone())
        return logits

    def own_state(self, network: nn.Module) -> State:  # noqa: ARG002
        """Gather the weights; each rank keeps some of them."""
        return self._divided.weights(shared=True)

    def own_optimizer_state(
        self,
        network: nn.Module,  # noqa: ARG002
        optimizer: torch.optim.Optimizer,
    ) -> dict[str, State]:
        """Gather each weight's optimizer state; each rank keeps the state of some weights."""
        return self._divided.of_optimizer(optimizer, self._parts())

    def model_state(self, network: nn.Module) -> State:
        """Gather the weights on rank 0."""
        return self._divided.weights(shared=False) if self.sharded else super().model_state(network)

    def scaler_state(self) -> State:
        """Return the state of a GradScaler with the engine's factor."""
        if self.options.precision != "fp16":
            return {}
        return torch.amp.GradScaler(
            self.device.type, init_scale=self._engine.optimizer.loss_scale
        ).state_dict()

    def load_scaler(self, state: State) -> None:
        """Have the engine go on with that factor; it is one of full precision, too."""
        if self.options.precision == "fp16":
            self._engine.optimizer.loss_scale = state["scale"]

    def load_model(self, network: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Take over whole weights and buffers, which every rank has."""
        if self.sharded:
            self._divided.load_weights(state, self._parts())
        else:
            super().load_model(network, state)

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: State) -> None:
        """Take over an optimizer's whole state, which every rank has."""
        if not self.sharded:
            super().load_optimizer(optimizer, state)
            return
        [settings] = state["param_groups"]
        for group in optimizer.param_groups:
            group.update({name: value for name, value in settings.items() if name != "params"})
        self._divided.load_optimizer(optimizer, state["state"], self._parts())

    def _parts(self) -> list[Tensor]:
        """Return this rank's parts of the weights in full precision, which the optimizer updates."""
        if self._stage == WEIGHTS_STAGE:
            return list(self._engine.optimizer.fp32_partitioned_groups_flat)
        return list(weights_of(self._optimizer))


def check_precision(options: Options, network: nn.Module) -> None:
    """Raise BadOptions where all weights would be in half precision, and the network's statistics in whole one."""
    precision = options.precision
    in_half = precision in HALVES and not has_autocast(config_of(options))
    if in_half and keeps_statistics(network):
        kind = next(name for name, half in HALVES.items() if half == precision and name != precision)
        raise BadOptions(
            f"{options.model} keeps running statistics, and DeepSpeed computes in {precision} without them: give "
            f'{{"torch_autocast": {{"enabled": true, "dtype": "{kind}"}}}} in --deepspeed-config instead, or take '
            "--engine torch."
        )


def _take_and_return_full_precision(network: nn.Module) -> None:
    """Have a network compute in the precision of its weights, and the loss in full precision."""
    dtype = next(network.parameters()).dtype

    def to_own(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(value.to(dtype) if value.is_floating_point() else value for value in inputs)

    def to_full(_: nn.Module, __: tuple[Tensor, ...], logits: Tensor) -> Tensor:
        return logits.float()

    network.register_forward_pre_hook(to_own)
    network.register_forward_hook(to_full)


def _deepspeed(env: DistributedEnvironment, device: torch.device) -> Any:  # noqa: ANN401 - a module
    """Return DeepSpeed, which uses this process's group of ranks from now on. Raises BadEnvironment."""
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    for name, value in {"RANK": env.rank, "LOCAL_RANK": env.local_rank, "WORLD_SIZE": env.world_size}.items():
        os.environ.setdefault(name, str(value))
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        raise BadEnvironment(
            f"{sys.executable} has no package {error.name}, which --engine deepspeed needs. Install it: "
            f"{sys.executable} -m pip install deepspeed"
        ) from None
    deepspeed.utils.logger.setLevel(logging.WARNING)
    # It calls functions of torch by their former names.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if not dist.is_initialized():  # a single process has no group
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    if device.type == "cpu":
        # It is for inference, and takes a compiler and a minute.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
    return deepspeed
