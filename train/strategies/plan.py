"""Plan how a strategy divides a network, and where a pipeline cuts it. gpuctl shows the plan before a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d
from torch.utils.flop_counter import FlopCounterMode

from train.errors import BadOptions
from train.options import Options
from train.strategies.degrees import Degrees, best_cut
from train.strategies.tensor_parallel import split_plan
from train.strategies.wrapping import parts_to_wrap


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A step of a network's forward pass."""

    name: str
    """Name in the network; empty for a step without module and weights."""
    compute: Callable[[Tensor], Tensor]

    @property
    def weights(self) -> int:
        """The number of its weights."""
        module = self.compute
        return sum(p.numel() for p in module.parameters()) if isinstance(module, nn.Module) else 0


def chain(network: nn.Module, example: Tensor) -> list[Layer]:
    """Return the layers that together are the network, in order. The network does not change.

    Raises BadOptions for a network that is no chain of layers.
    """
    if type(network).forward is nn.Sequential.forward:
        return _layers(network)
    layers = _layers(network)
    last = next((at for at, layer in reversed(list(enumerate(layers))) if layer.weights), 0)
    linear = next((at for at, layer in enumerate(layers) if isinstance(layer.compute, nn.Linear)), last)
    # Steps without weights, as between images and classifier, are often no modules.
    between = [
        Layer(name="", compute=lambda value: value.flatten(1)),
        Layer(name="", compute=lambda value: adaptive_avg_pool2d(value, 1).flatten(1)),
    ]
    tries = ([*layers[:at], step, *layers[at:]] for step in between for at in sorted({linear, last}))
    working = next((row for row in (layers, *tries) if _same(network, row, example)), None)
    if working is None:
        raise BadOptions(
            f"A pipeline needs a network of layers that follow each other, and {type(network).__name__} is none: "
            "take another --model, or --strategy fsdp."
        )
    return working


def cut(
    layers: Sequence[Layer], costs: Sequence[float], stages: int, splits: Mapping[str, str]
) -> list[range]:
    """Return the layers of each stage: the most expensive stage is as cheap as possible, and each has weights.

    `splits`: pairs of layers that are split among ranks, and stay on one stage. Raises BadOptions if too few layers
    have weights.
    """
    # Units can't be cut: they are single layers, and split pairs with the layers between.
    begins, within = [], False
    for at, layer in enumerate(layers):
        if not within:
            begins.append(at)
        by = splits.get(layer.name)
        within = by == "columns" or (within and by != "rows")
    ends = [*begins[1:], len(layers)]
    units = [range(*of) for of in zip(begins, ends, strict=True)]
    of_units = best_cut(
        [sum(costs[at] for at in unit) for unit in units],
        [sum(layers[at].weights for at in unit) for unit in units],
        stages,
    )
    return [range(begins[unit.start], ends[unit.stop - 1]) for unit in of_units]


@torch.no_grad()
def costs_of(network: nn.Module, layers: Sequence[Layer], example: Tensor) -> list[float]:
    """Return each layer's floating-point operations for one sample, of products and convolutions only."""
    costs = []
    value = example
    with _evaluating(network):
        for layer in layers:
            with FlopCounterMode(display=False) as counter:
                value = layer.compute(value)
            costs.append(float(counter.get_total_flops()))
    return costs


def _layers(part: nn.Module, name: str = "") -> list[Layer]:
    """Return a network's children in order, with a sequence's children in its place."""
    layers = []
    for inner, child in part.named_modules(remove_duplicate=False):  # one that is there twice computes twice
        if not inner or "." in inner:
            continue
        full = f"{name}.{inner}".lstrip(".")
        plain = type(child).forward is nn.Sequential.forward
        layers += _layers(child, full) if plain else [Layer(name=full, compute=child)]
    return layers


@torch.no_grad()
def _same(network: nn.Module, layers: Sequence[Layer], example: Tensor) -> bool:
    try:
        with _evaluating(network):
            value = example
            for layer in layers:
                value = layer.compute(value)
            return torch.equal(value, network(example))
    except (RuntimeError, AssertionError):  # a layer can't use the output of the previous layer
        return False


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Keep running statistics as they are, and take a single sample."""
    was = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was)


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
