"""Assign an epoch's samples to ranks, in an order, and draw their augmentation.

Both depend only on the seed, the epoch and the sample's number: not on the number of ranks, nor on where
an interrupted epoch resumes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from train.options import Augmentation

MAX_SHIFT = 4
"""Pixels, in each direction."""


@dataclass(frozen=True, kw_only=True)
class Augmentations:
    """Changes to the samples of an epoch. Tensors over all samples; `None`: no change of this kind."""

    flips: Tensor | None
    """[n], bool: mirrored."""
    shifts: Tensor | None
    """[n, 2], int64, 0 .. 2 * MAX_SHIFT: down and right of the upper left corner of the padded image."""


def draw_augmentations(count: int, augmentation: Augmentation, *, seed: int, epoch: int) -> Augmentations:
    """Draw for `none`, `flip` or `crop`; the caller replaces `auto`."""
    # Another stream of random numbers than that of the order.
    generator = torch.Generator().manual_seed((seed + epoch) * 2 + 2**40)
    flips = shifts = None
    if augmentation in ("flip", "crop"):
        flips = torch.randint(2, [count], generator=generator, dtype=torch.bool)
    if augmentation == "crop":
        shifts = torch.randint(2 * MAX_SHIFT + 1, [count, 2], generator=generator)
    return Augmentations(flips=flips, shifts=shifts)


def augment(images: Tensor, flips: Tensor | None, shifts: Tensor | None) -> Tensor:
    """Mirror images [b, c, h, w] where `flips` [b] say so, shift them by `shifts` [b, 2], and fill up with 0."""
    if flips is not None:
        images = torch.where(flips[:, None, None, None], images.flip(-1), images)
    if shifts is not None:
        count, _, height, width = images.shape
        padded = torch.nn.functional.pad(images, [MAX_SHIFT] * 4)
        rows = shifts[:, 0, None] + torch.arange(height, device=images.device)
        columns = shifts[:, 1, None] + torch.arange(width, device=images.device)
        index = torch.arange(count, device=images.device)[:, None, None]
        images = padded[index, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return images


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
