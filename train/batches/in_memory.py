"""Batches from samples that are all in memory, on the device where they fit; each takes a few operations."""

from collections.abc import Iterator

import torch

from train.batches.batch import Batch, Prepare, to_device
from train.batches.sampling import RankSampler, augment, samples_per_rank
from train.data.dataset import Samples


class InMemoryBatches:
    """Batches cut from one tensor of all samples, and made on the device."""

    def __init__(
        self,
        samples: Samples,
        prepare: Prepare,
        sampler: RankSampler,
        device: torch.device,
        *,
        storage: torch.device,
    ) -> None:
        """`storage`: where the samples stay, the device or the CPU. From the CPU each batch is copied as it is."""
        self._inputs = samples.inputs.to(storage)
        self._labels = samples.labels.to(storage)
        self._prepare = prepare
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
            inputs = augment(to_device(self._inputs[chosen], self._device), flips, shifts)
            yield self._prepare(inputs), to_device(self._labels[chosen], self._device).long()


def evaluation_batches(
    samples: Samples,
    prepare: Prepare,
    device: torch.device,
    *,
    rank: int,
    world_size: int,
    batch_size: int,
) -> Iterator[Batch]:
    """Yield this rank's evaluation batches; every sample counts on exactly one rank.

    Ranks compute together, so all have equally many batches: a rank with a sample less than others computes another
    sample in its place, without a label.
    """
    labels = samples.labels[rank::world_size]
    inputs = samples.inputs[rank::world_size]
    if len(inputs) < samples_per_rank(len(samples), world_size):
        inputs = torch.cat([inputs, samples.inputs[:1]])
    for begin in range(0, len(inputs), batch_size):
        end = begin + batch_size
        yield prepare(inputs[begin:end].to(device)), labels[begin:end].to(device).long()
