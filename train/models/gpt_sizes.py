"""The sizes of the text models. Imports nothing heavy: a sequence that is too long fails before anything starts."""

from collections.abc import Mapping
from dataclasses import dataclass

HEAD_ROWS = 64
"""The head computes with a multiple of 64 rows: products with 50,304 rows are faster on GPUs than with 50,257."""


def head_rows(vocabulary: int) -> int:
    """Return the rows of the matrix that the head computes with."""
    return vocabulary + -vocabulary % HEAD_ROWS


@dataclass(frozen=True, kw_only=True)
class GPTSize:
    """The shape of a decoder-only transformer."""

    layers: int
    width: int
    heads: int
    context: int
    """The most tokens that a sequence has."""
    lr: float
    """Learning rate of Adam that such a model is trained with, where the options say nothing."""

    @property
    def weights_per_layer(self) -> int:
        """Weights of the matrices of a block: attention's four, and the two of the feed-forward part."""
        return 12 * self.width * self.width

    def flops_per_token(self, vocabulary: int, length: int) -> float:
        """Return the operations of forward and backward pass for a token in a sequence of that length.

        Two for each weight of a matrix and each pair of attention, and twice as many in the backward pass. A token
        is paired with all others of the sequence, as is usual when such numbers are compared.
        """
        matrices = self.layers * self.weights_per_layer + vocabulary * self.width
        return 6.0 * matrices + 12.0 * self.layers * self.width * length


GPT_SIZES: Mapping[str, GPTSize] = {
    "gpt-10m": GPTSize(layers=6, width=384, heads=6, context=1024, lr=1e-3),
    "gpt-124m": GPTSize(layers=12, width=768, heads=12, context=1024, lr=6e-4),
    "gpt-350m": GPTSize(layers=24, width=1024, heads=16, context=1024, lr=3e-4),
    "gpt-1b": GPTSize(layers=24, width=2048, heads=16, context=2048, lr=2e-4),
    "gpt-7b": GPTSize(layers=32, width=4096, heads=32, context=2048, lr=1.2e-4),
}
"""Shapes of GPT-2 (124m, 350m) and GPT-3 (1b, 7b); the numbers in the names are with GPT-2's 50,257 tokens."""
