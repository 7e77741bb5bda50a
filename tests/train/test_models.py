import pytest
import torch

from train.models import MODELS


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_a_model_gives_a_score_for_each_class(name, shape):
    model = MODELS[name](shape, 10)
    assert model(torch.zeros(5, *shape)).shape == (5, 10)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_takes_part(name):
    torch.manual_seed(0)
    model = MODELS[name]((1, 8, 8), 10)
    model(torch.randn(32, 1, 8, 8)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_the_mlp_is_64_128_10():
    assert [tuple(tensor.shape) for tensor in MODELS["mlp"]((1, 8, 8), 10).parameters()] == [
        (128, 64),
        (128,),
        (10, 128),
        (10,),
    ]
