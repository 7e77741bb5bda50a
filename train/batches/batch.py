"""A batch, ready for the network: normalised, on the device; and the protocol of what makes batches."""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from train.data.dataset import Dataset

Batch = tuple[Tensor, Tensor]
"""Images [b, c, h, w] of torch's default float type and labels [b]; or tokens [b, n], and the tokens after each."""
Prepare = Callable[[Tensor], Tensor]
"""Makes a network's input of samples as a dataset has them, on any device."""


class Batches(Protocol):
    """The training batches of one rank."""

    def epoch(self, number: int, batch_size: int, begin: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from sample `begin` of all ranks on. The last batch may be smaller."""
        ...


class Normalize:
    """Converts bytes to numbers with mean 0 and standard deviation 1 in each channel."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> None:
        """`mean` and `std` are of pixels 0 .. 1."""
        dtype = torch.get_default_dtype()
        means = torch.tensor(mean, dtype=torch.float64)
        stds = torch.tensor(std, dtype=torch.float64)
        self._scale = (1 / (255 * stds)).to(device, dtype)[:, None, None]
        self._shift = (-means / stds).to(device, dtype)[:, None, None]

    def __call__(self, images: Tensor) -> Tensor:
        """Convert [..., c, h, w] bytes to torch's default float type."""
        return torch.addcmul(self._shift, images.to(self._scale.dtype), self._scale)


def preparation(dataset: Dataset, device: torch.device) -> Prepare:
    """Return what makes the network's input of the dataset's samples on the device."""
    return torch.Tensor.long if dataset.is_text else Normalize(dataset.mean, dataset.std, device)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for it; return the same tensor if it is there already."""
    if values.device.type == device.type:
        return values
    return values.pin_memory().to(device, non_blocking=True)
