"""What a dataset is, and how its samples are split into those for training, validation and test."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from train.distributed.environment import DistributedEnvironment
from train.errors import BadData, BadOptions

HELD_OUT = 0.2
"""Fraction of the training images to validate with, where a dataset has no others and the options say nothing."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Images with their classes, or sequences of tokens with the tokens that follow each; on the CPU."""

    inputs: Tensor
    """[n, channels, height, width], uint8; or [n, length], int32."""
    labels: Tensor
    """[n], int64, or [n, length], int32; 0 .. classes - 1."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, numbers: Tensor | slice) -> "Samples":
        return Samples(inputs=self.inputs[numbers], labels=self.labels[numbers])


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """Labelled images that stay in their files, the same on every node."""

    folder: str
    """The data folder; `~` and a folder that is not absolute are each node's own."""
    paths: tuple[str, ...]
    """Relative to the folder."""
    labels: Tensor
    """[n], int64, 0 .. classes - 1."""
    size: int
    """Height and width that they are resized to."""

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Samples to train on, and others to evaluate on: images, or text."""

    name: str
    training: Samples | ImageFiles
    validation: Samples
    """Evaluated after each epoch."""
    test: Samples | None
    """Evaluated once, at the end; `None` where there are only the validation images."""
    classes: int
    """Of text: how many different tokens there are."""
    mean: tuple[float, ...] = ()
    """Of each channel, of pixels 0 .. 1 (uint8 / 255)."""
    std: tuple[float, ...] = ()
    flip_keeps_label: bool = False
    """Whether a mirrored image keeps its label."""
    content: str = ""
    """Another one where its files have another content, as far as labels do not tell it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of an image; the length of a sequence."""
        return tuple(self.validation.inputs.shape[1:])

    @property
    def is_text(self) -> bool:
        """Whether its samples are sequences of tokens."""
        return self.validation.inputs.dim() == 2

    @property
    def labels_per_sample(self) -> int:
        """How many a sample has: the class of an image, a token for each of a sequence."""
        return self.shape[0] if self.is_text else 1


def split_indices(count: int, fraction: float) -> tuple[Tensor, Tensor]:
    """Split the numbers of `count` images into those to train on, and that fraction of them, held out.

    The split is the same in every run, whatever its seed, so that accuracies can be compared. Raises BadOptions if a
    part is empty.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    out, training = order.tensor_split([round(fraction * count)])
    if not len(out) or not len(training):
        raise BadOptions(
            f"Of {count} training images, --validation {fraction:g} leaves {len(training)} to train on and "
            f"{len(out)} to validate with: give a fraction that leaves some of both."
        )
    return training, out


def split_dataset(
    training: Samples, own: Samples | None, fraction: float | None
) -> tuple[Samples, Samples, Samples | None]:
    """Return training, validation and test images; `own` are those that the dataset itself keeps apart, if any.

    They are the validation images, unless the options hold out a fraction above 0: then they are the test images.
    """
    if own is not None and not fraction:
        return training, own, None
    rest, out = split_indices(len(training), HELD_OUT if fraction is None else fraction)
    return training[rest], training[out], own


def check_labels(images: Tensor, labels: Tensor, *, classes: int, path: Path) -> Samples:
    """Return the images with their labels. Raises BadData if the labels of the file at `path` do not fit them."""
    if len(images) != len(labels):
        raise BadData(f"{path} has {len(labels)} labels for {len(images)} images. {REPLACE}")
    if not len(labels):
        raise BadData(f"{path} holds no images. {REPLACE}")
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise BadData(
            f"{path} has the label {int(wrong[0])}, and labels are 0 to {classes - 1}: "
            "check that it is the right file."
        )
    return Samples(inputs=images, labels=labels.long())


REPLACE = "Delete the file, to have it downloaded again, or replace it."


def check_memory(
    what: str, *, count: int, shape: Sequence[int], env: DistributedEnvironment, memory: int | None = None
) -> None:
    """Raise BadData if the ranks of this machine can't all have so many images in its memory (bytes)."""
    if memory is None:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = count * math.prod(shape)
    if size * env.local_world_size > memory:
        ranks = f" on each of {env.local_world_size} ranks" if env.local_world_size > 1 else ""
        raise BadData(
            f"The {count:,} images of {what} take {size / 1e9:,.1f} GB at {'x'.join(map(str, shape))}{ranks}, and "
            f"this machine has {memory / 1e9:,.1f} GB of memory: use fewer or smaller images."
        )
