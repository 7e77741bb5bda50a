"""Test the cuts of networks into stages, and the splits of their layers."""

import pytest
import torch
from torch import nn

from train.errors import BadOptions
from train.models.networks import build_model
from train.options import Options
from train.strategies.degrees import best_cut
from train.strategies.plan import chain, costs_of, cut
from train.strategies.tensor_parallel import split_plan


def cnn():
    return build_model(Options(model="cnn"), (3, 12, 12), 4)


def test_layers_of_a_sequence_follow_each_other_to_the_same_result():
    network, images = cnn(), torch.rand(2, 3, 12, 12)
    layers = chain(network, images[:1])
    value = images
    for layer in layers:
        value = layer.compute(value)
    assert torch.equal(value, network(images))
    assert [layer.name for layer in layers] == [str(number) for number in range(10)]


@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v2"])
def test_networks_of_torchvision_are_chains_where_they_are(model):
    network, image = build_model(Options(model=model), (3, 32, 32), 4), torch.rand(1, 3, 32, 32)
    layers = chain(network, image)
    names = {layer.name for layer in layers if layer.name}
    weights = {name for name, _ in network.named_parameters()}
    assert all(any(name.startswith(f"{layer}.") for layer in names) for name in weights)
    assert len(layers) >= 4
    assert network.training


def test_costs_are_found_without_a_change_of_running_statistics():
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    layers, example = chain(network, torch.rand(1, 3)), torch.rand(1, 3)
    assert costs_of(network, layers, example) == [24.0, 0.0, 0.0, 16.0]
    assert network[1].num_batches_tracked == 0
    assert network.training


def test_layer_that_is_there_twice_is_computed_twice():
    act = nn.ReLU()
    network = nn.Sequential(nn.Linear(3, 3), act, nn.Linear(3, 3), act)
    assert [layer.name for layer in chain(network, torch.rand(1, 3))] == ["0", "1", "2", "3"]


def test_network_that_is_no_chain_is_refused():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, value):
            return self.first(value) + self.second(value)

    with pytest.raises(BadOptions, match="layers that follow each other, and Branches is none"):
        chain(Branches(), torch.rand(1, 3))


@pytest.mark.parametrize(
    ("costs", "weights", "stages", "sizes"),
    [
        ([4, 1, 1, 1, 1], [1, 1, 1, 1, 1], 2, [1, 4]),
        ([9, 1, 1, 1], [1, 0, 1, 0], 2, [1, 3]),
        ([0, 0, 0], [1, 1, 1], 3, [1, 1, 1]),
        ([5, 5, 5, 5], [1, 1, 1, 1], 2, [2, 2]),
    ],
)
def test_cut_has_the_least_dear_stage_and_none_without_weights(costs, weights, stages, sizes):
    assert [len(stage) for stage in best_cut(costs, weights, stages)] == sizes


def test_more_stages_than_layers_with_weights_are_refused():
    with pytest.raises(
        BadOptions, match=r"--pp 3 is more stages than the network has layers with weights \(2\)"
    ):
        best_cut([1, 1, 1], [1, 0, 1], 3)


def test_layers_that_are_split_together_stay_on_one_stage():
    network, image = cnn(), torch.rand(1, 3, 12, 12)
    layers, splits = chain(network, image), split_plan(network, 2)
    assert splits == {"7": "columns", "9": "rows"}
    stages = cut(layers, costs_of(network, layers, image), 3, splits)
    assert any(7 in stage and 9 in stage for stage in stages)
    assert [at for stage in stages for at in stage] == list(range(10))


def test_layers_are_split_only_where_a_degree_divides_them():
    with pytest.raises(
        BadOptions, match=r"--tp 3 does not divide any layer of this network \(widths and heads: 128\)"
    ):
        split_plan(cnn(), 3)
    with pytest.raises(BadOptions, match="--tp splits pairs of linear layers"):
        split_plan(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)), 2)
