"""Define datasets, and split their samples into training, validation and test."""

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
"""Default fraction of the training images for validation, in datasets without validation images."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Images with their classes, or sequences of tokens with the following tokens; on the CPU."""

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
    """The data folder. Each node resolves `~` and a relative path."""
    paths: tuple[str, ...]
    """Relative to the folder."""
    labels: Tensor
    """[n], int64, 0 .. classes - 1."""
    size: int
    """Height and width after resizing."""

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Samples for training and evaluation: images, or text."""

    name: str
    training: Samples | ImageFiles
    validation: Samples
    """Evaluated after each epoch."""
    test: Samples | None
    """Evaluated once, at the end; `None`: only validation images."""
    classes: int
    """Number of classes; for text, of tokens."""
    mean: tuple[float, ...] = ()
    """Of each channel, of pixels 0 .. 1 (uint8 / 255)."""
    std: tuple[float, ...] = ()
    flip_keeps_label: bool = False
    """Whether a mirrored image keeps its label."""
    content: str = ""
    """A digest that changes with the files' content, as far as labels do not show it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of an image; the length of a sequence."""
        return tuple(self.validation.inputs.shape[1:])

    @property
    def is_text(self) -> bool:
        """Return whether samples are sequences of tokens."""
        return self.validation.inputs.dim() == 2


def split_indices(count: int, fraction: float) -> tuple[Tensor, Tensor]:
    """Split the numbers of `count` images into training images and a held-out fraction.

    The split is the same in every run, whatever its seed, so that accuracies are comparable. Raises BadOptions if a
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
    training: Samples, held_out: Samples | None, fraction: float | None
) -> tuple[Samples, Samples, Samples | None]:
    """Return training, validation and test images. `held_out`: images that the dataset keeps apart, if any.

    Held-out images are for validation, unless the options hold out a fraction above 0: then for the test.
    """
    if held_out is not None and not fraction:
        return training, held_out, None
    rest, out = split_indices(len(training), HELD_OUT if fraction is None else fraction)
    return training[rest], training[out], held_out


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
    source: str, *, count: int, shape: Sequence[int], env: DistributedEnvironment, memory: int | None = None
) -> None:
    """Raise BadData if this machine's memory (bytes) is too small for the ranks' copies of `count` images."""
    if memory is None:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = count * math.prod(shape)
    if size * env.local_world_size > memory:
        ranks = f" on each of {env.local_world_size} ranks" if env.local_world_size > 1 else ""
        raise BadData(
            f"The {count:,} images of {source} take {size / 1e9:,.1f} GB at {'x'.join(map(str, shape))}{ranks}, and "
            f"this machine has {memory / 1e9:,.1f} GB of memory: use fewer or smaller images."
        )
