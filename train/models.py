"""The networks. Each is built for images of a given shape and a number of classes."""

import math
from collections.abc import Callable

from torch import nn

from train.options import Model

ImageShape = tuple[int, int, int]
"""Channels, height, width."""


def mlp(image: ImageShape, classes: int) -> nn.Module:
    """Fully connected: every pixel, 128 hidden units, the classes."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(image), 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def cnn(image: ImageShape, classes: int) -> nn.Module:
    """Two 3x3 convolutions, a 2x2 max-pooling, 128 hidden units, the classes."""
    channels, height, width = image
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 2) * (width // 2), 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


MODELS: dict[Model, Callable[[ImageShape, int], nn.Module]] = {"cnn": cnn, "mlp": mlp}
