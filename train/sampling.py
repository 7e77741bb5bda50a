"""Which rank sees which sample in which step, and what chance does to it.

All of it follows from the seed, the epoch and the sample's number alone: not from the number of ranks, nor from where
an interrupted epoch goes on.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from train.options import Augmentation

MAX_SHIFT = 4
"""Pixels, in each direction."""


def epoch_order(count: int, *, seed: int, epoch: int) -> Tensor:
    """[count]: the order of an epoch's samples, that of torch's DistributedSampler."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))


def share(order: Tensor, *, rank: int, world_size: int, begin: int = 0) -> Tensor:
    """The samples of `order` from the `begin`-th on that this rank takes, in its order.

    As DistributedSampler has it: every `world_size`-th, and where they can't be divided evenly, up to
    `world_size - 1` from the beginning of the order are taken once more, so that all ranks have the same number.
    """
    rest = order[begin:]
    lacking = -len(rest) % world_size
    again = order.repeat(-(-lacking // len(order)))[:lacking]
    return torch.cat([rest, again])[rank::world_size]


def rank_samples(count: int, world_size: int, begin: int = 0) -> int:
    """How many samples each rank takes of those from the `begin`-th on."""
    return -(-(count - begin) // world_size)


@dataclass(frozen=True, kw_only=True)
class Chance:
    """What happens to each sample in an epoch. Tensors over all samples; None: nothing."""

    flips: Tensor | None
    """[n], bool: mirrored."""
    shifts: Tensor | None
    """[n, 2], int64, 0 .. 2 * MAX_SHIFT: down and right of the upper left corner of the padded image."""


def chance(count: int, augmentation: Augmentation, *, seed: int, epoch: int) -> Chance:
    """The chance of an epoch: `none`, `flip` or `crop` (`auto` is for the caller to decide)."""
    # Another stream of numbers than that of the order.
    generator = torch.Generator().manual_seed((seed + epoch) * 2 + 2**40)
    flips = shifts = None
    if augmentation in ("flip", "crop"):
        flips = torch.randint(2, [count], generator=generator, dtype=torch.bool)
    if augmentation == "crop":
        shifts = torch.randint(2 * MAX_SHIFT + 1, [count, 2], generator=generator)
    return Chance(flips=flips, shifts=shifts)


def augment(images: Tensor, flips: Tensor | None, shifts: Tensor | None) -> Tensor:
    """[b, c, h, w] mirrored where `flips` [b] say so, then shifted by `shifts` [b, 2], filled up with 0."""
    if flips is not None:
        images = torch.where(flips[:, None, None, None], images.flip(-1), images)
    if shifts is not None:
        count, _, height, width = images.shape
        padded = torch.nn.functional.pad(images, [MAX_SHIFT] * 4)
        rows = shifts[:, 0, None] + torch.arange(height, device=images.device)
        columns = shifts[:, 1, None] + torch.arange(width, device=images.device)
        which = torch.arange(count, device=images.device)[:, None, None]
        images = padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return images
