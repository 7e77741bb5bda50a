"""One rank's batches, ready for the network: chosen, augmented, normalised, on the device.

`ResidentBatches` keep all images as bytes, on the device where they fit, and make a batch in a few operations.
`LoadedBatches` are the textbook's: a Dataset of single images, transformed one by one on the CPU, and a DataLoader.
Both yield the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from train.data import Images
from train.options import Augmentation
from train.sampling import Chance, augment, chance, epoch_order, share

Batch = tuple[Tensor, Tensor]
"""Images [b, c, h, w] of torch's default float type, labels [b]."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which samples a rank takes, and what chance does to them."""

    seed: int
    rank: int
    world_size: int
    augmentation: Augmentation

    def order(self, count: int, epoch: int, begin: int) -> Tensor:
        """The rank's samples of an epoch, of those from the `begin`-th on."""
        order = epoch_order(count, seed=self.seed, epoch=epoch)
        return share(order, rank=self.rank, world_size=self.world_size, begin=begin)

    def chance(self, count: int, epoch: int) -> Chance:
        """What happens to each sample in an epoch."""
        return chance(count, self.augmentation, seed=self.seed, epoch=epoch)


class Batches(Protocol):
    """The training batches of one rank."""

    def epoch(self, number: int, batch_size: int, begin: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from the `begin`-th sample of all ranks on. The last one may be smaller."""
        ...


class Normalize:
    """Bytes to numbers of mean 0 and standard deviation 1 a channel."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> None:
        """Of pixels 0 .. 1."""
        dtype = torch.get_default_dtype()
        means = torch.tensor(mean, dtype=torch.float64)
        stds = torch.tensor(std, dtype=torch.float64)
        self._scale = (1 / (255 * stds)).to(device, dtype)[:, None, None]
        self._shift = (-means / stds).to(device, dtype)[:, None, None]

    def __call__(self, images: Tensor) -> Tensor:
        """[..., c, h, w] of bytes to the same of torch's default float type."""
        return torch.addcmul(self._shift, images.to(self._scale.dtype), self._scale)


class ResidentBatches:
    """All images in one tensor, whose batches are made on the device."""

    def __init__(
        self, images: Images, normalize: Normalize, which: Share, device: torch.device, *, kept: torch.device
    ) -> None:
        """`kept`: where the images stay; the device itself, or the CPU, from where each batch is copied as bytes."""
        self._images = images.images.to(kept)
        self._labels = images.labels.to(kept)
        self._normalize = normalize
        self._which = which
        self._device = device

    def epoch(self, number: int, batch_size: int, begin: int = 0) -> Iterator[Batch]:
        """As `Batches` has it. Nothing waits for the device."""
        count, kept = len(self._labels), self._labels.device
        order = moved(self._which.order(count, number, begin), kept)
        happens = self._which.chance(count, number)
        all_flips = None if happens.flips is None else moved(happens.flips, kept)
        all_shifts = None if happens.shifts is None else moved(happens.shifts, kept)
        for chosen in torch.split(order, batch_size):
            flips = None if all_flips is None else moved(all_flips[chosen], self._device)
            shifts = None if all_shifts is None else moved(all_shifts[chosen], self._device)
            images = augment(moved(self._images[chosen], self._device), flips, shifts)
            yield self._normalize(images), moved(self._labels[chosen], self._device)


def moved(values: Tensor, device: torch.device) -> Tensor:
    """The same on the device; it is not waited for."""
    if values.device.type == device.type:
        return values
    return values.pin_memory().to(device, non_blocking=True)


class LoadedBatches:
    """One image after the other, by torch's DataLoader."""

    def __init__(self, images: Images, normalize: Normalize, which: Share, device: torch.device) -> None:
        """`normalize` is the CPU's."""
        self._images = images
        self._normalize = normalize
        self._which = which
        self._device = device

    def epoch(self, number: int, batch_size: int, begin: int = 0) -> Iterator[Batch]:
        """As `Batches` has it."""
        count = len(self._images.labels)
        samples = _Samples(self._images, self._normalize, self._which.chance(count, number))
        order = self._which.order(count, number, begin).tolist()
        loader = DataLoader(
            samples,
            batch_size,
            sampler=order,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # else it takes a number of those that dropout goes on with
        )
        for images, labels in loader:
            yield images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)


class _Samples(TorchDataset[Batch]):
    """Single images, as the textbook has them."""

    def __init__(self, images: Images, normalize: Normalize, happens: Chance) -> None:
        self._images = images
        self._normalize = normalize
        self._happens = happens

    def __getitem__(self, index: int) -> Batch:
        flips, shifts = self._happens.flips, self._happens.shifts
        image = augment(
            self._images.images[index : index + 1],
            None if flips is None else flips[index : index + 1],
            None if shifts is None else shifts[index : index + 1],
        )
        return self._normalize(image[0]), self._images.labels[index]


def judged(
    images: Images, normalize: Normalize, device: torch.device, *, rank: int, world_size: int, at_once: int
) -> Iterator[Batch]:
    """This rank's part of images to be judged: each image is in the part of exactly one rank."""
    mine = (tensor[rank::world_size] for tensor in (images.images, images.labels))
    parts = (torch.split(tensor, at_once) for tensor in mine)
    for part, labels in zip(*parts, strict=True):
        yield normalize(part.to(device)), labels.to(device)
