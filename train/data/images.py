"""What a dataset is, and how images that are trained on are told from those that are not."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from train.distributed import Place
from train.errors import BadData, BadOptions

HELD_OUT = 0.2
"""Fraction of the training images that validates, where a dataset brings no others and the options say nothing."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """Labelled images in memory, on the CPU."""

    images: Tensor
    """[n, channels, height, width], uint8."""
    labels: Tensor
    """[n], int64, 0 .. classes - 1."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, numbers: Tensor) -> "Images":
        return Images(images=self.images[numbers], labels=self.labels[numbers])


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Labelled images that stay in their files, the same on every node."""

    folder: str
    """The data folder; `~` and a folder that is not absolute are each node's own."""
    paths: tuple[str, ...]
    """From there."""
    labels: Tensor
    """[n], int64, 0 .. classes - 1."""
    size: int
    """Height and width that they are brought to."""

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Images to train on, and others to judge by."""

    name: str
    training: Images | Pictures
    validation: Images
    """Judged after each epoch."""
    test: Images | None
    """Judged once, at the end; None where there are none beside `validation`."""
    classes: int
    mean: tuple[float, ...]
    """A channel, of pixels 0 .. 1 (uint8 / 255)."""
    std: tuple[float, ...]
    flips: bool
    """Whether a mirrored image keeps its label."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.validation.images.shape
        return channels, height, width


def held_out(count: int, fraction: float) -> tuple[Tensor, Tensor]:
    """Numbers of `count` images: those to train on, and that fraction of them, held out.

    The same in every run, whatever its seed, so that accuracies can be compared. Raises BadOptions if one is empty.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    out, training = order.tensor_split([round(fraction * count)])
    if not len(out) or not len(training):
        raise BadOptions(
            f"Of {count} training images, --validation {fraction:g} leaves {len(training)} to train on and "
            f"{len(out)} to judge by: give a fraction that leaves some of both."
        )
    return training, out


def divided(
    training: Images, own: Images | None, fraction: float | None
) -> tuple[Images, Images, Images | None]:
    """Training, validation and test images, where `own` are those that the dataset itself keeps apart, if any.

    They validate, unless a fraction above 0 of the training images is to: then they are the test.
    """
    if own is not None and not fraction:
        return training, own, None
    rest, out = held_out(len(training), HELD_OUT if fraction is None else fraction)
    return training[rest], training[out], own


def labelled(images: Tensor, labels: Tensor, *, classes: int, path: Path) -> Images:
    """The images with their labels, which are as many and name a class each; else BadData with the file's `path`."""
    if len(images) != len(labels):
        raise BadData(f"{path} has {len(labels)} labels for {len(images)} images. {REPLACE}")
    if not len(labels):
        raise BadData(f"{path} holds no images. {REPLACE}")
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise BadData(
            f"{path} has the label {int(wrong[0])}, and labels are 0 to {classes - 1}: "
            "look whether it is the right file."
        )
    return Images(images=images, labels=labels.long())


REPLACE = "Delete the file, to have it downloaded again, or replace it."


def check_memory(
    what: str, *, count: int, shape: Sequence[int], place: Place, memory: int | None = None
) -> None:
    """Raise BadData if all ranks of this machine can't have so many images in its memory (bytes; default: ask it)."""
    if memory is None:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = count * math.prod(shape)
    if size * place.local_world_size > memory:
        ranks = f" on each of {place.local_world_size} ranks" if place.local_world_size > 1 else ""
        raise BadData(
            f"The {count:,} images of {what} take {size / 1e9:,.1f} GB at {'x'.join(map(str, shape))}{ranks}, and "
            f"this machine has {memory / 1e9:,.1f} GB of memory: use fewer or smaller images."
        )
