"""Assign an epoch's samples to ranks, in an order.

The assignment depends only on the seed, the epoch and the sample's number: not on the number of ranks, nor on where
an interrupted epoch resumes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from train.batches.augmentation import Augmentations, draw_augmentations
from train.options import Augmentation


@dataclass(frozen=True, kw_only=True)
class RankSampler:
    """Chooses the samples of one rank, and how they are augmented."""

    seed: int
    rank: int
    world_size: int
    augmentation: Augmentation

    def indices(self, count: int, epoch: int, begin: int) -> Tensor:
        """Return the rank's samples of an epoch, in order, from position `begin` on."""
        order = epoch_order(count, seed=self.seed, epoch=epoch)
        return shard(order, rank=self.rank, world_size=self.world_size, begin=begin)

    def augmentations(self, count: int, epoch: int) -> Augmentations:
        """Draw the augmentation of every sample in an epoch."""
        return draw_augmentations(count, self.augmentation, seed=self.seed, epoch=epoch)


def epoch_order(count: int, *, seed: int, epoch: int) -> Tensor:
    """Return the order of an epoch's samples [count], that of torch's DistributedSampler."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))


def shard(order: Tensor, *, rank: int, world_size: int, begin: int = 0) -> Tensor:
    """Return the samples that this rank takes of `order` from the one at `begin` on.

    As in DistributedSampler: every `world_size`-th. Where they can't be divided evenly, up to `world_size - 1` from
    the beginning of the order are repeated, so that all ranks have the same number.
    """
    rest = order[begin:]
    missing = -len(rest) % world_size
    repeated = order.repeat(-(-missing // len(order)))[:missing]
    return torch.cat([rest, repeated])[rank::world_size]


def samples_per_rank(count: int, world_size: int, begin: int = 0) -> int:
    """Return how many samples each rank takes from position `begin` on."""
    return -(-(count - begin) // world_size)
