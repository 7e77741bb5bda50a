"""Images that are made up, as many and as large as wanted: for timings without a data set, and for tests."""

import torch
from torch.nn.functional import interpolate

from train.data.images import HELD_OUT, Dataset, Images, check_memory, divided
from train.distributed import Place
from train.options import Options

MEAN = 127.5
SIGNAL, NOISE = 32.0, 48.0
"""Standard deviations, of pixels 0 .. 255: of a class's picture, and of what differs between its images."""
COARSE = 4
"""A class's picture has so many different rows and columns, so that convolutions can tell it."""
AT_ONCE = 1 << 24
"""Pixels that are made at once, to bound the memory in use."""


def read(options: Options, place: Place) -> Dataset:
    """The same on every rank: it follows from the seed. A fifth more images than asked for validate."""
    count, *shape, classes = options.synthetic
    own = max(1, round(HELD_OUT * count))
    check_memory("--synthetic", count=count + own, shape=shape, place=place)
    generator = torch.Generator().manual_seed(options.seed)
    pictures = _pictures(classes, shape, generator)
    training, validation, test = divided(
        _images(count, pictures, generator), _images(own, pictures, generator), options.validation
    )
    return Dataset(
        name="synthetic",
        training=training,
        validation=validation,
        test=test,
        classes=classes,
        mean=(MEAN / 255,) * shape[0],
        std=((SIGNAL**2 + NOISE**2) ** 0.5 / 255,) * shape[0],
        flips=True,
    )


def _pictures(classes: int, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    """[classes, channels, height, width]: one for each class, its own mirror image."""
    channels, height, width = shape
    coarse = torch.randn(classes, channels, min(COARSE, height), min(COARSE, width), generator=generator)
    fine = interpolate(coarse, size=(height, width))
    return MEAN + SIGNAL * (fine + fine.flip(-1)) / 2**0.5


def _images(count: int, pictures: torch.Tensor, generator: torch.Generator) -> Images:
    labels = torch.randint(len(pictures), (count,), generator=generator)
    images = torch.empty(count, *pictures.shape[1:], dtype=torch.uint8)
    at_once = max(1, AT_ONCE // pictures[0].numel())
    for part, classes in zip(torch.split(images, at_once), torch.split(labels, at_once), strict=True):
        noise = torch.randn(part.shape, generator=generator)
        part.copy_((pictures[classes] + NOISE * noise).round_().clamp_(0, 255))
    return Images(images=images, labels=labels)
