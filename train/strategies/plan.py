"""How a strategy divides a network: what the ranks do, and what is told of it before there are any."""

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
    """Of a whole network; parts and layers by their names in it."""

    splits: Mapping[str, str]
    """By what each layer is split among the ranks of `tp`: `columns` or `rows`."""
    parts: Sequence[str]
    """The parts that are sharded by themselves, each before what it is in."""
    layers: Sequence[Layer] = ()
    """Those that follow each other. Without a pipeline they are not looked for."""
    stages: Sequence[range] = ()
    """Which of the layers each stage has."""

    def parts_of(self, stage: int) -> list[str]:
        """Return the parts that are on a stage: it calls its layers, and not the sequences that they are in."""
        if not self.stages:
            return list(self.parts)
        own = {self.layers[index].name for index in self.stages[stage]} - {""}
        return [name for name in self.parts if any(f"{name}.".startswith(f"{one}.") for one in own)]


def plan_of(network: nn.Module, example: Tensor, options: Options, sizes: Degrees) -> Plan:
    """Plan with the whole network, which stays as it is; it may be on the device `meta`.

    `example`: [1, …], one of what it takes. Raises BadOptions where no layer can be split, for a policy that names no
    part, and for a network that can't be cut so.
    """
    splits = split_plan(network, sizes.tp) if sizes.tp > 1 else {}
    parts = list(parts_to_wrap(network, options.wrap)) if sizes.replicas > 1 else []
    if sizes.pp == 1:
        return Plan(splits=splits, parts=parts)
    layers = chain(network, example)
    stages = cut(layers, costs_of(network, layers, example), sizes.pp, splits)
    return Plan(splits=splits, parts=parts, layers=layers, stages=stages)
