"""The datasets by name.

Every rank has the whole dataset in memory, as bytes or tokens. It is divided among the ranks, augmented and
normalized later, on the device. Training images may also stay in their files, for Ray Data. No module here imports a
heavy package before it has to.
"""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from train.data import cifar10, digits, image_folder, mnist, synthetic, text
from train.data.dataset import Dataset
from train.distributed.environment import DistributedEnvironment
from train.errors import BadOptions
from train.options import DatasetName, Options

READERS: dict[DatasetName, Callable[[Options, DistributedEnvironment], Dataset]] = {
    "digits": digits.read,
    "mnist": mnist.read,
    "cifar10": cifar10.read,
    "synthetic": synthetic.read,
    "folder": image_folder.read,
    "text": text.read,
}


def load_dataset(options: Options, env: DistributedEnvironment) -> Dataset:
    """Load the dataset that the options name. Every rank calls it; one of each machine downloads, the others wait.

    Blocks while it downloads, at most about `train.data.download.WAIT_S` for another process to do so. Raises
    MissingData (it is not there), BadData (it can't be used), BadOptions (the options do not fit it), BadEnvironment
    (a package that reads it is not installed).
    """
    if options.data_pipeline == "ray" and not _on_ray():
        raise BadOptions(
            "--data-pipeline ray has Ray read the images, and Ray did not start this rank: start the job with "
            "gpuctl train --mode ray, or leave the option out."
        )
    return READERS[options.dataset](options, env)


def begin_to_load(options: Options, env: DistributedEnvironment, *, in_thread: bool) -> Callable[[], Dataset]:
    """Return a function that returns the dataset, or raises as `load_dataset` does.

    `in_thread`: a thread reads the dataset from now on. Otherwise the function does.
    """
    if not in_thread:
        return partial(load_dataset, options, env)
    return ThreadPoolExecutor(1, "data").submit(load_dataset, options, env).result


def _on_ray() -> bool:
    """Return whether Ray started this process: it is imported then."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()
