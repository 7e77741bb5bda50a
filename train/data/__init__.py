"""The images: where they come from, and which of them are trained on.

A dataset is uint8 in memory, whole, on every rank: it is divided among the ranks, mirrored and normalised later, on
the device. Pictures to train on may also stay in their files, for `train.streamed`. Each dataset has a module of its
own that reads it; none of them imports a heavy package before it has to.
"""

import sys
from collections.abc import Callable

from train.data import cifar10, digits, folder, mnist, synthetic
from train.data.images import Dataset, Images, Pictures
from train.distributed import Place
from train.errors import BadOptions
from train.options import DatasetName, Options

__all__ = ["Dataset", "Images", "Pictures", "load"]

READERS: dict[DatasetName, Callable[[Options, Place], Dataset]] = {
    "digits": digits.read,
    "mnist": mnist.read,
    "cifar10": cifar10.read,
    "synthetic": synthetic.read,
    "folder": folder.read,
}


def load(options: Options, place: Place) -> Dataset:
    """The dataset that the options name. Every rank calls it; a download happens once a machine, others wait for it.

    Blocks while it downloads, at most about `train.data.download.WAIT_S` for another process to do so. Raises
    MissingData (it is not there), BadData (it is, and can't be used), BadOptions (the options ask too much of it),
    BadEnvironment (a package that reads it is not installed).
    """
    if options.data_pipeline == "ray" and not _on_ray():
        raise BadOptions(
            "--data-pipeline ray has Ray read the images, and Ray did not start this rank: start the job with "
            "gpuctl train --mode ray, or leave the option out."
        )
    return READERS[options.dataset](options, place)


def _on_ray() -> bool:
    """Whether Ray started this process: it is loaded then."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()
