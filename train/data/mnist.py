"""MNIST: 70,000 handwritten digits, from the four IDX files as torchvision stores them, plain or .gz."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from train.data.dataset import REPLACE, Dataset, Samples, check_labels, split_dataset
from train.data.download import data_folder, ensure_downloaded
from train.distributed.environment import DistributedEnvironment
from train.errors import BadData, MissingData
from train.options import Options
from train.torchvision_import import import_torchvision

FOLDER = "MNIST/raw"
FILES = tuple(
    f"{FOLDER}/{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
UNSIGNED_BYTE = 0x08
"""Its code in an IDX file."""


def read(options: Options, env: DistributedEnvironment) -> Dataset:  # noqa: ARG001 - all datasets are read with the same call
    """Read it. Its 10,000 test images are for validation, or with `--validation` for the test."""
    folder = data_folder(options)
    ensure_downloaded(
        "mnist",
        folder,
        missing=_missing,
        download=lambda part: import_torchvision().datasets.MNIST(str(part), train=False, download=True),
        allowed=options.download,
    )
    own_training, own_test = (_part(folder / FOLDER, part) for part in ("train", "t10k"))
    if own_training.inputs.shape[1:] != own_test.inputs.shape[1:]:
        raise BadData(f"The training and test images in {folder / FOLDER} differ in size. Replace them.")
    training, validation, test = split_dataset(own_training, own_test, options.validation)
    return Dataset(
        name="mnist",
        training=training,
        validation=validation,
        test=test,
        classes=10,
        mean=(0.1307,),
        std=(0.3081,),
        flip_keeps_label=False,
    )


def _missing(folder: Path) -> list[str]:
    return [name for name in FILES if not any(path.exists() for path in _either(folder / name))]


def _either(path: Path) -> tuple[Path, Path]:
    return path, path.with_name(path.name + ".gz")


def _part(folder: Path, part: str) -> Samples:
    images = read_idx(folder / f"{part}-images-idx3-ubyte", dimensions=3)
    path = folder / f"{part}-labels-idx1-ubyte"
    return check_labels(images.unsqueeze(1), read_idx(path, dimensions=1), classes=10, path=path)


def read_idx(path: Path, *, dimensions: int) -> Tensor:
    """Read the unsigned bytes of an IDX file with `dimensions`, from `path` or else `path`.gz. Raises BadData.

    The format: two zero bytes, the type, the number of dimensions, the dimensions as 4 bytes each, most significant
    first, then the values.
    """
    path = next((path for path in _either(path) if path.exists()), path)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except FileNotFoundError as error:
        raise MissingData(f"{path} is gone. Start again.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise BadData(f"{path} can't be read: {error}. {REPLACE}") from error
    begin = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:begin], dtype=">u4").tolist() if len(content) >= begin else []
    if not shape or content[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise BadData(f"{path} is not an IDX file of bytes in {dimensions} dimensions. {REPLACE}")
    if len(content) - begin != math.prod(shape):
        raise BadData(
            f"{path} holds {len(content) - begin:,} values where its header says {math.prod(shape):,}. {REPLACE}"
        )
    if not math.prod(shape):
        raise BadData(f"{path} holds no images or labels. {REPLACE}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=begin).reshape(shape)
