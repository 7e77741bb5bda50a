"""Count a network's cost, independent of the device."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bench.parts.floors import Cost
from train.models.networks import ImageShape, build_model
from train.options import Options


def network_cost(options: Options, shape: ImageShape, classes: int) -> Cost:
    """Return the cost of one image in training."""
    batch = 2
    model = build_model(options, shape, classes)
    outputs: list[int] = []
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(lambda _layer, _inputs, output: outputs.append(output.numel()))
    images, labels = torch.zeros(batch, *shape), torch.zeros(batch).long()
    with FlopCounterMode(display=False) as counted:
        nn.functional.cross_entropy(model(images), labels).backward()
    return Cost(
        flop_per_image=counted.get_total_flops() / batch,
        activations_per_image=sum(outputs) / batch,
        parameters=sum(p.numel() for p in model.parameters()),
    )
