"""Pipeline parallel: each stage has some of the layers, and computes one micro-batch while others compute others.

The stages take turns by the schedule 1F1B: at most one micro-batch for each stage is in flight. All micro-batches
have one size: a smaller batch is filled up with samples that are not counted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from train.loss import NOT_COUNTED, mean_loss
from train.strategies.fsdp import FullyShard, local
from train.strategies.plan import Layer
from train.strategies.strategy import Compute, State

WITHOUT_OUTPUTS: dict[str, Any] = (
    {"return_outputs": False} if "return_outputs" in signature(Schedule1F1B.step).parameters else {}
)
"""Logits of text take much memory. Older torch has no way to leave them out."""


class Pipeline(FullyShard):
    """torch's pipeline stages, one on each rank."""

    def shard(
        self, network: nn.Module, example: Tensor, *, micro_batches: int, micro_batch_size: int
    ) -> None:
        """Keep the layers of this rank's stage, and distribute their weights over the stage's ranks.

        Raises BadOptions for a network that can't be cut so.
        """
        self._micro_batches, self._size = micro_batches, micro_batch_size
        plan = self.plan(network, example)
        tied = _tied(network, plan.layers, plan.stages)
        layers = plan.stages[self._at]
        for index, layer in enumerate(plan.layers):
            if index not in layers and layer.name:  # the others keep their names
                parent, _, last = layer.name.rpartition(".")
                delattr(network.get_submodule(parent), last)
        self._stage = Stage([plan.layers[index].compute for index in layers], network, self.autocast)
        self.shard_parts(self._stage, network, plan)
        self._joins = self._join(tied)
        # Through the hosts' memory: all stages together may be more than a GPU has.
        first_ranks = list(range(0, self.env.world_size, self.sizes.stage_ranks))
        self._first_ranks = dist.new_group(first_ranks, backend="gloo")
        self._schedules: dict[int, PipelineScheduleSingle] = {}
        self._evaluation = ScheduleGPipe(self._pipeline_stage(), micro_batches)

    def backward(
        self,
        model: nn.Module,  # noqa: ARG002 - it is not whole here
        batch: Sequence[tuple[Tensor, Tensor]],
        compute: Compute,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor | None]:
        """Add the gradients of a batch. Every stage learns the loss, the last one alone has the logits."""
        number = max(self._micro_batches, len(batch))
        images, labels = (torch.cat(parts) for parts in zip(*batch, strict=True))
        self._counted = labels.numel()
        losses: list[Tensor] = []
        size = number * self._size
        target = _filled(labels, size, NOT_COUNTED) if self._is_last else None
        with _own_errors():
            if number not in self._schedules:  # a larger batch has more micro-batches
                self._schedules[number] = Schedule1F1B(
                    self._pipeline_stage(), number, loss_fn=self._loss, scale_grads=False
                )
            logits = self._schedules[number].step(
                *self._input(images, size),
                target=target,
                losses=losses if self._is_last else None,
                **(WITHOUT_OUTPUTS if self.options.is_text else {}),
            )
        loss = torch.zeros((), device=self.device)
        if self._is_last:
            loss += torch.stack(losses).sum().detach()
        dist.broadcast(loss, group_src=self.sizes.pp - 1, group=self.mesh.get_group("pp"))
        for weight, group in self._ties:
            assert weight.grad is not None
            gradient = local(weight.grad)
            whole = gradient.to(self.device)
            dist.all_reduce(whole, group=group)
            gradient.copy_(whole)
        return loss, None if logits is None else logits.detach()[: len(labels)]

    def forward(self, network: nn.Module, images: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return the logits on the last stage."""
        with _own_errors():
            logits = self._evaluation.step(*self._input(images, self._micro_batches * self._size))
        return logits[: len(images)] if self._is_last else None

    def model_state(self, network: nn.Module) -> State:
        """Gather the weights of all stages on rank 0."""
        return self._of_all_stages(super().model_state(network))

    def load_model(self, network: nn.Module, state: Mapping[str, Any]) -> None:
        """Take this rank's part of the weights of its stage."""
        super().load_model(network, {name: state[name] for name in network.state_dict()})

    def copies(self, weight: nn.Parameter) -> int:
        """Return how many ranks have the same part of a weight, on several stages where it is tied."""
        stages = next((dist.get_world_size(group) for tied, group in self._ties if tied is weight), 1)
        return super().copies(weight) * stages

    @cached_property
    def _ties(self) -> list[tuple[nn.Parameter, dist.ProcessGroup]]:
        """This rank's weights that other stages have as well, with the group that adds up their gradients.

        Cached on first use: a network on `meta` gets its weights after the cut.
        """
        named = dict(self._network.named_parameters())
        return [(named[name], group) for name, group in self._joins]

    @property
    def _at(self) -> int:
        """The number of this rank's stage."""
        return self.sizes.stage(self.env.rank)

    @property
    def _is_first(self) -> bool:
        return self._at == 0

    @property
    def _is_last(self) -> bool:
        return self._at == self.sizes.pp - 1

    def _pipeline_stage(self) -> PipelineStage:
        group = self.mesh.get_group("pp")
        return PipelineStage(self._stage, self._at, self.sizes.pp, self.device, group=group)

    def _input(self, images: Tensor, size: int) -> tuple[Tensor, ...]:
        """Return what this rank gives the schedule: the images, filled up, on the first stage."""
        return (_filled(images, size),) if self._is_first else ()

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute a micro-batch's part of the batch's mean loss."""
        with self.autocast():
            return mean_loss(
                logits,
                labels,
                label_smoothing=self.options.label_smoothing,
                labels_in_all=self._counted,
            )

    def _join(self, tied: Sequence[Mapping[int, str]]) -> list[tuple[str, dist.ProcessGroup]]:
        """Return the names of this rank's weights that other stages have as well, and the group of their ranks.

        `tied`: the name of each such weight, by stage. Every rank makes all groups, in the same order.
        """
        ranks = self.sizes.stage_ranks
        joins = []
        for names in tied:
            for place in range(ranks):
                group = dist.new_group([stage * ranks + place for stage in names])
                if place == self.env.rank % ranks and self._at in names:
                    assert isinstance(group, dist.ProcessGroup)
                    joins.append((names[self._at], group))
        return joins

    def _of_all_stages(self, local_state: State) -> State:
        """Join the state of the stages' first ranks on rank 0. Other ranks return nothing."""
        if self.env.rank % self.sizes.stage_ranks:
            return {}
        parts: list[State] | None = [{}] * self.sizes.pp if self.env.rank == 0 else None
        dist.gather_object(local_state, parts, dst=0, group=self._first_ranks)
        return {name: value for part in parts or [] for name, value in part.items()}


class Stage(nn.Module):
    """The layers of a stage."""

    def __init__(
        self,
        layers: Sequence[Callable[[Tensor], Tensor]],
        network: nn.Module,
        autocast: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`network`: the stage's remaining network, which contains these layers."""
        super().__init__()
        self.network = network
        self._steps = tuple(layers)
        self._autocast = autocast

    def forward(self, value: Tensor) -> Tensor:
        """Compute the layers of this stage."""
        with self._autocast():
            for layer in self._steps:
                value = layer(value)
        return value


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raise a stage's error: torch raises another in its place, with the stage's arguments."""
    try:
        yield
    except RuntimeError as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None


def _filled(values: Tensor, size: int, filling: int | None = None) -> Tensor:
    """Return `size` rows: the given rows, then the same again, or the filling.

    A network that normalises over a micro-batch sees the added rows as well.
    """
    missing = size - len(values)
    if not missing:
        return values
    rows = values[torch.arange(missing, device=values.device) % len(values)]
    return torch.cat([values, rows if filling is None else torch.full_like(rows, filling)])


def _tied(network: nn.Module, layers: Sequence[Layer], of_stages: Sequence[range]) -> list[dict[int, str]]:
    """Return each weight that several stages have, as its name by stage."""
    stage_of = {layers[index].name: stage for stage, indices in enumerate(of_stages) for index in indices}
    names: dict[int, list[str]] = {}
    for name, weight in network.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    tied = []
    for same in names.values():
        by_stage: dict[int, str] = {}
        for name in same:
            layer = next(layer for layer in stage_of if layer and name.startswith(f"{layer}."))
            by_stage.setdefault(stage_of[layer], name)
        if len(by_stage) > 1:
            tied.append(by_stage)
    return tied
