"""The training batches that the options ask for, and how large they are."""

from collections.abc import Callable

import torch

from train.batches.batch import Batches, Normalize, preparation
from train.batches.data_loader import DataLoaderBatches
from train.batches.in_memory import InMemoryBatches
from train.batches.sampling import RankSampler, samples_per_rank
from train.data.dataset import Dataset, ImageFiles
from train.distributed.environment import ranks_text
from train.errors import BadOptions
from train.options import Augmentation, Options
from train.strategies.degrees import batch_of_rank
from train.strategies.strategy import Strategy

GPU_MEMORY_SHARE = 0.5
"""Fraction of a GPU's free memory that the samples may take."""


def training_batches(
    options: Options,
    strategy: Strategy,
    dataset: Dataset,
    device: torch.device,
    say: Callable[[str], object],
) -> Batches:
    """Build this rank's training batches. `say` gets a line where the GPU can't hold the samples."""
    auto: Augmentation = "flip" if dataset.flip_keeps_label else "none"
    sampler = RankSampler(
        seed=options.seed,
        rank=strategy.replica,
        world_size=strategy.sizes.replicas,
        augmentation=auto if options.augmentation == "auto" else options.augmentation,
    )
    samples = dataset.training
    if isinstance(samples, ImageFiles):
        from train.batches.ray_data import RayDataBatches

        normalize = Normalize(dataset.mean, dataset.std, device)
        return RayDataBatches(samples, normalize, sampler, device, timeout_s=options.timeout_s)
    if options.loop == "plain":
        return DataLoaderBatches(samples, preparation(dataset, torch.device("cpu")), sampler, device)
    size = samples.inputs.nbytes + (samples.labels.nbytes if dataset.is_text else 0)
    fits = device.type != "cuda" or size < GPU_MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]
    if not fits:
        say(
            f"the {options.samples_name} ({size / 1e9:.1f} GB) do not fit into the GPU's memory: they stay in the "
            "host's, and are copied batch by batch"
        )
    storage = device if fits else torch.device("cpu")
    return InMemoryBatches(samples, preparation(dataset, device), sampler, device, storage=storage)


def batch_size_per_rank(options: Options, samples: int, world_size: int) -> int:
    """Return a rank's batch size. Raises BadOptions for one that is too large, or that can't be divided."""
    max_size = samples_per_rank(samples, world_size)
    ranks, name = ranks_text(world_size), options.samples_name
    size = batch_of_rank(options, world_size)
    if size is None:
        size = min(options.default_batch_size, max_size)
    if size > max_size:
        raise BadOptions(
            f"A batch of {size:,} {name} a rank is more than there are: {samples:,} training {name} for {ranks}. "
            f"Give at most {max_size:,} a rank."
        )
    if (options.gradient_accumulation_steps or 1) > size:
        raise BadOptions(
            f"A batch of {size} {name} can't be divided into {options.gradient_accumulation_steps} micro-batches "
            "(--gradient-accumulation-steps)."
        )
    return size
