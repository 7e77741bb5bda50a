"""The networks: two small ones, torchvision's classification networks by their names, and text models."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from train.errors import BadOptions
from train.models.gpt import build_gpt
from train.models.gpt_sizes import GPT_SIZES
from train.models.names import unknown_network
from train.options import Options
from train.torchvision_import import import_torchvision

ImageShape = tuple[int, int, int]
"""Channels, height, width."""

WITHOUT_AUXILIARY = {"aux_logits": False, "init_weights": True}
KEYWORDS: dict[str, dict[str, Any]] = {"googlenet": WITHOUT_AUXILIARY, "inception_v3": WITHOUT_AUXILIARY}
"""Arguments of networks that would otherwise have several outputs in training."""


def build_model(
    options: Options, shape: tuple[int, ...], classes: int, *, on_meta: bool = False
) -> nn.Module:
    """Build the network for samples of that shape, with random weights from torch's generator.

    A text model's weights follow from the seed only. With `on_meta` it has no weights yet:
    `train.models.gpt.materialise` sets them. Raises BadOptions for an unknown name, or a `--stem` or image size that
    does not fit; BadEnvironment without torchvision.
    """
    if options.model in GPT_SIZES:
        return build_gpt(classes, GPT_SIZES[options.model], None if on_meta else options.seed)
    channels, height, width = shape
    return _image_model(options, (channels, height, width), classes)


def _image_model(options: Options, shape: ImageShape, classes: int) -> nn.Module:
    ours: dict[str, Callable[[ImageShape, int], nn.Module]] = {"cnn": cnn, "mlp": mlp}
    if options.model in ours:
        if options.stem != "imagenet":
            raise BadOptions(f"--stem is for residual networks, not for {options.model}: leave it out.")
        return ours[options.model](shape, classes)
    models = import_torchvision().models
    known = models.list_models(module=models)  # the classification networks
    if (unknown := unknown_network(options.model, known)) is not None:
        raise BadOptions(unknown)
    model: nn.Module = models.get_model(
        options.model, weights=None, num_classes=classes, **KEYWORDS.get(options.model, {})
    )
    if options.stem == "cifar":
        # A 3x3 convolution in place of the 7x7 one with stride 2 and the pooling after it.
        first = getattr(model, "conv1", None)
        if not isinstance(first, nn.Conv2d) or not hasattr(model, "maxpool"):
            raise BadOptions(f"--stem is for residual networks, not for {options.model}: leave it out.")
        model.conv1 = _convolution(3, first.out_channels, kernel_size=3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    if shape[0] != 3:
        _set_channels(model, shape[0])
    _check_image_size(model, options.model, shape)
    return model


def mlp(image: ImageShape, classes: int) -> nn.Module:
    """Build a fully connected network: every pixel, 128 and 64 hidden units, the classes."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(image), 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def cnn(image: ImageShape, classes: int) -> nn.Module:
    """Build two 3x3 convolutions, each with a 2x2 max-pooling, then 128 hidden units and the classes."""
    channels, height, width = image
    if min(height, width) < 4:
        raise BadOptions(
            f"cnn halves images twice and can't take {_size(image)}: give images of at least 4x4, or --model mlp."
        )
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def _set_channels(model: nn.Module, channels: int) -> None:
    """Give the first convolution another number of input channels than 3."""
    name, first = next((name, part) for name, part in model.named_modules() if isinstance(part, nn.Conv2d))
    parent, _, last = name.rpartition(".")
    new = _convolution(
        channels,
        first.out_channels,
        kernel_size=first.kernel_size,
        stride=first.stride,
        padding=first.padding,
        bias=first.bias is not None,
    )
    setattr(model.get_submodule(parent), last, new)


def _convolution(channels: int, out_channels: int, **settings: Any) -> nn.Conv2d:  # noqa: ANN401 - torch's own
    """Build a convolution that is initialized as in torchvision's residual networks."""
    layer = nn.Conv2d(channels, out_channels, **settings)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def _check_image_size(model: nn.Module, name: str, shape: ImageShape) -> None:
    """Raise BadOptions if the network can't take such images, before torch does so in the first step.

    Nothing is computed: on the device `meta` tensors only have a shape.
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    weightless = {name: tensor.to("meta") for name, tensor in state.items()}
    model.eval()
    try:
        torch.func.functional_call(model, weightless, (torch.empty(1, *shape, device="meta"),))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise BadOptions(
            f"{name} can't take {_size(shape)} ({str(error).splitlines()[0]}). Give larger images, such as "
            "--image-size 224 with --dataset folder, or another --model."
        ) from error
    finally:
        model.train()


def _size(image: ImageShape) -> str:
    channels, height, width = image
    return f"images of {height}x{width} with {channels} channel{'s' if channels > 1 else ''}"
