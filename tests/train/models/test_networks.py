import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from train.errors import BadEnvironment, BadOptions
from train.models.names import TORCHVISION_MODELS
from train.models.networks import build_model
from train.options import Options
from train.torchvision_import import import_torchvision


def model_of(name, shape=(3, 32, 32), classes=10, **options):
    torch.manual_seed(0)
    return build_model(Options(model=name, **options), shape, classes)


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (1, 1, 1)),
        ("mlp", (3, 32, 32)),
        ("cnn", (1, 4, 4)),
        ("cnn", (1, 8, 8)),
        ("cnn", (3, 5, 33)),
        ("resnet18", (1, 8, 8)),
        ("resnet18", (3, 32, 32)),
        ("resnet18", (4, 33, 20)),
        ("mobilenet_v3_small", (1, 28, 28)),
        ("squeezenet1_1", (3, 32, 32)),
    ],
)
def test_models_score_each_class_and_train_every_parameter(name, shape):
    model = model_of(name, shape, 7)
    assert model.training
    scores = model(torch.randn(8, *shape))
    assert scores.shape == (8, 7)
    scores.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert sum(parameter.grad.abs().sum() for parameter in model.parameters()) > 0


def test_mlp_has_layers_784_128_64_10():
    shapes = [tuple(tensor.shape) for tensor in model_of("mlp", (1, 28, 28)).parameters()]
    assert shapes == [(128, 784), (128,), (64, 128), (64,), (10, 64), (10,)]


def test_cnn_pools_after_each_of_two_convolutions():
    kinds = [type(layer) for layer in model_of("cnn", (1, 28, 28))]
    block = [nn.Conv2d, nn.ReLU, nn.MaxPool2d]
    assert kinds == [*block, *block, nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
    assert parameters(model_of("cnn", (1, 28, 28))) == 320 + 18_496 + (64 * 7 * 7 + 1) * 128 + 1_290


@pytest.mark.parametrize("shape", [(1, 3, 3), (1, 28, 2)])
def test_cnn_refuses_too_small_images(shape):
    with pytest.raises(
        BadOptions, match=r"cnn halves images twice .* give images of at least 4x4, or --model mlp\."
    ):
        model_of("cnn", shape)


def test_resnet18_equals_that_of_torchvision():
    ours = model_of("resnet18")
    torch.manual_seed(0)
    theirs = import_torchvision().models.resnet18(num_classes=10)
    assert parameters(ours) == 11_181_642
    torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()), rtol=0, atol=0)


def test_build_does_not_change_model_state():
    model = model_of("resnet18")
    assert int(model.bn1.num_batches_tracked) == 0
    assert model.bn1.running_mean.abs().sum() == 0
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cpu"}
    assert all(parameter.grad is None for parameter in model.parameters())


def test_cifar_stem_keeps_the_size_of_small_images():
    model = model_of("resnet18", stem="cifar")
    assert (model.conv1.kernel_size, model.conv1.stride, model.conv1.padding) == ((3, 3), (1, 1), (1, 1))
    assert isinstance(model.maxpool, nn.Identity)
    assert parameters(model) == 11_181_642 - 64 * 3 * (49 - 9)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    stem = nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool)
    assert stem(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 32, 32)
    assert model.conv1.weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.05)


@pytest.mark.parametrize("name", ["mlp", "cnn", "mobilenet_v3_small"])
def test_cifar_stem_is_refused_for_other_networks(name):
    with pytest.raises(BadOptions, match=f"--stem is for residual networks, not for {name}"):
        model_of(name, stem="cifar")


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
def test_first_convolution_takes_the_channels_of_the_images(stem):
    model = model_of("resnet18", (1, 28, 28), stem=stem)
    assert model.conv1.in_channels == 1
    assert model.conv1.stride == ((2, 2) if stem == "imagenet" else (1, 1))
    assert model.conv1.bias is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [("resnet81", "resnet18"), ("ResNet50", "resnet50"), ("cnm", "cnn"), ("vgg-16", "vgg16")],
)
def test_build_suggests_the_nearest_model_for_a_mistyped_name(name, meant):
    with pytest.raises(BadOptions) as raised:
        model_of(name)
    assert str(raised.value).startswith(
        f"{name} is not one of torchvision's classification networks. Did you mean "
    )
    assert meant in str(raised.value)


def test_torchvision_models_lists_every_classification_network_of_torchvision():
    models = import_torchvision().models
    assert sorted(TORCHVISION_MODELS) == models.list_models(module=models)


@pytest.mark.parametrize("name", ["zzzz", "fasterrcnn_resnet50_fpn", "raft_large"])
def test_build_refuses_a_network_that_does_not_classify(name):
    with pytest.raises(BadOptions, match=f"{name} is not one of torchvision's classification networks"):
        model_of(name)


@pytest.mark.parametrize("name", ["alexnet", "vit_b_32"])
def test_build_refuses_image_sizes_a_network_cannot_take(name):
    with pytest.raises(BadOptions) as raised:
        model_of(name)
    assert str(raised.value).startswith(f"{name} can't take images of 32x32 with 3 channels (")
    assert "\n" not in str(raised.value)


def test_googlenet_gives_one_output_in_training():
    assert model_of("googlenet")(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_job_with_mlp_or_cnn_imports_torch_alone():
    script = (
        "import sys, train.job; from train.models.networks import build_model; from train.options import Options\n"
        "for name in ('mlp', 'cnn'): build_model(Options(model=name), (1, 28, 28), 10)\n"
        "others = ('torchvision', 'PIL', 'sklearn', 'torchmetrics', 'tensorboard', 'torch._dynamo')\n"
        "print([name for name in others if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_build_resnet_without_torchvision_names_the_package(monkeypatch):
    import_torchvision.cache_clear()
    monkeypatch.setitem(sys.modules, "torchvision", None)  # Python's way to mark a module as missing
    with pytest.raises(BadEnvironment, match="pip install torchvision"):
        model_of("resnet18")
