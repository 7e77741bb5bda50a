"""The datasets by name, with the readers of the two small ones: the digits of scikit-learn, and generated images.

Every rank has the whole dataset in memory, as bytes or tokens. It is divided among the ranks, augmented and
normalized later, on the device. Training images may also stay in their files, for Ray Data. No module here imports a
heavy package before it has to.
"""

import gzip
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from train.data import cifar10, image_folder, mnist, text
from train.data.dataset import HELD_OUT, Dataset, Samples, check_memory, split_dataset
from train.distributed.environment import DistributedEnvironment
from train.errors import BadOptions, MissingData
from train.options import DatasetName, Options

DIGITS_MEAN, DIGITS_STD = 4.884, 6.017
"""Of all pixels, which are 0 .. 16."""
PIXEL_MEAN = 127.5
SIGNAL, NOISE = 32.0, 48.0
"""Standard deviations, of pixels 0 .. 255: of a class's pattern, and of the noise in its images."""
COARSE = 4
"""Rows and columns of a class's pattern, few enough for convolutions to recognize it."""
AT_ONCE = 1 << 24
"""Pixels that are generated at once, to limit the memory in use."""


def read_digits(options: Options, env: DistributedEnvironment) -> Dataset:  # noqa: ARG001 - all datasets are read with the same call
    """Read the 1,797 digits: one channel, 8 x 8, no download, no validation images of their own."""
    rows = torch.from_numpy(_digits())
    images = Samples(inputs=rows[:, :64].reshape(-1, 1, 8, 8), labels=rows[:, 64].long())
    training, validation, test = split_dataset(images, None, options.validation)
    return Dataset(
        name="digits",
        training=training,
        validation=validation,
        test=test,
        classes=10,
        mean=(DIGITS_MEAN / 255,),
        std=(DIGITS_STD / 255,),
        flip_keeps_label=False,
    )


def _digits() -> np.ndarray:
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


def read_synthetic(options: Options, env: DistributedEnvironment) -> Dataset:
    """Generate images from the seed, the same on every rank. A fifth more than requested are for validation."""
    count, *shape, classes = options.synthetic
    held_out = max(1, round(HELD_OUT * count))
    check_memory("--synthetic", count=count + held_out, shape=shape, env=env)
    generator = torch.Generator().manual_seed(options.seed)
    # A pattern [channels, height, width] for each class is its own mirror image.
    channels, height, width = shape
    coarse = torch.randn(classes, channels, min(COARSE, height), min(COARSE, width), generator=generator)
    fine = interpolate(coarse, size=(height, width))
    patterns = PIXEL_MEAN + SIGNAL * (fine + fine.flip(-1)) / 2**0.5
    training, validation, test = split_dataset(
        _images(count, patterns, generator), _images(held_out, patterns, generator), options.validation
    )
    return Dataset(
        name="synthetic",
        training=training,
        validation=validation,
        test=test,
        classes=classes,
        mean=(PIXEL_MEAN / 255,) * channels,
        std=((SIGNAL**2 + NOISE**2) ** 0.5 / 255,) * channels,
        flip_keeps_label=True,
    )


def _images(count: int, patterns: torch.Tensor, generator: torch.Generator) -> Samples:
    labels = torch.randint(len(patterns), (count,), generator=generator)
    images = torch.empty(count, *patterns.shape[1:], dtype=torch.uint8)
    at_once = max(1, AT_ONCE // patterns[0].numel())
    for part, classes in zip(torch.split(images, at_once), torch.split(labels, at_once), strict=True):
        noise = torch.randn(part.shape, generator=generator)
        part.copy_((patterns[classes] + NOISE * noise).round_().clamp_(0, 255))
    return Samples(inputs=images, labels=labels)


READERS: dict[DatasetName, Callable[[Options, DistributedEnvironment], Dataset]] = {
    "digits": read_digits,
    "mnist": mnist.read,
    "cifar10": cifar10.read,
    "synthetic": read_synthetic,
    "folder": image_folder.read,
    "text": text.read,
}


def load_dataset(options: Options, env: DistributedEnvironment) -> Dataset:
    """Load the dataset that the options name. Every rank calls it; one of each machine downloads, the others wait.

    Blocks while it downloads, at most about `train.data.download.WAIT_S` for another process to do so. Raises
    MissingData (it is not there), BadData (it can't be used), BadOptions (the options do not fit it), BadEnvironment
    (a package that reads it is not installed).
    """
    ray = sys.modules.get("ray")  # imported if Ray started this process
    if options.data_pipeline == "ray" and (ray is None or not ray.is_initialized()):
        raise BadOptions(
            "--data-pipeline ray has Ray read the images, and Ray did not start this rank: start the job with "
            "gpuctl train --mode ray, or leave the option out."
        )
    return READERS[options.dataset](options, env)


def begin_to_load(options: Options, env: DistributedEnvironment, *, in_thread: bool) -> Callable[[], Dataset]:
    """Return a function that returns the dataset, or raises as `load_dataset` does.

    `in_thread`: a thread reads the dataset from now on. Otherwise the function does.
    """
    if not in_thread:
        return partial(load_dataset, options, env)
    return ThreadPoolExecutor(1, "data").submit(load_dataset, options, env).result
