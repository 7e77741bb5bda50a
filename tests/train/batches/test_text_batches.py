"""Batches of text: sequences are sampled, divided and resumed as images are."""

import pytest
import torch

from train.batches.factory import batch_size_per_rank, training_batches
from train.data.dataset import Dataset
from train.data.text import sequences
from train.distributed.environment import DistributedEnvironment
from train.errors import BadOptions
from train.options import Options
from train.strategies.degrees import Degrees
from train.strategies.strategy import Strategy

CPU = torch.device("cpu")


def batches(loop, rank=0, world_size=1, begin=0):
    samples = sequences(torch.arange(10 * 4 + 1, dtype=torch.int32), 4)
    dataset = Dataset(name="text", training=samples, validation=samples, test=None, classes=41)
    options = Options(model="gpt-10m", dataset="text", loop=loop)
    env = DistributedEnvironment(rank=rank, world_size=world_size)
    strategy = Strategy(options, env, CPU, Degrees(replicate=world_size))
    return list(training_batches(options, strategy, dataset, CPU, print).epoch(1, 3, begin))


@pytest.mark.parametrize("loop", ["fast", "plain"])
def test_every_sequence_is_in_one_batch_with_the_tokens_that_follow(loop):
    made = batches(loop)
    assert [len(labels) for _, labels in made] == [3, 3, 3, 1]
    tokens = torch.cat([inputs for inputs, _ in made])
    assert sorted(tokens[:, 0].tolist()) == list(range(0, 40, 4))
    assert all(inputs.dtype == labels.dtype == torch.int64 for inputs, labels in made)
    assert all(torch.equal(labels, inputs + 1) for inputs, labels in made)


def test_both_loops_make_the_same_batches():
    for fast, plain in zip(batches("fast"), batches("plain"), strict=True):
        assert torch.equal(fast[0], plain[0])


def test_epoch_of_text_resumes_with_what_is_left_on_any_number_of_ranks():
    whole = torch.cat([inputs for inputs, _ in batches("fast")])
    rest = [torch.cat([inputs for inputs, _ in batches("fast", rank, 2, begin=6)]) for rank in (0, 1)]
    assert torch.equal(torch.stack(rest, 1).flatten(0, 1), whole[6:])


def test_text_has_a_smaller_batch_than_images():
    assert batch_size_per_rank(Options(dataset="text"), 1000, 1) == 8
    assert batch_size_per_rank(Options(), 1000, 1) == 64
    with pytest.raises(
        BadOptions, match="A batch of 9 sequences a rank is more than there are: 5 training sequences"
    ):
        batch_size_per_rank(Options(dataset="text", batch_size=9), 5, 1)
