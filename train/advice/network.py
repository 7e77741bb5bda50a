"""What a network is made of, as far as memory and time go. Pure, without torch.

A text model follows from its sizes. Bytes that a layer saves for the backward pass are those that torch's autograd
keeps: a test compares them with torch's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from train.models.gpt_sizes import GPTSize
from train.options import Precision

WHOLE, HALF, DOUBLE = 4, 2, 8
"""Bytes of a number of single, half and double precision."""


def number_bytes(precision: Precision) -> int:
    """Return the bytes of a weight, a gradient, or a value of the optimizer's state."""
    return DOUBLE if precision == "fp64" else WHOLE


def computed_bytes(precision: Precision) -> int:
    """Return the bytes of what a linear layer computes."""
    return HALF if precision in ("bf16", "fp16") else number_bytes(precision)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Some of a network that is always on one stage of a pipeline. What tensor parallelism splits is told apart."""

    weights: int
    split_weights: int = 0
    """Those among them that tensor parallelism splits."""
    copied_weights: int = 0
    """Those that autocast keeps a copy of in half precision, beside them."""
    split_copied_weights: int = 0
    flops: float = 0.0
    """Operations of both passes for one sample."""
    split_flops: float = 0.0
    saved_bytes: float = 0.0
    """Kept for the backward pass, of one sample."""
    split_saved_bytes: float = 0.0
    reduced_bytes: float = 0.0
    """Of one sample's results that a tensor-parallel group has to add up, in both passes."""
    largest_part: int = 0
    """The most weights of a part of it that is sharded by itself."""

    def of_rank(self, tp: int) -> "Layer":
        """Return a rank's part, where `tp` ranks split it."""
        return Layer(
            weights=self.weights - self.split_weights + self.split_weights // tp,
            copied_weights=self.copied_weights - self.split_copied_weights + self.split_copied_weights // tp,
            flops=self.flops - self.split_flops + self.split_flops / tp,
            saved_bytes=self.saved_bytes - self.split_saved_bytes + self.split_saved_bytes / tp,
            reduced_bytes=self.reduced_bytes if tp > 1 else 0.0,
            largest_part=self.largest_part,
        )


def joined(layers: Sequence[Layer]) -> Layer:
    """Return layers as one."""
    sums = {name: sum(getattr(layer, name) for layer in layers) for name in Layer.__dataclass_fields__}
    return Layer(**{**sums, "largest_part": max(layer.largest_part for layer in layers)})


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """The layers of a network in their order."""

    layers: Sequence[Layer]
    tied_weights: int = 0
    """Weights that the last layer shares with the first one; a stage of its own has a copy of them."""
    largest_weight: int = 0
    """Of the tensors that are weights, the numbers in the largest one."""
    unwrapped_weights: int = 0
    """Weights that are gathered with the whole network, and not with a part of it."""
    passed_bytes: float = 0.0
    """Of one sample, from one stage of a pipeline to the next."""
    output_bytes: float = 0.0
    """Of one sample's outputs: themselves, with what the loss keeps and its gradient."""
    tokens: int = 1
    """In a sample; 1 where samples are images."""
    heads: int | None = None
    """What tensor parallelism can divide a layer into. None: no layer can be split."""

    @property
    def weights(self) -> int:
        """The weights of all layers."""
        return sum(layer.weights for layer in self.layers)

    @property
    def flops(self) -> float:
        """Operations of both passes for one sample."""
        return sum(layer.flops for layer in self.layers)


def text_network(
    size: GPTSize, *, vocabulary: int, length: int, precision: Precision, by_blocks: bool
) -> Network:
    """Return a text model's layers: the embedding, the blocks, and the head with the norm before it.

    `by_blocks`: whole blocks are sharded by themselves, not single matrices.
    """
    width = size.width
    block = _block(size, length, precision, by_blocks=by_blocks)
    head_flops = size.flops_per_token(vocabulary, length) - size.flops_per_token(0, length)
    embedding = Layer(weights=(vocabulary + size.context) * width, saved_bytes=8 * length)
    head = Layer(
        weights=2 * width,
        copied_weights=vocabulary * width if computed_bytes(precision) == HALF else 0,
        flops=head_flops * length,
        saved_bytes=length * width * (number_bytes(precision) + computed_bytes(precision)),
    )
    return Network(
        layers=(embedding, *[block] * size.layers, head),
        tied_weights=vocabulary * width,
        largest_weight=max(vocabulary, 4 * width) * width,
        unwrapped_weights=embedding.weights,
        passed_bytes=length * width * number_bytes(precision),
        output_bytes=length * vocabulary * 3 * number_bytes(precision),
        tokens=length,
        heads=size.heads,
    )


def _block(size: GPTSize, length: int, precision: Precision, *, by_blocks: bool) -> Layer:
    """Return a block: 12 width² weights of matrices, their biases (9 width) and two norms (4 width).

    Saved, in widths a token: the inputs of both norms in whole precision; computed ones: the norms' results (with
    autocast three copies of the first: query, key and value are computed from one each), query, key, value and what
    attention makes of them (its memory is linear: no matrix of length x length is kept), and 4 + 4 of the
    feed-forward part. This is the count of Korthikanti et al., "Reducing Activation Recomputation in Large
    Transformer Models" (2022), without dropout and attention's matrix, for the precision of each tensor here.
    """
    width, whole, computed = size.width, number_bytes(precision), computed_bytes(precision)
    copies = 3 if computed == HALF else 1
    split = (4 + 8) * computed * width + WHOLE * size.heads
    kept = (2 * whole + (copies + 1) * computed) * width + 4 * whole
    matrices = size.weights_per_layer
    flops = (size.flops_per_token(0, length) / size.layers) * length
    return Layer(
        weights=matrices + 13 * width,
        split_weights=matrices + 7 * width,  # biases of rows, and the norms, are whole
        copied_weights=matrices if computed == HALF else 0,
        split_copied_weights=matrices if computed == HALF else 0,
        flops=flops,
        split_flops=flops,
        saved_bytes=length * (split + kept),
        split_saved_bytes=length * split,
        # Forward: two results. Backward: the gradients of what query, key, value and the first of the pair got.
        reduced_bytes=6 * length * width * computed,
        largest_part=matrices + 13 * width if by_blocks else 4 * width * width,
    )
