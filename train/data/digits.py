"""The 1,797 handwritten digits that come with scikit-learn: one channel, 8 x 8, no download."""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from train.data.dataset import Dataset, Samples, split_dataset
from train.distributed.environment import DistributedEnvironment
from train.errors import MissingData
from train.options import Options

MEAN, STD = 4.884, 6.017
"""Of all pixels, which are 0 .. 16."""


def read(options: Options, env: DistributedEnvironment) -> Dataset:  # noqa: ARG001 - all datasets are read with the same call
    """Read it. It has no validation images of its own."""
    rows = torch.from_numpy(_rows())
    images = Samples(inputs=rows[:, :64].reshape(-1, 1, 8, 8), labels=rows[:, 64].long())
    training, validation, test = split_dataset(images, None, options.validation)
    return Dataset(
        name="digits",
        training=training,
        validation=validation,
        test=test,
        classes=10,
        mean=(MEAN / 255,),
        std=(STD / 255,),
        flip_keeps_label=False,
    )


def _rows() -> np.ndarray:
    """Return [1797, 65] bytes: 64 pixels, then the digit."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise MissingData(
            "The digits come with scikit-learn, which is not installed here. Run: pip install scikit-learn"
        )
    # Importing sklearn takes longer than an epoch; its file of digits is read in milliseconds.
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if path.exists():
        with gzip.open(path, "rt", encoding="ascii") as lines:
            return np.loadtxt(lines, delimiter=",").astype(np.uint8)
    from sklearn.datasets import load_digits

    digits = load_digits()
    return np.column_stack([digits.data, digits.target]).astype(np.uint8)
