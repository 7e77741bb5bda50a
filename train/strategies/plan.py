"""Plan how a strategy divides a network. gpuctl shows the plan before any rank starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from train.options import Options
from train.strategies.degrees import Degrees
from train.strategies.stages import Layer, chain, costs_of, cut
from train.strategies.tensor_parallel import split_plan
from train.strategies.wrapping import parts_to_wrap


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole network's division; parts and layers by name."""

    splits: Mapping[str, str]
    """By what each layer is split among the ranks of `tp`: `columns` or `rows`."""
    parts: Sequence[str]
    """Parts that are sharded separately, each before the part that contains it."""
    layers: Sequence[Layer] = ()
    """Layers in forward order. Empty without a pipeline."""
    stages: Sequence[range] = ()
    """Indices of each stage's layers."""

    def parts_of(self, stage: int) -> list[str]:
        """Return the parts on a stage, without the sequences around its layers: a stage calls only layers."""
        if not self.stages:
            return list(self.parts)
        layers = {self.layers[index].name for index in self.stages[stage]} - {""}
        return [name for name in self.parts if any(f"{name}.".startswith(f"{layer}.") for layer in layers)]


def plan_of(network: nn.Module, example: Tensor, options: Options, sizes: Degrees) -> Plan:
    """Plan with the whole network, without changing it; it may be on the device `meta`.

    `example`: one input, [1, …]. Raises BadOptions if no layer can be split, if the wrap policy matches no part, and
    if the network can't be cut into stages.
    """
    splits = split_plan(network, sizes.tp) if sizes.tp > 1 else {}
    parts = list(parts_to_wrap(network, options.wrap)) if sizes.replicas > 1 else []
    if sizes.pp == 1:
        return Plan(splits=splits, parts=parts)
    layers = chain(network, example)
    stages = cut(layers, costs_of(network, layers, example), sizes.pp, splits)
    return Plan(splits=splits, parts=parts, layers=layers, stages=stages)
