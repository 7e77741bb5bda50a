"""The training batches that the options ask for, and how large they are."""

from collections.abc import Callable

import torch

from train.batches.batch import Batches, Normalize
from train.batches.data_loader import DataLoaderBatches
from train.batches.in_memory import InMemoryBatches
from train.batches.sampling import RankSampler, samples_per_rank
from train.data.dataset import Dataset, ImageFiles
from train.errors import BadOptions
from train.options import DEFAULT_BATCH, Augmentation, Options
from train.strategies.strategy import Strategy

GPU_MEMORY_SHARE = 0.5
"""Fraction of a GPU's free memory that the images may take."""


def training_batches(
    options: Options,
    strategy: Strategy,
    dataset: Dataset,
    device: torch.device,
    say: Callable[[str], object],
) -> Batches:
    """Build this rank's training batches. `say` gets a line where the GPU can't hold the images."""
    auto: Augmentation = "flip" if dataset.flip_keeps_label else "none"
    sampler = RankSampler(
        seed=options.seed,
        rank=strategy.replica,
        world_size=strategy.sizes.replicas,
        augmentation=auto if options.augmentation == "auto" else options.augmentation,
    )
    images = dataset.training
    if isinstance(images, ImageFiles):
        from train.batches.ray_data import RayDataBatches

        normalize = Normalize(dataset.mean, dataset.std, device)
        return RayDataBatches(images, normalize, sampler, device, timeout_s=options.timeout_s)
    if options.loop == "plain":
        normalize = Normalize(dataset.mean, dataset.std, torch.device("cpu"))
        return DataLoaderBatches(images, normalize, sampler, device)
    size = images.images.numel()
    fits = device.type != "cuda" or size < GPU_MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]
    if not fits:
        say(
            f"the images ({size / 1e9:.1f} GB) do not fit into the GPU's memory: they stay in the host's, and are "
            "copied batch by batch"
        )
    normalize = Normalize(dataset.mean, dataset.std, device)
    storage = device if fits else torch.device("cpu")
    return InMemoryBatches(images, normalize, sampler, device, storage=storage)


def batch_size_per_rank(options: Options, images: int, world_size: int) -> int:
    """Return a rank's batch size. Raises BadOptions for one that is too large, or that can't be divided."""
    most = samples_per_rank(images, world_size)
    ranks = f"{world_size} rank{'s' if world_size > 1 else ''}"
    if options.global_batch_size is None:
        size = min(DEFAULT_BATCH, most) if options.batch_size is None else options.batch_size
    elif options.global_batch_size % world_size:
        raise BadOptions(
            f"--global-batch-size {options.global_batch_size} can't be divided among {ranks}. Give a multiple of "
            f"{world_size}."
        )
    else:
        size = options.global_batch_size // world_size
    if size > most:
        raise BadOptions(
            f"A batch of {size:,} images a rank is more than there are: {images:,} training images for {ranks}. Give "
            f"at most {most:,} a rank."
        )
    if (options.gradient_accumulation_steps or 1) > size:
        raise BadOptions(
            f"A batch of {size} images can't be divided into {options.gradient_accumulation_steps} micro-batches "
            "(--gradient-accumulation-steps)."
        )
    return size
