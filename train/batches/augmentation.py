"""Random changes of the images of an epoch: mirrored, shifted. Drawn ahead for all samples, from the seed alone."""

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
