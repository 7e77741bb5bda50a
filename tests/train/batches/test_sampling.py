"""Test each rank's samples against torch's sampler."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, TensorDataset

from train.batches.sampling import (
    MAX_SHIFT,
    augment,
    draw_augmentations,
    epoch_order,
    samples_per_rank,
    shard,
)


@given(
    count=st.integers(1, 50), world_size=st.integers(1, 9), seed=st.integers(0, 5), epoch=st.integers(0, 5)
)
@settings(max_examples=100, deadline=None)
def test_shard_equals_torch_distributed_sampler(count, world_size, seed, epoch):
    dataset = TensorDataset(torch.zeros(count))
    for rank in range(world_size):
        sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, seed=seed)
        sampler.set_epoch(epoch)
        ours = shard(epoch_order(count, seed=seed, epoch=epoch), rank=rank, world_size=world_size)
        assert ours.tolist() == list(sampler)
        assert len(ours) == samples_per_rank(count, world_size)


@given(
    count=st.integers(1, 60),
    before=st.integers(1, 5),
    after=st.integers(1, 5),
    batch=st.integers(1, 7),
    steps=st.integers(0, 20),
)
@settings(max_examples=200, deadline=None)
def test_shard_resumed_with_other_ranks_covers_every_sample(count, before, after, batch, steps):
    order = epoch_order(count, seed=3, epoch=1)
    first_shards = [shard(order, rank=rank, world_size=before)[: steps * batch] for rank in range(before)]
    consumed = min(count, steps * batch * before)
    rest = [shard(order, rank=rank, world_size=after, begin=consumed) for rank in range(after)]
    assert len({len(part) for part in rest}) == 1, "all ranks take the same number of steps"
    samples = (
        torch.cat([*first_shards, *rest]).tolist() if consumed < count else torch.cat(first_shards).tolist()
    )
    assert set(samples) == set(range(count))
    assert len(samples) - count < max(before, after), "no more than the others lack is taken twice"


def test_shard_with_begin_continues_the_epoch():
    order = epoch_order(50, seed=0, epoch=2)
    for rank in range(3):
        whole = shard(order, rank=rank, world_size=3)
        assert shard(order, rank=rank, world_size=3, begin=12).tolist() == whole[4:].tolist()


def test_augmentations_are_determined_by_seed_and_epoch():
    first, second = (draw_augmentations(100, "crop", seed=1, epoch=4) for _ in range(2))
    assert torch.equal(first.flips, second.flips)
    assert torch.equal(first.shifts, second.shifts)
    assert 20 < int(first.flips.sum()) < 80
    assert (int(first.shifts.min()), int(first.shifts.max())) == (0, 2 * MAX_SHIFT)
    another = draw_augmentations(100, "crop", seed=1, epoch=5)
    assert not torch.equal(first.flips, another.flips)
    assert draw_augmentations(5, "none", seed=1, epoch=4).flips is None
    assert draw_augmentations(5, "flip", seed=1, epoch=4).shifts is None


def test_augment_mirrors_and_shifts_images():
    images = torch.arange(2 * 2 * 3 * 3, dtype=torch.uint8).reshape(2, 2, 3, 3)
    flips = torch.tensor([False, True])
    assert augment(images, None, None) is images
    mirrored = augment(images, flips, None)
    assert torch.equal(mirrored[0], images[0])
    assert torch.equal(mirrored[1], images[1].flip(-1))
    stay, down_right = [MAX_SHIFT, MAX_SHIFT], [MAX_SHIFT + 1, MAX_SHIFT + 1]
    shifted = augment(images, None, torch.tensor([stay, down_right]))
    assert torch.equal(shifted[0], images[0])
    assert torch.equal(shifted[1, :, :2, :2], images[1, :, 1:, 1:])
    assert shifted[1, :, 2].sum() == shifted[1, :, :, 2].sum() == 0
