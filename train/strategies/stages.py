"""Cuts a network into the stages of a pipeline: which layers follow each other, and where to cut."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d
from torch.utils.flop_counter import FlopCounterMode

from train.errors import BadOptions
from train.strategies.balance import best_cut


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One step of a network's forward pass."""

    name: str
    """In the network; empty where it has no weights and no module."""
    compute: Callable[[Tensor], Tensor]

    @property
    def weights(self) -> int:
        """The number of its weights."""
        module = self.compute
        return sum(p.numel() for p in module.parameters()) if isinstance(module, nn.Module) else 0


def chain(network: nn.Module, example: Tensor) -> list[Layer]:
    """Return the layers that together are the network, from the first to the last. It stays as it is.

    Raises BadOptions for a network that is no chain of layers.
    """
    if type(network).forward is nn.Sequential.forward:
        return _layers(network)
    layers = _layers(network)
    last = next((at for at, layer in reversed(list(enumerate(layers))) if layer.weights), 0)
    linear = next((at for at, layer in enumerate(layers) if isinstance(layer.compute, nn.Linear)), last)
    # What has no weights is often no module: the way from images to the classifier.
    between = [Layer(name="", compute=one) for one in (_flatten, _pool)]
    tries = ([*layers[:at], one, *layers[at:]] for one in between for at in sorted({linear, last}))
    found = next((one for one in (layers, *tries) if _same(network, one, example)), None)
    if found is None:
        raise BadOptions(
            f"A pipeline needs a network of layers that follow each other, and {type(network).__name__} is none: "
            "take another --model, or --strategy fsdp."
        )
    return found


def cut(
    layers: Sequence[Layer], costs: Sequence[float], stages: int, splits: Mapping[str, str]
) -> list[range]:
    """Return the layers of each stage, so that the dearest stage costs least, and none is without weights.

    `splits`: pairs of layers that are split among ranks, and stay on one stage. Raises BadOptions where there are too
    few layers with weights.
    """
    begins = _units(layers, splits)
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
    """Return the floating-point operations of each layer for one sample; products and convolutions alone count."""
    found = []
    value = example
    with _evaluating(network):
        for layer in layers:
            with FlopCounterMode(display=False) as counter:
                value = layer.compute(value)
            found.append(float(counter.get_total_flops()))
    return found


def _units(layers: Sequence[Layer], splits: Mapping[str, str]) -> list[int]:
    """Return where the units begin that can't be cut: single layers, and pairs with what is between them."""
    found, within = [], False
    for at, layer in enumerate(layers):
        if not within:
            found.append(at)
        by = splits.get(layer.name)
        within = by == "columns" or (within and by != "rows")
    return found


def _layers(part: nn.Module, name: str = "") -> list[Layer]:
    """Return a network's children in their order; sequences among them as theirs."""
    found = []
    for inner, child in part.named_modules(remove_duplicate=False):  # one that is there twice computes twice
        if not inner or "." in inner:
            continue
        full = f"{name}.{inner}".lstrip(".")
        plain = type(child).forward is nn.Sequential.forward
        found += _layers(child, full) if plain else [Layer(name=full, compute=child)]
    return found


@torch.no_grad()
def _same(network: nn.Module, layers: Sequence[Layer], example: Tensor) -> bool:
    try:
        with _evaluating(network):
            value = example
            for layer in layers:
                value = layer.compute(value)
            return torch.equal(value, network(example))
    except (RuntimeError, AssertionError):  # a layer can't take what the one before has made
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


def _flatten(value: Tensor) -> Tensor:
    return value.flatten(1)


def _pool(value: Tensor) -> Tensor:
    return adaptive_avg_pool2d(value, 1).flatten(1)
