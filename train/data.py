"""The images: where they come from, which of them are held out, and which rank sees which."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from train.errors import MissingData
from train.options import Dataset

HELD_OUT = 0.2
"""Fraction of the images that is never trained on."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """Labelled images in memory."""

    images: Tensor
    """[n, channels, height, width], of torch's default float type, 0 .. 1."""
    labels: Tensor
    """[n], int64, 0 .. classes - 1."""
    classes: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.images.shape
        return channels, height, width


def digits() -> Images:
    """The 1,797 handwritten digits that scikit-learn carries: one channel, 8 x 8, no download."""
    rows = _digits_rows()
    return Images(
        images=torch.tensor(rows[:, :64] / 16, dtype=torch.get_default_dtype()).reshape(-1, 1, 8, 8),
        labels=torch.tensor(rows[:, 64], dtype=torch.int64),
        classes=10,
    )


DATASETS: dict[Dataset, Callable[[], Images]] = {"digits": digits}


def split(data: Images) -> tuple[TensorDataset, TensorDataset]:
    """Training and held-out images. The same split in every run, so that accuracies can be compared."""
    order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(0))
    held_out, training = order.tensor_split([round(HELD_OUT * len(order))])
    return (
        TensorDataset(data.images[training], data.labels[training]),
        TensorDataset(data.images[held_out], data.labels[held_out]),
    )


class TrainingBatches:
    """One rank's batches of an epoch: each of the rank's images once, in a new order every epoch.

    The ranks' parts are equally long, so that no rank waits for a step that another doesn't take. Where the number
    of images is no multiple of the number of ranks, DistributedSampler repeats up to `world_size - 1` images: every
    image is seen at least once an epoch. The last batch may be smaller; it is never dropped.
    """

    def __init__(
        self,
        dataset: TensorDataset,
        *,
        batch_size: int,
        seed: int,
        rank: int,
        world_size: int,
        pin_memory: bool = False,
    ) -> None:
        self._sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, seed=seed)
        # batch_size=None with a sampler of batches: the dataset is indexed once a batch, not once an image.
        self.loader = DataLoader(
            dataset,
            batch_size=None,
            sampler=BatchSampler(self._sampler, batch_size, drop_last=False),
            pin_memory=pin_memory,
        )

    def epoch(self, epoch: int) -> DataLoader[tuple[Tensor, Tensor]]:
        """The batches of this epoch: (images, labels)."""
        self._sampler.set_epoch(epoch)
        return self.loader

    def __len__(self) -> int:
        """Batches, and so steps, an epoch."""
        return len(self.loader)


def shard(dataset: TensorDataset, *, rank: int, world_size: int) -> TensorDataset:
    """This rank's part of a dataset: every sample is in exactly one rank's part; the sizes differ by at most one."""
    return TensorDataset(*(tensor[rank::world_size] for tensor in dataset.tensors))


def _digits_rows() -> np.ndarray:
    """[1797, 65]: 64 pixels of 0 .. 16, then the digit."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise MissingData(
            "The digits come with scikit-learn, which is not installed here. Run: pip install scikit-learn"
        )
    # Importing sklearn takes longer than an epoch; its file of digits is read in milliseconds.
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if path.exists():
        with gzip.open(path, "rt", encoding="ascii") as lines:
            return np.loadtxt(lines, delimiter=",")
    from sklearn.datasets import load_digits

    found = load_digits()
    return np.column_stack([found.data, found.target])
