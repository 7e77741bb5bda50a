"""Test the common behaviour of all datasets, and the two without files: digits and synthetic."""

import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from train.data.dataset import Samples, check_labels, check_memory, split_dataset, split_indices
from train.data.load import begin_to_load, load_dataset
from train.distributed.environment import DistributedEnvironment
from train.errors import BadData, BadOptions, MissingData
from train.options import Options

ALONE = DistributedEnvironment()


@pytest.fixture(scope="module")
def digits():
    return load_dataset(Options(), ALONE)


def test_digits_dataset_equals_that_of_scikit_learn(digits):
    theirs = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    images = torch.cat([digits.validation.inputs, digits.training.inputs])
    labels = torch.cat([digits.validation.labels, digits.training.labels])
    assert np.array_equal(images[:, 0].numpy(), theirs.images[order])
    assert np.array_equal(labels.numpy(), theirs.target[order])
    assert (digits.shape, digits.classes, digits.test, digits.flip_keeps_label) == (
        (1, 8, 8),
        10,
        None,
        False,
    )
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
    assert len(digits.validation) == 359


def test_digits_validation_images_cover_every_class(digits):
    assert set(digits.validation.labels.tolist()) == set(range(10))


@pytest.mark.parametrize(
    "options",
    [Options(), Options(dataset="synthetic", synthetic=(2000, 3, 16, 16, 10))],
    ids=lambda o: o.dataset,
)
def test_dataset_mean_and_std_match_the_pixels(options):
    dataset = load_dataset(options, ALONE)
    pixels = torch.cat([dataset.training.inputs, dataset.validation.inputs]) / 255
    assert len(dataset.mean) == len(dataset.std) == dataset.shape[0]
    assert pixels.mean().item() == pytest.approx(dataset.mean[0], rel=0.05)
    assert pixels.std().item() == pytest.approx(dataset.std[0], rel=0.05)


@pytest.mark.parametrize("in_thread", [False, True])
def test_load_digits_without_scikit_learn_names_the_package(in_thread, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)  # Python's way to mark a module as missing
    load = begin_to_load(Options(), ALONE, in_thread=in_thread)
    with pytest.raises(MissingData, match="pip install scikit-learn"):
        load()


def test_load_digits_without_its_file_asks_scikit_learn(digits, monkeypatch, tmp_path):
    (tmp_path / "datasets").mkdir()
    monkeypatch.setattr(sys.modules["sklearn"].__spec__, "origin", str(tmp_path / "__init__.py"))
    again = load_dataset(Options(), ALONE)
    assert torch.equal(again.training.inputs, digits.training.inputs)
    assert torch.equal(again.training.labels, digits.training.labels)


@pytest.mark.parametrize(("fraction", "out"), [(None, 359), (0.1, 180), (0.5, 898)])
def test_validation_option_sets_the_held_out_fraction(fraction, out):
    dataset = load_dataset(Options(validation=fraction), ALONE)
    assert (len(dataset.validation), len(dataset.training)) == (out, 1797 - out)


@pytest.mark.parametrize("fraction", [0.0, 0.0001, 0.9999])
def test_validation_option_refuses_a_fraction_that_leaves_no_images(fraction):
    with pytest.raises(BadOptions, match="Of 1797 training images, --validation"):
        load_dataset(Options(validation=fraction), ALONE)


def test_held_out_is_disjoint_complete_and_deterministic():
    training, out = split_indices(1000, 0.2)
    assert sorted(torch.cat([training, out]).tolist()) == list(range(1000))
    torch.manual_seed(99)
    assert torch.equal(split_indices(1000, 0.2)[1], out)


def numbered(count):
    return Samples(inputs=torch.zeros(count, 1, 2, 2, dtype=torch.uint8), labels=torch.arange(count))


@pytest.mark.parametrize(
    ("held_out", "fraction", "sizes"),
    [
        (None, None, (80, 20, None)),
        (None, 0.4, (60, 40, None)),
        (7, None, (100, 7, None)),
        (7, 0.0, (100, 7, None)),
        (7, 0.3, (70, 30, 7)),
    ],
)
def test_divided_uses_own_images_for_validation_or_test(held_out, fraction, sizes):
    parts = split_dataset(numbered(100), None if held_out is None else numbered(held_out), fraction)
    assert tuple(part and len(part) for part in parts) == sizes


def test_labelled_refuses_labels_out_of_range_or_count(tmp_path):
    images = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)

    def check(labels, images=images):
        return check_labels(images, torch.tensor(labels), classes=10, path=tmp_path / "file")

    assert check([0, 9, 3]).labels.tolist() == [0, 9, 3]
    for labels, sentence in [
        ([0, 10, 3], "has the label 10, and labels are 0 to 9"),
        ([-1, 0, 3], "has the label -1"),
        ([0, 1], "has 2 labels for 3 images"),
    ]:
        with pytest.raises(BadData, match=sentence) as raised:
            check(labels)
        assert str(tmp_path / "file") in str(raised.value)
    with pytest.raises(BadData, match="holds no images"):
        check([], images[:0])


def test_check_memory_refuses_more_than_all_ranks_can_hold():
    half = {"count": 1000, "shape": (3, 10, 10), "memory": 600_000}
    check_memory("x", env=DistributedEnvironment(local_world_size=2), **half)
    with pytest.raises(BadData) as raised:
        check_memory("x", env=DistributedEnvironment(local_world_size=3), **half)
    assert str(raised.value) == (
        "The 1,000 images of x take 0.0 GB at 3x10x10 on each of 3 ranks, and this machine has 0.0 GB of memory: "
        "use fewer or smaller images."
    )
    with pytest.raises(
        BadData, match=r"The 1,200,000,000 images of --synthetic take 3,[0-9,.]+ GB at 3x32x32, and"
    ):
        load_dataset(Options(dataset="synthetic", synthetic=(1_000_000_000, 3, 32, 32, 10)), ALONE)


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [((100, 3, 32, 32, 10), (3, 32, 32)), ((1, 1, 1, 1, 1), (1, 1, 1)), ((40, 2, 5, 7, 1000), (2, 5, 7))],
)
def test_synthetic_dataset_has_the_requested_count_and_size(sizes, shape):
    dataset = load_dataset(Options(dataset="synthetic", synthetic=sizes), ALONE)
    assert dataset.shape == shape
    assert (len(dataset.training), len(dataset.validation)) == (sizes[0], max(1, sizes[0] // 5))
    assert dataset.classes == sizes[4]
    labels = torch.cat([dataset.training.labels, dataset.validation.labels])
    assert 0 <= labels.min() <= labels.max() < sizes[4]
    assert dataset.training.inputs.dtype == torch.uint8


def test_synthetic_dataset_is_determined_by_the_seed():
    def images(seed):
        torch.manual_seed(99)
        return load_dataset(
            Options(dataset="synthetic", synthetic=(50, 1, 8, 8, 10), seed=seed), ALONE
        ).training.inputs

    assert torch.equal(images(1), images(1))
    assert not torch.equal(images(1), images(2))


def test_synthetic_classes_are_separable_also_when_mirrored():
    dataset = load_dataset(Options(dataset="synthetic", synthetic=(1000, 3, 32, 32, 10)), ALONE)
    assert dataset.flip_keeps_label
    pixels, labels = dataset.training.inputs.flatten(1).float(), dataset.training.labels
    means = torch.stack([pixels[labels == label].mean(0) for label in range(10)])

    def accuracy(images):
        nearest = torch.cdist(images.flatten(1).float(), means).argmin(1)
        return (nearest == dataset.validation.labels).float().mean().item()

    assert accuracy(dataset.validation.inputs) > 0.99
    assert accuracy(dataset.validation.inputs.flip(-1)) > 0.99
