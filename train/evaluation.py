"""The metrics of images that are not trained on."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from train.batches.batch import Normalize
from train.batches.in_memory import evaluation_batches
from train.data.dataset import Images
from train.options import Precision
from train.precision import autocast
from train.reporting.metrics import MetricsManager
from train.strategies.strategy import Strategy

MAX_IMAGES = 1024
MAX_NUMBERS = 2**20
"""Images, and numbers in them, in one forward pass of an evaluation."""


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    images: Images,
    metrics: MetricsManager,
    normalize: Normalize,
    *,
    strategy: Strategy,
    device: torch.device,
    precision: Precision,
    memory_format: torch.memory_format,
    batch_size: int,
) -> dict[str, float]:
    """Compute the metrics of the images over all ranks; every replica of the model evaluates its part of them."""
    model.eval()
    strategy.share_buffers(model)
    batches = evaluation_batches(
        images,
        normalize,
        device,
        rank=strategy.replica,
        world_size=strategy.sizes.replicas,
        batch_size=batch_size,
    )
    for batch, labels in batches:
        with autocast(precision, device):
            logits = strategy.forward(model, batch.contiguous(memory_format=memory_format))
        if logits is not None and strategy.counts:
            known = logits[: len(labels)]
            metrics.update(known, labels, cross_entropy(known.double(), labels, reduction="sum"))
    return metrics.compute()
