"""The layers of an image network, as torch counts them on tensors without memory. Needs torch.

The memory that such a network needs for its backward pass does not follow from a few sizes. One sample is computed
only if a pipeline asks whether the network is a chain of layers.
"""

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from train.advice.network import HALF, Layer, Network, computed_bytes, number_bytes
from train.advice.passes import FEWER, MORE, Counted, Pass, Share, both_passes, take_memory_away
from train.errors import BadOptions
from train.models.networks import build_model
from train.options import Options
from train.strategies.plan import Layer as Step
from train.strategies.plan import chain
from train.strategies.recompute import recompute_blocks
from train.strategies.tensor_parallel import split_plan
from train.strategies.wrapping import parts_to_wrap, repeated_blocks


def image_network(options: Options, shape: tuple[int, int, int], classes: int, *, pipelines: bool) -> Network:
    """Measure the network that the options name. Raises BadOptions and BadEnvironment as the job does.

    `pipelines`: whether stages are asked about, for which the network has to be cut into layers.
    """
    warnings.simplefilter("ignore")
    network = _built(options, shape, classes, on_meta=not pipelines)
    layers, uncut = _chain(network, shape) if pipelines else (None, None)
    splits, unsplit = _splits(network)
    wrapped = parts_to_wrap(network, options.wrap)
    steps = layers or [Step(name="", compute=network)]
    with FakeTensorMode():
        take_memory_away(network, double=options.precision == "fp64")
        smaller, more = _passes(network, steps, splits, options, shape)
    weights = _own_weights(network, wrapped)
    columns = (network.get_submodule(name) for name, by in splits.items() if by == "columns")
    flops = Share.of(smaller.flops, more.flops).per(Share.of(smaller.forward_flops, more.forward_flops))
    moved = Share.of(smaller.moved, more.moved).per(Share.of(smaller.forward_moved, more.forward_moved))
    launches = more.launches / more.forward_launches
    forward = (
        _layer(network, step, of_few, of_more, splits, weights, options)
        for step, of_few, of_more in zip(steps, smaller.steps, more.steps, strict=True)
    )
    return Network(
        # A layer's part of the backward pass is that of the forward pass.
        layers=[
            replace(
                layer,
                flops=layer.flops * flops.each,
                split_flops=min(layer.split_flops, layer.flops * flops.each),
                moved_bytes=layer.moved_bytes * moved.each,
                moved_once_bytes=layer.moved_once_bytes * moved.once,
                launches=layer.launches * launches,
            )
            for layer in forward
        ],
        largest_weight=max(p.numel() for p in network.parameters()),
        unwrapped_weights=weights.get("", 0),
        output_bytes=classes * 3 * number_bytes(options.precision),
        # The largest number that divides the columns of all layers that can be split.
        heads=math.gcd(*(layer.out_features for layer in columns if isinstance(layer, nn.Linear))) or None,
        unsplit=unsplit,
        uncut=uncut,
    )


def _passes(
    network: nn.Module,
    steps: Sequence[Step],
    splits: Mapping[str, str],
    options: Options,
    shape: tuple[int, ...],
) -> tuple[Pass, Pass]:
    """Return both passes, for fewer and for more samples, with the bytes retained if blocks compute twice.

    The time of the second computation is added with the times: operations are always of a single computation.
    """
    again = options.activation_checkpointing
    blocks = list(repeated_blocks(network)) if again else []
    smaller, more = (
        both_passes(network, steps, splits, options, shape, number, blocks) for number in (FEWER, MORE)
    )
    if not again:
        return smaller, more
    recompute_blocks(network)
    kept_few, kept_more = (
        both_passes(network, steps, splits, options, shape, number) for number in (FEWER, MORE)
    )
    return smaller.keeping(kept_few), more.keeping(kept_more)


def _built(options: Options, shape: tuple[int, ...], classes: int, *, on_meta: bool) -> nn.Module:
    """Build the network, without weights where it can be built so."""
    if on_meta:
        try:
            with torch.device("meta"):
                return build_model(options, shape, classes)
        except NotImplementedError:  # it computes something of its sizes with tensors
            pass
    return build_model(options, shape, classes)


def _chain(network: nn.Module, shape: tuple[int, ...]) -> tuple[Sequence[Step] | None, str | None]:
    """Return the layers that a pipeline cuts between, or the job's reason why it can't."""
    try:
        return chain(network, torch.zeros(1, *shape)), None
    except BadOptions as error:
        return None, str(error)


def _splits(network: nn.Module) -> tuple[Mapping[str, str], str | None]:
    """Return the kind of split of each layer that can be split, or the job's reason against splits."""
    try:
        return split_plan(network, 1), None
    except BadOptions as error:
        return {}, str(error).replace("--tp 1", "--tp")


def _own_weights(network: nn.Module, wrapped: Collection[str]) -> dict[str, int]:
    """Return the weights gathered with each separately sharded part; "": with the whole network."""
    weights: dict[str, int] = {}
    for name, weight in network.named_parameters():
        holders = [part for part in wrapped if name.startswith(f"{part}.")]
        holder = max(holders, key=len, default="")
        weights[holder] = weights.get(holder, 0) + weight.numel()
    return weights


def _layer(
    network: nn.Module,
    step: Step,
    smaller: Counted,
    more: Counted,
    splits: Mapping[str, str],
    weights: Mapping[str, int],
    options: Options,
) -> Layer:
    """Return a step of the network as a layer: costs of a sample's forward pass, and costs of a step."""
    saved, split_saved, moved, flops, passed = (
        Share.of(getattr(smaller, name), getattr(more, name))
        for name in ("saved", "split_saved", "moved", "flops", "passed")
    )
    computed = computed_bytes(options.precision)
    layers = {
        name: layer for name in smaller.rows if isinstance(layer := network.get_submodule(name), nn.Linear)
    }
    rows = {name: Share.of(smaller.rows[name], more.rows[name]).each for name in layers}
    split = sum(_split_numbers(layer, splits[name]) for name, layer in layers.items())
    # The network's first layer computes no gradient of the samples.
    split_flops = sum(6.0 * layer.weight.numel() * rows[name] for name, layer in layers.items())
    again = [f"{name}." for name in smaller.blocks]
    copied = [name for name in layers if not name.startswith(tuple(again))]
    return Layer(
        weights=step.weights,
        split_weights=split,
        copied_weights=int(saved.once / HALF) if computed == HALF else 0,
        split_copied_weights=_matrices(layers, copied) if computed == HALF else 0,
        flops=flops.each,
        split_flops=split_flops,
        saved_bytes=saved.each,
        split_saved_bytes=split_saved.each,
        # Of each pair: what its second layer makes, and the gradient of what its first one got.
        reduced_bytes=computed
        * sum(rows[name] * layer.weight.shape[splits[name] == "columns"] for name, layer in layers.items()),
        largest_part=max((size for name, size in weights.items() if _together(name, step.name)), default=0),
        passed_bytes=passed.each,
        moved_bytes=moved.each,
        moved_once_bytes=moved.once,
        launches=more.launches,
        block=_largest_block(smaller, more, layers, computed) if smaller.blocks else None,
    )


def _largest_block(smaller: Counted, more: Counted, layers: Mapping[str, nn.Linear], computed: int) -> Layer:
    """Return the momentary memory of a block that computes again: of the block that saves most.

    The enclosing layer retains nothing of the block, so it has no blocks to subtract.
    """
    name = max(more.blocks, key=lambda name: more.blocks[name].saved)
    saved, split_saved = (
        Share.of(getattr(smaller.blocks[name], field), getattr(more.blocks[name], field))
        for field in ("saved", "split_saved")
    )
    inside = [layer for layer in layers if layer.startswith(f"{name}.")]
    return Layer(
        weights=0,
        copied_weights=int(saved.once / HALF) if computed == HALF else 0,
        split_copied_weights=_matrices(layers, inside) if computed == HALF else 0,
        saved_bytes=saved.each,
        split_saved_bytes=split_saved.each,
    )


def _matrices(layers: Mapping[str, nn.Linear], names: Collection[str]) -> int:
    return sum(layers[name].weight.numel() for name in names)


def _together(part: str, step: str) -> bool:
    """Return whether one is in the other; the whole network, which has no name, is no part."""
    return bool(part) and (f"{part}.".startswith(f"{step}.".lstrip(".")) or f"{step}.".startswith(f"{part}."))


def _split_numbers(layer: nn.Linear, by: str) -> int:
    """Return the numbers of a layer that are divided: the bias of one that is split by rows is whole."""
    return layer.weight.numel() + (layer.out_features if by == "columns" and layer.bias is not None else 0)
