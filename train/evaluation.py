"""The metrics of images that are not trained on."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from train.batches.batch import Normalize
from train.batches.in_memory import evaluation_batches
from train.data.dataset import Images
from train.distributed.environment import DistributedEnvironment
from train.options import Precision
from train.reporting.metrics import MetricsManager
from train.train_step import autocast

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
    env: DistributedEnvironment,
    device: torch.device,
    precision: Precision,
    memory_format: torch.memory_format,
    batch_size: int,
) -> dict[str, float]:
    """Compute the metrics of the images over all ranks; every rank evaluates its part of them."""
    model.eval()
    if env.world_size > 1:
        for buffer in model.buffers():  # running statistics: rank 0's are those that are kept
            dist.broadcast(buffer, 0)
    batches = evaluation_batches(
        images, normalize, device, rank=env.rank, world_size=env.world_size, batch_size=batch_size
    )
    for batch, labels in batches:
        with autocast(precision, device):
            logits = model(batch.contiguous(memory_format=memory_format))
        metrics.update(logits, labels, cross_entropy(logits.double(), labels, reduction="sum"))
    return metrics.compute()
