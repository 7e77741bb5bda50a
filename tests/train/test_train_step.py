"""Compiled code: for whole batches, and block by block if most blocks are alike."""

import pytest
import torch
from torch import nn

from train.models.gpt import assemble
from train.models.gpt_sizes import GPTSize
from train.torchvision_import import import_torchvision
from train.train_step import compiled_blocks, uncompiled, whole_batch_sizes


@pytest.mark.parametrize(
    ("batch_size", "micro_batch_size", "sizes"), [(40, 40, {40}), (40, 20, {20}), (40, 14, {14, 12})]
)
def test_sizes_of_a_whole_batch_are_those_of_its_parts(batch_size, micro_batch_size, sizes):
    assert whole_batch_sizes(batch_size, micro_batch_size) == sizes


@pytest.mark.parametrize(
    ("name", "blocks"),
    # 7 of 8 blocks of resnet18 differ, 8 of 33 of resnet101; convnext_tiny's differ in their drop rates.
    [("gpt", 4), ("vit_b_16", 12), ("resnet101", 33), ("resnet18", 0), ("convnext_tiny", 0), ("vgg11", 0)],
)
def test_blocks_are_compiled_one_by_one_where_most_are_alike(name, blocks):
    with torch.device("meta"):
        if name == "gpt":
            network = assemble(9, GPTSize(layers=4, width=8, heads=2, context=8, lr=1e-3))
        else:
            network = import_torchvision().models.get_model(name, weights=None)
    assert len(compiled_blocks(network)) == blocks


def test_rare_shapes_use_no_compiled_code():
    calls = []

    class Part(nn.Module):
        def forward(self, value):
            calls.append(torch.compiler.is_compiling())
            return value + 1

    part = Part()
    part.compile(backend="eager", dynamic=False)
    with uncompiled():
        part(torch.zeros(2))
    assert calls == [False]
