"""Evaluate a model on samples outside training."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from train.batches.batch import Prepare
from train.batches.in_memory import evaluation_batches
from train.data.dataset import Samples
from train.reporting.metrics import MetricsManager
from train.strategies.strategy import Strategy
from train.train_step import uncompiled

MAX_SAMPLES = 1024
MAX_NUMBERS = 2**20
"""Limits of an evaluation's forward pass: samples, and numbers of their inputs or of text's logits."""
MAX_LOGITS = 2**22
"""Numbers of logits whose loss is computed at once, in double precision."""

MAX_EXPONENT = 700.0
"""Largest exponent of e with a finite power."""


@torch.inference_mode()
@uncompiled()
def evaluate(
    model: nn.Module,
    samples: Samples,
    metrics: MetricsManager,
    prepare: Prepare,
    *,
    strategy: Strategy,
    device: torch.device,
    memory_format: torch.memory_format,
    batch_size: int,
) -> dict[str, float]:
    """Compute the metrics of the samples over all ranks; each replica of the model evaluates its share."""
    model.eval()
    strategy.share_buffers(model)
    batches = evaluation_batches(
        samples,
        prepare,
        device,
        rank=strategy.replica,
        world_size=strategy.sizes.replicas,
        batch_size=batch_size,
    )
    for batch, labels in batches:
        with strategy.autocast():
            logits = strategy.forward(model, batch.contiguous(memory_format=memory_format))
        if logits is not None and strategy.counts and len(labels):
            known = logits[: len(labels)]
            metrics.update(known, labels, _loss_sum(known, labels))
    return metrics.compute()


def perplexity(loss: float) -> float:
    """Return the number of equally likely tokens with that loss."""
    return math.inf if loss > MAX_EXPONENT else math.exp(loss)


def _loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the samples' losses; a sequence's loss is the mean over its tokens."""
    at_once = max(1, MAX_LOGITS // logits.shape[-1])
    of_labels = (torch.split(tensor, at_once) for tensor in (logits.flatten(0, -2), labels.flatten()))
    sums = [cross_entropy(part.double(), of, reduction="sum") for part, of in zip(*of_labels, strict=True)]
    return torch.stack(sums).sum() * (len(labels) / labels.numel())
