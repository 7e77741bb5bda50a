import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from train.data import DIGITS_MEAN, DIGITS_STD, TrainingBatches, digits, shard, split
from train.errors import MissingData


@pytest.fixture(scope="module")
def images():
    return digits()


@pytest.fixture(scope="module")
def numbered():
    """Ten images whose label is their number."""
    return torch.utils.data.TensorDataset(torch.zeros(10, 1, 2, 2), torch.arange(10))


def test_the_digits_are_those_of_scikit_learn(images):
    theirs = load_digits()
    assert np.allclose(images.images[:, 0].numpy() * DIGITS_STD + DIGITS_MEAN, theirs.images, atol=1e-5)
    assert np.array_equal(images.labels.numpy(), theirs.target)
    assert images.shape == (1, 8, 8)
    assert images.classes == 10


def test_the_digits_are_normalised(images):
    assert images.images.mean().item() == pytest.approx(0, abs=1e-3)
    assert images.images.std().item() == pytest.approx(1, abs=1e-3)


def test_without_scikit_learn_a_sentence_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)  # Python's own way to say that there is none
    with pytest.raises(MissingData, match="pip install scikit-learn"):
        digits()


def test_without_its_file_the_digits_are_asked_of_scikit_learn_itself(images, monkeypatch, tmp_path):
    (tmp_path / "datasets").mkdir()
    spec = sys.modules["sklearn"].__spec__
    monkeypatch.setattr(spec, "origin", str(tmp_path / "__init__.py"))
    assert torch.equal(digits().images, images.images)


def test_the_split_is_disjoint_complete_and_always_the_same(images):
    numbers = torch.arange(len(images.labels), dtype=torch.float32).reshape(-1, 1, 1, 1)
    training, held_out = split(type(images)(images=numbers, labels=images.labels, classes=10))
    seen = [set(part.tensors[0].flatten().int().tolist()) for part in (training, held_out)]
    assert not seen[0] & seen[1]
    assert seen[0] | seen[1] == set(range(1797))
    assert len(held_out) == 359
    torch.manual_seed(99)
    assert torch.equal(split(images)[1].tensors[1], held_out.tensors[1])


def test_every_class_is_held_out(images):
    assert set(split(images)[1].tensors[1].tolist()) == set(range(10))


def batches_of(dataset, *, rank, world_size, epoch=1, batch_size=3, seed=0):
    batches = TrainingBatches(dataset, batch_size=batch_size, seed=seed, rank=rank, world_size=world_size)
    found = [labels.tolist() for _, labels in batches.epoch(epoch)]
    assert len(found) == len(batches)
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_ranks_together_take_every_image_each_epoch(numbered, world_size):
    for epoch in (1, 2, 3):
        parts = [
            batches_of(numbered, rank=rank, world_size=world_size, epoch=epoch) for rank in range(world_size)
        ]
        taken = [number for part in parts for batch in part for number in batch]
        assert set(taken) == set(range(10))
        repeated = -10 % world_size
        assert len(taken) == 10 + repeated
        assert len({tuple(map(len, part)) for part in parts}) == 1  # the same steps on every rank


def test_the_last_smaller_batch_is_kept(numbered):
    assert [len(batch) for batch in batches_of(numbered, rank=0, world_size=1)] == [3, 3, 3, 1]


def test_the_order_follows_from_seed_and_epoch(numbered):
    def order(**of):
        return batches_of(numbered, rank=0, world_size=1, **of)

    assert order(epoch=1) == order(epoch=1)
    assert order(epoch=1) != order(epoch=2)
    assert order(seed=0) != order(seed=1)


def test_a_step_of_all_ranks_takes_the_images_that_one_rank_would(numbered):
    one = batches_of(numbered, rank=0, world_size=1, batch_size=4)
    two = [batches_of(numbered, rank=rank, world_size=2, batch_size=2) for rank in (0, 1)]
    assert [set(batch) for batch in one] == [set(first + second) for first, second in zip(*two, strict=True)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 11])
def test_every_held_out_image_is_counted_on_exactly_one_rank(numbered, world_size):
    parts = [
        shard(numbered, rank=rank, world_size=world_size).tensors[1].tolist() for rank in range(world_size)
    ]
    assert sorted(number for part in parts for number in part) == list(range(10))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
