"""CIFAR-10: 60,000 colour images, from its Python version as torchvision stores it, or from its binary version."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from train.data.dataset import REPLACE, Dataset, Samples, check_labels, split_dataset
from train.data.download import data_folder, ensure_downloaded
from train.data.safe_pickle import read_arrays
from train.distributed.environment import DistributedEnvironment
from train.errors import BadData
from train.options import Options
from train.torchvision_import import import_torchvision

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
"""The last one holds the test images."""


class Version(NamedTuple):
    """A file format of the dataset."""

    folder: str
    suffix: str

    def paths(self, folder: Path) -> list[Path]:
        """Return the paths of its batches in a data folder."""
        return [folder / name for name in self.names]

    @property
    def names(self) -> list[str]:
        """The paths of its batches, relative to a data folder."""
        return [f"{self.folder}/{name}{self.suffix}" for name in BATCHES]


PYTHON, BINARY = Version("cifar-10-batches-py", ""), Version("cifar-10-batches-bin", ".bin")


def read(options: Options, env: DistributedEnvironment) -> Dataset:  # noqa: ARG001 - all datasets are read with the same call
    """Read it. Its 10,000 test images are for validation, or with `--validation` for the test."""
    folder = data_folder(options)
    ensure_downloaded(
        "cifar10",
        folder,
        missing=_missing,
        download=lambda part: import_torchvision().datasets.CIFAR10(str(part), train=False, download=True),
        allowed=options.download,
    )
    if all(path.exists() for path in PYTHON.paths(folder)):
        *batches, own_test = map(_python_batch, PYTHON.paths(folder))
    else:
        *batches, own_test = map(_binary_batch, BINARY.paths(folder))
    own_training = Samples(
        inputs=torch.cat([batch.inputs for batch in batches]),
        labels=torch.cat([batch.labels for batch in batches]),
    )
    training, validation, test = split_dataset(own_training, own_test, options.validation)
    return Dataset(
        name="cifar10",
        training=training,
        validation=validation,
        test=test,
        classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        flip_keeps_label=True,
    )


def _missing(folder: Path) -> list[str]:
    if all(path.exists() for path in BINARY.paths(folder)):
        return []
    return [name for name in PYTHON.names if not (folder / name).exists()]


def _python_batch(path: Path) -> Samples:
    """Read a pickled dict: `data`, [n, 3072] bytes, and `labels`, a list of n."""
    arrays = read_arrays(path)
    data, labels = arrays.get("data"), arrays.get("labels")
    if not isinstance(data, np.ndarray) or data.shape[1:] != (PIXELS,):
        raise BadData(f"{path} is not a batch of CIFAR-10: it has no rows of {PIXELS} bytes. {REPLACE}")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise BadData(f"{path} is not a batch of CIFAR-10: it has no list of labels. {REPLACE}")
    # A pickled number can be of any size, a tensor's can't.
    numbers = torch.tensor([min(max(label, -(2**63)), 2**63 - 1) for label in labels], dtype=torch.int64)
    return check_labels(torch.from_numpy(data).reshape(-1, *SHAPE), numbers, classes=10, path=path)


def _binary_batch(path: Path) -> Samples:
    """Read rows of a label and 3072 pixels, bytes."""
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise BadData(f"{path} can't be read: {error.strerror}. {REPLACE}") from error
    if len(content) % (1 + PIXELS):
        raise BadData(f"{path} does not hold whole rows of {1 + PIXELS} bytes. {REPLACE}")
    rows = torch.from_numpy(content).reshape(-1, 1 + PIXELS)
    return check_labels(rows[:, 1:].reshape(-1, *SHAPE), rows[:, 0], classes=10, path=path)
