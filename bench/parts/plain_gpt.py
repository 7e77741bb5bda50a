"""The plainest training loop of a GPT with nanoGPT's settings, which the built-in job's steps are compared with.

Written from nanoGPT's published description: the sizes of GPT-2 124M without biases and dropout, a vocabulary of
50,304, bf16 by autocast, the whole model compiled, fused AdamW with betas 0.9 and 0.95. The tokens are random.
`MINIATURE` shows on a CPU that the loop works, no more.
"""

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

WARM_UP = 10
"""Steps after the first one that do not count."""


@dataclass(frozen=True, kw_only=True)
class GPTSettings:
    """The sizes of the model and of its batches."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50_304
    length: int = 1024
    batch: int = 12
    compiled: bool = True


MINIATURE = GPTSettings(layers=2, width=32, heads=2, vocabulary=128, length=16, batch=2, compiled=False)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The mean time of the steps."""

    ms_per_step: float
    tokens_per_s: float
    first_step_s: float
    """With compiling."""
    steps: int
    loss: float
    """Of the last step."""
    memory_gb: float | None
    """The most that was allocated. `None`: on a CPU."""


class PlainGPT(nn.Module):
    """GPT-2's network, with its loss."""

    def __init__(self, settings: GPTSettings) -> None:
        super().__init__()
        self.tokens = nn.Embedding(settings.vocabulary, settings.width)
        self.positions = nn.Embedding(settings.length, settings.width)
        self.blocks = nn.ModuleList(PlainBlock(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(settings.width, bias=False)
        self.head = nn.Linear(settings.width, settings.vocabulary, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                residual = name.endswith(("output.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (math.sqrt(2 * settings.layers) if residual else 1))
        self.head.weight = self.tokens.weight

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of tokens [b, length], and the mean loss."""
        hidden = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten())


class PlainBlock(nn.Module):
    """Attention, whose query, key and value are one product, and the feed-forward part."""

    def __init__(self, settings: GPTSettings) -> None:
        super().__init__()
        width = settings.width
        self.heads = settings.heads
        self.attention_norm, self.mlp_norm = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv, self.output = (nn.Linear(width, parts * width, bias=False) for parts in (3, 1))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute [b, length, width] from the same."""
        products = self.qkv(self.attention_norm(hidden)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in products)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.output(attended.transpose(1, 2).flatten(2))
        return hidden + self.down(gelu(self.up(self.mlp_norm(hidden))))


def plain_gpt_speed(
    device: torch.device, *, steps: int = 20, until: float = math.inf, settings: GPTSettings = GPTSettings()
) -> Speed:
    """Train on random tokens: a first step, WARM_UP others, and `steps` that are timed together.

    `until`: monotonic; later than that no step begins, but one is always timed. TF32 is allowed, as nanoGPT has it,
    and the former setting returns at the end.
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return _speed(device, steps, until, settings)
    finally:
        torch.set_float32_matmul_precision(precision)


def _speed(device: torch.device, steps: int, until: float, settings: GPTSettings) -> Speed:
    torch.manual_seed(0)
    on_gpu = device.type == "cuda"
    network = PlainGPT(settings).to(device)
    model = torch.compile(network) if settings.compiled else network
    weights = list(network.parameters())
    groups = [
        {"params": [p for p in weights if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in weights if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)
    shape = (settings.batch, settings.length)
    inputs, targets = (torch.randint(settings.vocabulary, shape, device=device) for _ in range(2))
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)

    def step() -> Tensor:
        """Take a step, and return the loss, on the device."""
        with torch.autocast(device.type, torch.bfloat16):
            _, loss = model(inputs, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    def synchronize() -> float:
        """Wait for the device, and return the time."""
        if on_gpu:
            torch.cuda.synchronize(device)
        return time.perf_counter()

    began = synchronize()
    loss = step()
    first_step_s = synchronize() - began
    for _ in range(WARM_UP):
        if time.monotonic() > until:
            break
        loss = step()
    began, step_count = synchronize(), 0
    while step_count == 0 or (step_count < steps and time.monotonic() < until):
        loss, step_count = step(), step_count + 1
    seconds = (synchronize() - began) / step_count
    return Speed(
        ms_per_step=seconds * 1e3,
        tokens_per_s=math.prod(shape) / seconds,
        first_step_s=first_step_s,
        steps=step_count,
        loss=float(loss.item()),
        memory_gb=torch.cuda.max_memory_allocated(device) / 1e9 if on_gpu else None,
    )
