"""Batches from images that are all in memory as bytes, on the device where they fit; each takes a few operations."""

from collections.abc import Iterator

import torch

from train.batches.augmentation import augment
from train.batches.batch import Batch, Normalize, to_device
from train.batches.sampling import RankSampler, samples_per_rank
from train.data.dataset import Images


class InMemoryBatches:
    """Batches cut from one tensor of all images, and made on the device."""

    def __init__(
        self,
        images: Images,
        normalize: Normalize,
        sampler: RankSampler,
        device: torch.device,
        *,
        storage: torch.device,
    ) -> None:
        """`storage`: where the images stay, the device or the CPU. From the CPU each batch is copied as bytes."""
        self._images = images.images.to(storage)
        self._labels = images.labels.to(storage)
        self._normalize = normalize
        self._sampler = sampler
        self._device = device

    def epoch(self, number: int, batch_size: int, begin: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, as `Batches` defines it. Nothing waits for the device."""
        count, storage = len(self._labels), self._labels.device
        indices = to_device(self._sampler.indices(count, number, begin), storage)
        drawn = self._sampler.augmentations(count, number)
        all_flips = None if drawn.flips is None else to_device(drawn.flips, storage)
        all_shifts = None if drawn.shifts is None else to_device(drawn.shifts, storage)
        for chosen in torch.split(indices, batch_size):
            flips = None if all_flips is None else to_device(all_flips[chosen], self._device)
            shifts = None if all_shifts is None else to_device(all_shifts[chosen], self._device)
            images = augment(to_device(self._images[chosen], self._device), flips, shifts)
            yield self._normalize(images), to_device(self._labels[chosen], self._device)


def evaluation_batches(
    images: Images,
    normalize: Normalize,
    device: torch.device,
    *,
    rank: int,
    world_size: int,
    batch_size: int,
) -> Iterator[Batch]:
    """Yield this rank's batches of images to evaluate on; every image counts in those of exactly one rank.

    Ranks compute together, so all have as many batches: where a rank has an image less than others, another one is
    computed in its place, which has no label.
    """
    labels = images.labels[rank::world_size]
    shard = images.images[rank::world_size]
    if len(shard) < samples_per_rank(len(images), world_size):
        shard = torch.cat([shard, images.images[:1]])
    for begin in range(0, len(shard), batch_size):
        end = begin + batch_size
        yield normalize(shard[begin:end].to(device)), labels[begin:end].to(device)
