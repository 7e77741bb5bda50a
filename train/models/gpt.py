"""A decoder-only transformer of GPT-2's shape: normalised before each part, learned positions, GELU, no dropout.

It is an `nn.Sequential` from token ids [b, length] to logits [b, length, vocabulary], so that a pipeline can cut it
between any two of its parts. Linear layers are modules of their own, so that tensor parallelism can split them; how
many heads a rank has follows from the width that its own layers give.
"""

import math
import zlib
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, pad, scaled_dot_product_attention

from train.models.gpt_sizes import GPTSize, head_rows

STD = 0.02
"""Of random weights at the start, as in GPT-2."""
RESIDUAL_OUTPUTS = ("attention.output.weight", "mlp.down.weight")
"""Weights of a block that end in a residual addition."""
PADDED_ON = "cuda"
"""Kind of device on which the head is padded."""
TIED = {"head.weight": "embedding.token.weight"}
"""Names of one weight. A part of the model may have it by the first name alone."""


class Embedding(nn.Module):
    """A vector for each token and for its position."""

    def __init__(self, vocabulary: int, size: GPTSize) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, size.width)
        self.position = nn.Embedding(size.context, size.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed tokens [b, length] as [b, length, width]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: Tensor = self.token(tokens) + self.position(positions)
        return embedded


class Attention(nn.Module):
    """Causal self-attention: a token sees itself and the tokens before it."""

    by_columns = ("query", "key", "value")
    by_rows = ("output",)

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.parts = size.heads
        """Number of units that tensor parallelism can divide."""
        self.head_width = size.width // size.heads
        self.query = nn.Linear(size.width, size.width)
        self.key = nn.Linear(size.width, size.width)
        self.value = nn.Linear(size.width, size.width)
        self.output = nn.Linear(size.width, size.width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute [b, length, width] from the same."""
        query, key, value = (
            part(inputs).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        heads = scaled_dot_product_attention(query, key, value, is_causal=True)
        attended: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return attended


class MLP(nn.Module):
    """The feed-forward part: four times as wide in between."""

    by_columns = ("up",)
    by_rows = ("down",)

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.parts = 4 * size.width
        """Number of units that tensor parallelism can divide."""
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute [b, length, width] from the same."""
        computed: Tensor = self.down(gelu(self.up(inputs), approximate="tanh"))
        return computed


class Block(nn.Module):
    """Attention and feed-forward part, each with a residual connection."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.residual_std = STD / math.sqrt(2 * size.layers)
        """Of the weights in RESIDUAL_OUTPUTS at the start: many of them are added up."""
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention = Attention(size)
        self.mlp_norm = nn.LayerNorm(size.width)
        self.mlp = MLP(size)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute [b, length, width] from the same."""
        attended = inputs + self.attention(self.attention_norm(inputs))
        computed: Tensor = attended + self.mlp(self.mlp_norm(attended))
        return computed


class Head(nn.Linear):
    """The last layer: a score for each token of the vocabulary.

    In half precision on a GPU, the product has rows of zeros below the weight, and their scores are cut off. So these
    rows are in no loss, gradient, parameter or checkpoint. Compiled code writes them with the weight's copy.
    """

    def __init__(self, vocabulary: int, size: GPTSize) -> None:
        super().__init__(size.width, vocabulary, bias=False)
        self._added = head_rows(vocabulary) - vocabulary

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute logits [b, length, vocabulary] from [b, length, width]."""
        if not self._added or not gains_by_padding(inputs):
            return super().forward(inputs)
        return linear(inputs, pad(self.weight, (0, 0, 0, self._added)))[..., : self.out_features]


def gains_by_padding(inputs: Tensor) -> bool:
    """Return whether a product is faster with a multiple of 64 rows: in half precision on a GPU."""
    device, dtype = inputs.device.type, inputs.dtype
    if device != PADDED_ON:
        return False
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    return dtype in (torch.float16, torch.bfloat16)


class GPT(nn.Sequential):
    """`embedding`, `block0`, `block1`, …, `norm`, `head`, or some of them that follow each other.

    The head's weight is that of the tokens' embedding, where both are there.
    """

    def tie(self) -> None:
        """Make the head's weight and the embedding's one parameter."""
        embedding, head = getattr(self, "embedding", None), getattr(self, "head", None)
        if isinstance(embedding, Embedding) and isinstance(head, nn.Linear):
            head.weight = embedding.token.weight


def build_gpt(vocabulary: int, size: GPTSize, seed: int | None) -> GPT:
    """Build the model with the weights that follow from the seed; `None`: on the device `meta`, without weights."""
    with torch.device("meta"):
        model = assemble(vocabulary, size)
    if seed is not None:
        materialise(model, torch.device("cpu"), seed)
    return model


def assemble(vocabulary: int, size: GPTSize) -> GPT:
    """Build the model on the current device, with the weights that torch's modules begin with."""
    parts: dict[str, nn.Module] = {"embedding": Embedding(vocabulary, size)}
    parts |= {f"block{number}": Block(size) for number in range(size.layers)}
    parts["norm"] = nn.LayerNorm(size.width)
    parts["head"] = Head(vocabulary, size)
    model = GPT(OrderedDict(parts))
    model.tie()
    return model


def materialise(model: GPT, device: torch.device, seed: int) -> None:
    """Give a model that was built on the device `meta`, and may be sharded since, its weights on that device."""
    model.to_empty(device=device)
    model.tie()
    initialise(model, seed)


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Set the weights as GPT-2 does. They follow from the seed and each weight's name and shape alone.

    So every strategy begins with the same ones: `model` may be a GPT on any device, sharded or not, or some of its
    parts under their own names.
    """
    for name, parameter in model.named_parameters():
        part, _, inner = name.partition(".")
        block = getattr(model, part)
        if inner.endswith("bias"):
            parameter.zero_()
        elif parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            residual = isinstance(block, Block) and inner in RESIDUAL_OUTPUTS
            whole = _normal(name, parameter, block.residual_std if residual else STD, seed)
            if type(parameter.data) is not Tensor:  # this rank's part of a weight
                from torch.distributed.tensor import DTensor, distribute_tensor

                assert isinstance(parameter, DTensor)
                whole = distribute_tensor(
                    whole.to(parameter.device), parameter.device_mesh, parameter.placements
                )
            parameter.copy_(whole)


def _normal(name: str, parameter: Tensor, std: float, seed: int) -> Tensor:
    """Draw a whole weight on the CPU, whose numbers are the same on every machine."""
    # torch's generator on CPUs takes 32 bits.
    number = zlib.crc32(f"{seed} {TIED.get(name, name)}".encode())
    generator = torch.Generator().manual_seed(number)
    drawn = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
    return drawn.normal_(0.0, std, generator=generator).to(parameter.dtype)
