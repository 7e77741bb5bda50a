"""Images in a folder for each class: DATA_DIR/train/CLASS/*.png or .jpg, with val/ or test/ next to train/."""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from train.data.dataset import HELD_OUT, Dataset, ImageFiles, Samples, check_memory, split_indices
from train.data.download import data_dir, data_folder
from train.data.image_decoding import decode
from train.distributed.devices import usable_cores
from train.distributed.environment import DistributedEnvironment
from train.errors import BadData, BadOptions, MissingData
from train.options import Options

SUFFIXES = (".png", ".jpg", ".jpeg")
CHUNK = 32
"""Files that a thread takes at a time."""


class LabelledFile(NamedTuple):
    """A file, and the number of its class."""

    path: Path
    label: int


def read(options: Options, env: DistributedEnvironment) -> Dataset:
    """Read all images, at `options.image_size`. Every rank decodes them, on its share of the machine's cores.

    Training images are only listed where Ray Data reads them.
    """
    folder = data_folder(options)
    if not (folder / "train").is_dir():
        raise MissingData(
            f"{folder / 'train'} is not on this machine. Put a folder of .png or .jpg files there for each class, "
            "or name the folder above it with --data-dir."
        )
    classes = _classes(folder / "train")
    training, validation, test = _parts(folder, classes, options.validation)
    size, streams = options.image_size, options.data_pipeline == "ray"
    check_memory(
        str(folder),
        count=(0 if streams else len(training)) + len(validation) + len(test or ()),
        shape=(3, size, size),
        env=env,
    )
    threads = options.threads or max(1, usable_cores() // env.local_world_size)
    train_part = _listed(training, folder, options) if streams else _decoded(training, size, threads)
    validation_part = _decoded(validation, size, threads)
    test_part = None if test is None else _decoded(test, size, threads)
    decoded = ([] if streams else training) + validation + (test or [])
    sizes = [(str(file.path.relative_to(folder)), file.path.stat().st_size) for file in decoded]
    return Dataset(
        name="folder",
        training=train_part,
        validation=validation_part,
        test=test_part,
        classes=len(classes),
        mean=(0.485, 0.456, 0.406),  # ImageNet's, as is usual for photographs
        std=(0.229, 0.224, 0.225),
        flip_keeps_label=True,
        content=hashlib.sha256(json.dumps(sizes).encode()).hexdigest(),
    )


def _classes(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted: a class's number is its position."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    if not names:
        raise BadData(f"{folder} has no folders. Put one there for each class, with its .png or .jpg files.")
    return names


def _parts(
    folder: Path, classes: list[str], fraction: float | None
) -> tuple[list[LabelledFile], list[LabelledFile], list[LabelledFile] | None]:
    """Return the files for training, for validation and, if validation has others, for the test."""
    training = _files(folder / "train", classes)
    val, test = (
        _files(folder / name, classes) if (folder / name).is_dir() else None for name in ("val", "test")
    )
    if val is not None and fraction:
        raise BadOptions(
            f"--validation takes images off {folder / 'train'}, and {folder / 'val'} is there to validate with: "
            "leave --validation out, or rename that folder to test."
        )
    if val is not None:
        return training, val, test
    if test is not None and not fraction:
        return training, test, None
    rest, out = split_indices(len(training), HELD_OUT if fraction is None else fraction)
    return [training[number] for number in rest], [training[number] for number in out], test


def _files(folder: Path, classes: list[str]) -> list[LabelledFile]:
    """List all images in a folder that has a folder for each class, or for some of them."""
    labelled = []
    for name in _classes(folder):
        if name not in classes:
            raise BadData(
                f"{folder / name} is a class that {folder.parent / 'train'} does not have: remove it, or rename "
                "it to one of those."
            )
        files = sorted(
            path
            for path in (folder / name).iterdir()
            if path.suffix.lower() in SUFFIXES and path.name[0] != "."
        )
        if not files:
            raise BadData(
                f"{folder / name} has no .png or .jpg files. Put some there, or remove the folder with its class."
            )
        labelled += [LabelledFile(path, classes.index(name)) for path in files]
    return labelled


def _decoded(files: Sequence[LabelledFile], size: int, threads: int) -> Samples:
    images = np.empty((len(files), 3, size, size), dtype=np.uint8)

    def decode_some(begin: int) -> None:
        for number in range(begin, min(begin + CHUNK, len(files))):
            images[number] = decode(files[number].path, size)

    with ThreadPoolExecutor(threads) as pool:
        # The first error, in the order of the files, cancels the rest.
        for _ in pool.map(decode_some, range(0, len(files), CHUNK)):
            pass
    return Samples(inputs=torch.from_numpy(images), labels=_labels(files))


def _listed(files: Sequence[LabelledFile], folder: Path, options: Options) -> ImageFiles:
    return ImageFiles(
        folder=data_dir(options),
        paths=tuple(str(file.path.relative_to(folder)) for file in files),
        labels=_labels(files),
        size=options.image_size,
    )


def _labels(files: Sequence[LabelledFile]) -> torch.Tensor:
    return torch.tensor([file.label for file in files], dtype=torch.int64)
