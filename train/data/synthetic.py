"""Generated images of any number and size: for timings without a dataset, and for tests."""

import torch
from torch.nn.functional import interpolate

from train.data.dataset import HELD_OUT, Dataset, Samples, check_memory, split_dataset
from train.distributed.environment import DistributedEnvironment
from train.options import Options

MEAN = 127.5
SIGNAL, NOISE = 32.0, 48.0
"""Standard deviations, of pixels 0 .. 255: of a class's pattern, and of the noise in its images."""
COARSE = 4
"""Rows and columns of a class's pattern, few enough for convolutions to recognize it."""
AT_ONCE = 1 << 24
"""Pixels that are generated at once, to limit the memory in use."""


def read(options: Options, env: DistributedEnvironment) -> Dataset:
    """Generate it from the seed, the same on every rank. A fifth more images than asked for are for validation."""
    count, *shape, classes = options.synthetic
    held_out = max(1, round(HELD_OUT * count))
    check_memory("--synthetic", count=count + held_out, shape=shape, env=env)
    generator = torch.Generator().manual_seed(options.seed)
    patterns = _patterns(classes, shape, generator)
    training, validation, test = split_dataset(
        _images(count, patterns, generator), _images(held_out, patterns, generator), options.validation
    )
    return Dataset(
        name="synthetic",
        training=training,
        validation=validation,
        test=test,
        classes=classes,
        mean=(MEAN / 255,) * shape[0],
        std=((SIGNAL**2 + NOISE**2) ** 0.5 / 255,) * shape[0],
        flip_keeps_label=True,
    )


def _patterns(classes: int, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    """Generate a pattern [channels, height, width] for each class, which is its own mirror image."""
    channels, height, width = shape
    coarse = torch.randn(classes, channels, min(COARSE, height), min(COARSE, width), generator=generator)
    fine = interpolate(coarse, size=(height, width))
    return MEAN + SIGNAL * (fine + fine.flip(-1)) / 2**0.5


def _images(count: int, patterns: torch.Tensor, generator: torch.Generator) -> Samples:
    labels = torch.randint(len(patterns), (count,), generator=generator)
    images = torch.empty(count, *patterns.shape[1:], dtype=torch.uint8)
    at_once = max(1, AT_ONCE // patterns[0].numel())
    for part, classes in zip(torch.split(images, at_once), torch.split(labels, at_once), strict=True):
        noise = torch.randn(part.shape, generator=generator)
        part.copy_((patterns[classes] + NOISE * noise).round_().clamp_(0, 255))
    return Samples(inputs=images, labels=labels)
