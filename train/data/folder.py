"""Pictures in a folder for each class: DATA_DIR/train/CLASS/*.png or .jpg, and val/ or test/ beside train/."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from train.data.download import data_dir, data_folder
from train.data.images import HELD_OUT, Dataset, Images, Pictures, check_memory, held_out
from train.distributed import Place, usable_cores
from train.errors import BadData, BadOptions, MissingData
from train.options import Options
from train.pictures import decode

SUFFIXES = (".png", ".jpg", ".jpeg")
AT_ONCE = 32
"""Files that a thread takes at a time."""


class Picture(NamedTuple):
    """A file, and the number of its class."""

    path: Path
    label: int


def read(options: Options, place: Place) -> Dataset:
    """All pictures, at `options.image_size`. Every rank decodes them, in its share of the machine's cores.

    Those to train on are only listed where they are to be streamed.
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
        place=place,
    )
    threads = options.threads or max(1, usable_cores() // place.local_world_size)
    return Dataset(
        name="folder",
        training=_listed(training, folder, options) if streams else _decoded(training, size, threads),
        validation=_decoded(validation, size, threads),
        test=None if test is None else _decoded(test, size, threads),
        classes=len(classes),
        mean=(0.485, 0.456, 0.406),  # ImageNet's, as is usual for photographs
        std=(0.229, 0.224, 0.225),
        flips=True,
    )


def _classes(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted: a class's number is its place there."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    if not names:
        raise BadData(f"{folder} has no folders. Put one there for each class, with its .png or .jpg files.")
    return names


def _parts(
    folder: Path, classes: list[str], fraction: float | None
) -> tuple[list[Picture], list[Picture], list[Picture] | None]:
    """The pictures to train on, for validation, and for the test, which only is where there are others, too."""
    training = _pictures(folder / "train", classes)
    val, test = (
        _pictures(folder / name, classes) if (folder / name).is_dir() else None for name in ("val", "test")
    )
    if val is not None and fraction:
        raise BadOptions(
            f"--validation takes images off {folder / 'train'}, and {folder / 'val'} is there to judge by: "
            "leave --validation out, or rename that folder to test."
        )
    if val is not None:
        return training, val, test
    if test is not None and not fraction:
        return training, test, None
    rest, out = held_out(len(training), HELD_OUT if fraction is None else fraction)
    return [training[number] for number in rest], [training[number] for number in out], test


def _pictures(folder: Path, classes: list[str]) -> list[Picture]:
    """All pictures in a folder that has a folder for each class, or for some of them."""
    found = []
    for name in _classes(folder):
        if name not in classes:
            raise BadData(
                f"{folder / name} is a class that {folder.parent / 'train'} does not have: remove it, or rename "
                "it to one of those."
            )
        files = sorted(path for path in (folder / name).iterdir() if _is_picture(path))
        if not files:
            raise BadData(
                f"{folder / name} has no .png or .jpg files. Put some there, or remove the folder with its class."
            )
        found += [Picture(path, classes.index(name)) for path in files]
    return found


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.name[0] != "."


def _decoded(pictures: Sequence[Picture], size: int, threads: int) -> Images:
    images = np.empty((len(pictures), 3, size, size), dtype=np.uint8)

    def decode_some(begin: int) -> None:
        for number in range(begin, min(begin + AT_ONCE, len(pictures))):
            images[number] = decode(pictures[number].path, size)

    with ThreadPoolExecutor(threads) as pool:
        # The first error, in the order of the files, ends it: the rest is cancelled.
        for _ in pool.map(decode_some, range(0, len(pictures), AT_ONCE)):
            pass
    return Images(images=torch.from_numpy(images), labels=_labels(pictures))


def _listed(pictures: Sequence[Picture], folder: Path, options: Options) -> Pictures:
    return Pictures(
        folder=data_dir(options),
        paths=tuple(str(picture.path.relative_to(folder)) for picture in pictures),
        labels=_labels(pictures),
        size=options.image_size,
    )


def _labels(pictures: Sequence[Picture]) -> torch.Tensor:
    return torch.tensor([picture.label for picture in pictures], dtype=torch.int64)
