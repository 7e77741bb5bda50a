"""Describe a network's layers by memory and time. Pure, without torch.

A text model follows from its sizes. A layer's saved bytes are the bytes that torch's autograd retains, as a test
checks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from train.models.gpt_sizes import GPTSize, head_rows
from train.options import Precision

WHOLE, HALF, DOUBLE = 4, 2, 8
"""Bytes of a number of single, half and double precision."""


def number_bytes(precision: Precision) -> int:
    """Return the bytes of a weight, a gradient, or a value of the optimizer's state."""
    return DOUBLE if precision == "fp64" else WHOLE


def computed_bytes(precision: Precision) -> int:
    """Return the bytes of a number that a linear layer computes."""
    return HALF if precision in ("bf16", "fp16") else number_bytes(precision)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Layers that are always on one stage of a pipeline. Numbers that tensor parallelism splits are separate."""

    weights: int
    split_weights: int = 0
    """Weights among `weights` that tensor parallelism splits."""
    copied_weights: int = 0
    """Weights of which autocast has another copy in half precision."""
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
    """Weights of the largest separately sharded part."""
    input_bytes: float = 0.0
    """Of one sample, what goes into it."""
    blocks: int = 0
    """The repeated blocks among it, which are alike."""
    block: "Layer | None" = None
    """One of them. Without any, what computes again in a layer that is measured with its blocks computing again."""
    passed_bytes: float = 0.0
    """Of one sample's results, which the next stage of a pipeline gets."""
    moved_bytes: float = 0.0
    """Read from the GPU's memory and written to it for one sample, in both passes."""
    split_moved_bytes: float = 0.0
    moved_once_bytes: float = 0.0
    """The same for each micro-batch, however large it is."""
    launches: float = 0.0
    """Kernels of both passes of a micro-batch: an operation has one for each tensor that it writes."""

    def of_rank(self, tp: int) -> "Layer":
        """Return a rank's part, where `tp` ranks split it."""
        return Layer(
            weights=self.weights - self.split_weights + self.split_weights // tp,
            copied_weights=self.copied_weights - self.split_copied_weights + self.split_copied_weights // tp,
            flops=self.flops - self.split_flops + self.split_flops / tp,
            saved_bytes=self.saved_bytes - self.split_saved_bytes + self.split_saved_bytes / tp,
            reduced_bytes=self.reduced_bytes if tp > 1 else 0.0,
            largest_part=self.largest_part,
            passed_bytes=self.passed_bytes,
            moved_bytes=self.moved_bytes - self.split_moved_bytes + self.split_moved_bytes / tp,
            moved_once_bytes=self.moved_once_bytes,
            launches=self.launches,
            input_bytes=self.input_bytes,
            blocks=self.blocks,
            block=None if self.block is None else self.block.of_rank(tp),
        )

    def recomputed(self) -> "Layer":
        """Return the layer if blocks retain their inputs only, and compute again."""
        if self.block is None:
            return self
        return replace(
            self,
            saved_bytes=self.saved_bytes - self.blocks * (self.block.saved_bytes - self.block.input_bytes),
            copied_weights=self.copied_weights - self.blocks * self.block.copied_weights,
        )


def joined(layers: Sequence[Layer]) -> Layer:
    """Return layers as one."""
    names = Layer.__dataclass_fields__.keys() - {"largest_part", "passed_bytes", "block"}
    return Layer(
        **{name: sum(getattr(layer, name) for layer in layers) for name in names},
        largest_part=max(layer.largest_part for layer in layers),
        passed_bytes=layers[-1].passed_bytes,
        # Blocks compute again one after the other: the largest needs most.
        block=max(
            (layer.block for layer in layers if layer.block),
            key=lambda block: block.saved_bytes,
            default=None,
        ),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """The layers of a network in their order."""

    layers: Sequence[Layer]
    tied_weights: int = 0
    """Weights that the last layer shares with the first one; a stage of its own has a copy of them."""
    largest_weight: int = 0
    """Of the tensors that are weights, the numbers in the largest one."""
    unwrapped_weights: int = 0
    """Weights that are gathered with the whole network."""
    output_bytes: float = 0.0
    """Bytes of one sample's outputs, with the loss's own tensors and their gradient."""
    tokens: int = 1
    """In a sample; 1 where samples are images."""
    heads: int | None = None
    """Number of units of a layer that tensor parallelism can divide. `None`: no layer can be split."""
    in_half: "Network | None" = None
    """The same network computing wholly in half precision. `None`: impossible, or not requested."""
    unsplit: str | None = None
    """Why no layer can be split."""
    uncut: str | None = None
    """Why it can't be cut into the stages of a pipeline."""

    @property
    def of_images(self) -> bool:
        """True: samples are images."""
        return self.tokens == 1

    @property
    def weights(self) -> int:
        """The weights of all layers."""
        return sum(layer.weights for layer in self.layers)

    @property
    def flops(self) -> float:
        """Operations of both passes for one sample."""
        return sum(layer.flops for layer in self.layers)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes that a part of a text model reads and writes in both passes, and its kernels."""

    products: float
    """Bytes of a token that products of matrices and attention read and write."""
    other: float
    """Bytes of a token that all other operations read and write."""
    product_launches: int
    other_launches: int
    product_once: float
    """Bytes of the weights in products, for each micro-batch."""
    other_once: float = 0.0

    def of_layer(self, layer: Layer, length: int, *, compiled: bool) -> Layer:
        """Return the layer with its bytes for a sample of `length` tokens, and its kernels.

        Compiled code has one kernel for all operations between two products: see `train.advice.passes`.
        """
        moved = 2 * self.products if compiled else self.products + self.other
        return replace(
            layer,
            moved_bytes=length * moved,
            split_moved_bytes=length * moved * layer.split_flops / (layer.flops or 1.0),
            moved_once_bytes=2 * self.product_once if compiled else self.product_once + self.other_once,
            launches=2 * self.product_launches if compiled else self.product_launches + self.other_launches,
        )


def text_network(
    size: GPTSize,
    *,
    vocabulary: int,
    length: int,
    precision: Precision,
    by_blocks: bool,
    compiled: bool = False,
) -> Network:
    """Return a text model's layers: the embedding, the blocks, and the head with the norm before it.

    `by_blocks`: whole blocks are sharded, not single matrices.
    """
    whole, computed = number_bytes(precision), computed_bytes(precision)
    build = partial(_text_network, size, vocabulary, length, by_blocks=by_blocks, compiled=compiled)
    return replace(build(whole, computed), in_half=build(HALF, HALF) if precision == "bf16" else None)


def _text_network(
    size: GPTSize, vocabulary: int, length: int, whole: int, computed: int, *, by_blocks: bool, compiled: bool
) -> Network:
    """`whole`: bytes of a number between the layers; `computed`: of what linear layers compute."""
    width = size.width
    rows = head_rows(vocabulary) if computed == HALF else vocabulary
    block_layer = _moved_by_block(size, whole, computed).of_layer(
        _block(size, length, whole, computed, by_blocks=by_blocks), length, compiled=compiled
    )
    block = replace(block_layer, blocks=1, block=block_layer)
    head_flops = size.flops_per_token(vocabulary, length) - size.flops_per_token(0, length)
    passed = length * width * whole
    embedding = Layer(
        weights=(vocabulary + size.context) * width,
        saved_bytes=8 * length,
        passed_bytes=passed,
        # Both rows of weights, their sum, and its gradient. Gradients begin as zeros, and the head's are added.
        moved_bytes=length * 6 * whole * width,
        moved_once_bytes=whole * (4 * vocabulary + size.context) * width,
        launches=8,
    )
    head = Layer(
        weights=2 * width,
        copied_weights=rows * width if computed < whole or rows > vocabulary else 0,
        flops=head_flops * length,
        saved_bytes=length * width * (whole + computed),
    )
    return Network(
        layers=(
            embedding,
            *[block] * size.layers,
            _moved_by_head(size, vocabulary, whole, computed).of_layer(head, length, compiled=compiled),
        ),
        tied_weights=vocabulary * width,
        largest_weight=max(vocabulary, 4 * width) * width,
        unwrapped_weights=embedding.weights,
        # The loss has logits, logarithms and a gradient in single precision at least; compiled, it has logits, their
        # gradient and a padded copy as the head computes them.
        output_bytes=length * vocabulary * 3 * (computed if compiled else max(whole, WHOLE)),
        tokens=length,
        heads=size.heads,
    )


def _block(size: GPTSize, length: int, whole: int, computed: int, *, by_blocks: bool) -> Layer:
    """Return a block: 12 width² weights of matrices, their biases (9 width) and two norms (4 width).

    Saved, in widths a token: the inputs of both norms, whole; computed ones: the norms' results (with autocast three
    copies of the first: query, key and value are computed from one each), query, key, value and what attention makes
    of them (its memory is linear: no matrix of length x length is kept), and 4 + 4 of the feed-forward part.
    `whole` and `computed` are the bytes of a number. This is the count of Korthikanti et al., "Reducing Activation
    Recomputation in Large Transformer Models" (2022), without dropout and attention's matrix, for the precision of
    each tensor here.
    """
    width, autocast = size.width, computed < whole
    copies = 3 if autocast else 1
    split = (4 + 8) * computed * width + WHOLE * size.heads
    retained = (2 * whole + (copies + 1) * computed) * width + 4 * whole
    matrices = size.weights_per_layer
    flops = (size.flops_per_token(0, length) / size.layers) * length
    return Layer(
        weights=matrices + 13 * width,
        split_weights=matrices + 7 * width,  # biases of rows, and the norms, are whole
        copied_weights=matrices if autocast else 0,
        split_copied_weights=matrices if autocast else 0,
        flops=flops,
        split_flops=flops,
        saved_bytes=length * (split + retained),
        split_saved_bytes=length * split,
        # Forward: two results. Backward: the gradients of what query, key, value and the first of the pair got.
        reduced_bytes=6 * length * width * computed,
        largest_part=matrices + 13 * width if by_blocks else 4 * width * width,
        input_bytes=length * whole * width,
        passed_bytes=length * width * whole,
    )


def _moved_by_block(size: GPTSize, whole: int, computed: int) -> Traffic:
    """Return the traffic of a block, in widths a token, of `whole` and `computed` bytes a number.

    Products: six matrices, four of width x width and two of four times that, each have their inputs and results
    once in the forward pass and twice in the backward pass; attention has 4, then 8. All else: norms (10 whole) and
    sums (16 whole, 2 computed), GELU (20 computed), gradients of biases (9 computed). autocast copies inputs (4) and
    all weights, and their gradients back (6).
    """
    width, matrices = size.width, size.weights_per_layer
    autocast = computed < whole
    return Traffic(
        products=(3 * (4 * 2 + 2 * 5) + 12) * computed * width,
        other=(26 * whole + 31 * computed + (10 * (whole + computed) if autocast else 0)) * width,
        product_launches=3 * 6 + 5,
        other_launches=26 + (34 if autocast else 0),
        product_once=3 * matrices * computed,
        other_once=2 * matrices * (whole + computed) if autocast else 0.0,
    )


def _moved_by_head(size: GPTSize, vocabulary: int, whole: int, computed: int) -> Traffic:
    """Return the traffic of the last norm, the head and the loss: logits are read and written again and again.

    The loss has them in single precision at least. It takes their logarithms (2), writes a gradient (1), and goes
    back through the logarithms (3). In half precision they are copied, and their gradient back (2).
    """
    width, weights, of_loss = size.width, vocabulary * size.width, max(whole, WHOLE)
    autocast, copied = computed < whole, computed < of_loss
    of_logits = 6 * of_loss + (2 * (of_loss + computed) if copied else 0)
    of_norm = 5 * whole + (2 * (whole + computed) if autocast else 0)
    return Traffic(
        products=3 * (width + vocabulary) * computed,
        other=vocabulary * of_logits + width * of_norm,
        product_launches=3,
        other_launches=14 + (2 if copied else 0) + (4 if autocast else 0),
        product_once=3 * weights * computed,
        other_once=2 * weights * (whole + computed) if autocast else 0.0,
    )
