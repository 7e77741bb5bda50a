"""Batches as in a textbook: a Dataset of single images, transformed one by one on the CPU, and a DataLoader."""

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from train.batches.augmentation import Augmentations, augment
from train.batches.batch import Batch, Normalize
from train.batches.sampling import RankSampler
from train.data.dataset import Images


class DataLoaderBatches:
    """Batches that torch's DataLoader makes, image by image."""

    def __init__(
        self, images: Images, normalize: Normalize, sampler: RankSampler, device: torch.device
    ) -> None:
        """`normalize` works on the CPU."""
        self._images = images
        self._normalize = normalize
        self._sampler = sampler
        self._device = device

    def epoch(self, number: int, batch_size: int, begin: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, as `Batches` defines it."""
        count = len(self._images.labels)
        samples = _Samples(self._images, self._normalize, self._sampler.augmentations(count, number))
        loader = DataLoader(
            samples,
            batch_size,
            sampler=self._sampler.indices(count, number, begin).tolist(),
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # without it the loader draws from the generator that dropout uses
        )
        for images, labels in loader:
            yield images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)


class _Samples(TorchDataset[Batch]):
    """Single images."""

    def __init__(self, images: Images, normalize: Normalize, augmentations: Augmentations) -> None:
        self._images = images
        self._normalize = normalize
        self._augmentations = augmentations

    def __getitem__(self, index: int) -> Batch:
        one = slice(index, index + 1)
        flips, shifts = self._augmentations.flips, self._augmentations.shifts
        image = augment(
            self._images.images[one],
            None if flips is None else flips[one],
            None if shifts is None else shifts[one],
        )
        return self._normalize(image[0]), self._images.labels[index]
