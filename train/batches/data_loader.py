"""Batches as in a textbook: a Dataset of single samples, transformed one by one on the CPU, and a DataLoader."""

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from train.batches.batch import Batch, Prepare
from train.batches.sampling import Augmentations, RankSampler, augment
from train.data.dataset import Samples


class DataLoaderBatches:
    """Batches that torch's DataLoader makes, sample by sample."""

    def __init__(
        self, samples: Samples, prepare: Prepare, sampler: RankSampler, device: torch.device
    ) -> None:
        """`prepare` works on the CPU."""
        self._samples = samples
        self._prepare = prepare
        self._sampler = sampler
        self._device = device

    def epoch(self, number: int, batch_size: int, begin: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, as `Batches` defines it."""
        count = len(self._samples)
        samples = _SingleSamples(self._samples, self._prepare, self._sampler.augmentations(count, number))
        loader = DataLoader(
            samples,
            batch_size,
            sampler=self._sampler.indices(count, number, begin).tolist(),
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # without it the loader draws from the generator that dropout uses
        )
        for inputs, labels in loader:
            yield inputs.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)


class _SingleSamples(TorchDataset[Batch]):
    """Samples one by one."""

    def __init__(self, samples: Samples, prepare: Prepare, augmentations: Augmentations) -> None:
        self._samples = samples
        self._prepare = prepare
        self._augmentations = augmentations

    def __getitem__(self, index: int) -> Batch:
        row = slice(index, index + 1)
        flips, shifts = self._augmentations.flips, self._augmentations.shifts
        inputs = augment(
            self._samples.inputs[row],
            None if flips is None else flips[row],
            None if shifts is None else shifts[row],
        )
        return self._prepare(inputs[0]), self._samples.labels[index].long()
