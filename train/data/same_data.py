"""Check that all ranks have the same data: each node reads its own disk.

Ranks with fewer samples would leave the others waiting, and ranks with other samples would train without a word.
"""

import hashlib
from collections.abc import Sequence

import torch.distributed as dist

from train.data.dataset import Dataset, ImageFiles
from train.distributed.environment import DistributedEnvironment
from train.distributed.process_group import name_ranks
from train.errors import BadData

Summary = tuple[str, str]
"""The dataset's sizes in words, and a digest of its description."""


def check_same_data(dataset: Dataset, env: DistributedEnvironment) -> None:
    """Raise BadData on all ranks where one has another dataset. Every rank calls it."""
    if env.world_size == 1:
        return
    local_summary = summarize(dataset)
    of_ranks = [local_summary] * env.world_size
    dist.all_gather_object(of_ranks, local_summary)
    compare(of_ranks)


def summarize(dataset: Dataset) -> Summary:
    """Return the comparable summary of a dataset, without reading its pixels and tokens."""
    parts = [dataset.training, dataset.validation, *([dataset.test] if dataset.test else [])]
    counts = " + ".join(f"{len(part):,}" for part in parts)
    shape = "x".join(map(str, dataset.shape))
    words = f"{counts} samples of shape {shape} in {dataset.classes:,} classes"
    digest = hashlib.sha256(dataset.content.encode())
    for part in parts:
        if not dataset.is_text:
            digest.update(part.labels.numpy().tobytes())
        if isinstance(part, ImageFiles):
            digest.update("\0".join(part.paths).encode(errors="surrogateescape"))
    return words, digest.hexdigest()


def compare(of_ranks: Sequence[Summary]) -> None:
    """Raise BadData where the summary of a rank is not that of rank 0."""
    different = [rank for rank, summary in enumerate(of_ranks) if summary != of_ranks[0]]
    if not different:
        return
    (theirs, _), (ours, _) = of_ranks[different[0]], of_ranks[0]
    have = f"{theirs}, not {ours}" if theirs != ours else "as many samples with another content"
    raise BadData(
        f"The data of {name_ranks(different)} is not that of rank 0: {name_ranks(different[:1])} has {have}. Put the "
        "same files on every node, or name a folder that all nodes share with --data-dir."
    )
