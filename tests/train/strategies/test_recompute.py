"""Blocks that compute again in the backward pass: the same numbers, and less that is kept."""

import copy

import pytest
import torch
from torch import nn

from train.errors import BadOptions
from train.strategies.recompute import recompute_blocks
from train.strategies.wrapping import repeated_blocks


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.GELU(), nn.Dropout(0.5))

    def forward(self, value):
        return value + self.parts(value)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), Block(), Block(), nn.Sequential(Block()), nn.Linear(6, 2)).double()


def trained(block):
    """Gradients and buffers after a pass, and what chance comes next."""
    torch.manual_seed(1)
    block(torch.rand(5, 3, dtype=torch.float64)).square().sum().backward()
    chance = torch.get_rng_state()
    return [*(p.grad for p in block.parameters()), *block.buffers(), chance]


def test_recomputed_blocks_have_the_same_gradients_statistics_and_chance():
    plain, again = network(), network()
    recompute_blocks(again)
    actual, expected = trained(again), trained(plain)
    assert all(torch.equal(*both) for both in zip(actual, expected, strict=True))
    assert [int(b) for name, b in again.named_buffers() if name.endswith("tracked")] == [1, 1, 1]


@pytest.mark.filterwarnings("ignore")  # torch's own, of what its compiler uses
def test_recomputed_blocks_have_the_same_gradients_statistics_and_chance_when_they_are_compiled():
    plain, again = network(), network()
    recompute_blocks(again)
    again.compile(dynamic=False, fullgraph=True, backend="aot_eager")
    actual, expected = trained(again), trained(plain)
    assert all(torch.equal(*both) for both in zip(actual, expected, strict=True))


def test_recomputed_blocks_keep_their_inputs_alone():
    def saved(block):
        sizes = []

        def pack(tensor):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            block(torch.rand(50, 3, dtype=torch.float64))
        return sum(sizes)

    plain, again = network(), network()
    recompute_blocks(again)
    assert saved(again) < saved(plain) / 3


def test_recomputed_network_keeps_its_names_and_can_be_copied():
    plain, again = network(), network()
    recompute_blocks(again)
    assert list(again.state_dict()) == list(plain.state_dict())
    assert [type(part).__name__ for part in again.modules()] == [
        type(part).__name__ for part in plain.modules()
    ]
    twin = copy.deepcopy(again)
    assert all(torch.equal(*both) for both in zip(trained(twin), trained(plain), strict=True))
    assert all(p.grad is None for p in again.parameters()), "the copy computes with its own weights"


def test_blocks_are_what_a_network_repeats_but_not_the_lists_that_they_are_in():
    assert list(repeated_blocks(network())) == ["1", "2", "3.0"]


def test_network_without_repeated_blocks_is_refused():
    with pytest.raises(BadOptions, match="is for networks of repeated blocks"):
        recompute_blocks(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)))
