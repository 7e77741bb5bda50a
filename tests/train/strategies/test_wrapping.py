"""Test the wrap policy: the parts that are sharded separately."""

import pytest
from torch import nn

from train.errors import BadOptions
from train.strategies.wrapping import parts_to_wrap


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 20)
        self.second = nn.Linear(20, 10)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 10)
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.head = nn.Linear(10, 3)


def names(policy):
    return list(parts_to_wrap(Network(), policy))


@pytest.mark.parametrize(
    ("policy", "parts"),
    [
        ("transformer", ["blocks.2", "blocks.1", "blocks.0"]),
        ("Block", ["blocks.2", "blocks.1", "blocks.0"]),
        ("Embedding,Block", ["blocks.2", "blocks.1", "blocks.0", "embedding"]),
        ("size:430", ["embedding", "blocks.0", "blocks.1", "blocks.2"]),
        ("size:900", ["embedding", "blocks"]),
        ("size:100000", []),
    ],
)
def test_policy_names_parts_each_before_what_it_is_in(policy, parts):
    assert names(policy) == parts


def test_large_parts_within_a_part_do_not_count_for_it():
    nested = names("size:200")
    assert nested.index("blocks.0.first") < nested.index("blocks.0.second")
    assert "blocks.0" not in nested
    assert "blocks" not in nested


def test_policy_that_names_no_part_is_refused_with_those_that_there_are():
    with pytest.raises(BadOptions, match="It has Embedding, ModuleList, Block, Linear; or give size:100000"):
        names("Blok")
    with pytest.raises(BadOptions, match="has no such part"):
        parts_to_wrap(nn.Linear(2, 2), "transformer")


def test_parts_that_share_a_weight_are_left_to_what_both_are_in():
    network = Network()
    network.head = nn.Linear(10, 100)
    network.head.weight = network.embedding.weight
    assert list(parts_to_wrap(network, "size:430")) == ["blocks.0", "blocks.1", "blocks.2"]
    assert list(parts_to_wrap(network, "Embedding,Block")) == ["blocks.2", "blocks.1", "blocks.0"]
