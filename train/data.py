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

Batches = DataLoader[tuple[Tensor, ...]]
"""Yields (images, labels)."""

HELD_OUT = 0.2
"""Fraction of the images that is never trained on."""

DIGITS_MEAN, DIGITS_STD = 4.884, 6.017
"""Of all pixels of the digits, which are 0 .. 16."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """Labelled images in memory."""

    images: Tensor
    """[n, channels, height, width], of torch's default float type, normalised."""
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
    pixels = torch.tensor(rows[:, :64], dtype=torch.get_default_dtype())
    return Images(
        images=((pixels - DIGITS_MEAN) / DIGITS_STD).reshape(-1, 1, 8, 8),
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
    """One rank's batches: in every epoch each of its images once, in a new order.

    All ranks take the same number of steps. Where the images can't be divided among them evenly, DistributedSampler
    gives up to `world_size - 1` images to two ranks: every image is taken at least once an epoch. The last batch may
    be a smaller one; it is never dropped.
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
        self._sampler: DistributedSampler[int] = DistributedSampler(
            dataset, num_replicas=world_size, rank=rank, seed=seed
        )
        # A sampler of whole batches, so that the tensors are indexed once a batch and not once an image.
        batches = BatchSampler(self._sampler, batch_size, drop_last=False)
        self._loader: Batches = DataLoader(dataset, batch_size=None, sampler=batches, pin_memory=pin_memory)

    def epoch(self, number: int) -> Batches:
        """The batches of this epoch, in an order that follows from the seed and the epoch's number."""
        self._sampler.set_epoch(number)
        return self._loader

    def __len__(self) -> int:
        """Batches an epoch, and so steps."""
        return len(self._loader)


def shard(dataset: TensorDataset, *, rank: int, world_size: int) -> TensorDataset:
    """This rank's part of a dataset: each sample is in the part of exactly one rank."""
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
