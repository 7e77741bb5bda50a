"""The training loop that tutorials publish, which the built-in job's loops are compared with.

Pictures of PIL's through RandomHorizontalFlip, ToTensor and Normalize one by one, a DataLoader without workers, the
last smaller batch kept, torch's default arithmetic (TF32 in a GPU's convolutions), Adam, `loss.item()` at every step.
"""

import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from train.data.dataset import Samples
from train.models.networks import build_model
from train.options import Options
from train.torchvision_import import import_torchvision

Batch = tuple[torch.Tensor, torch.Tensor]


class Published:
    """The loop that people copy."""

    def __init__(
        self,
        options: Options,
        images: Samples,
        classes: int,
        device: torch.device,
        *,
        batch_size: int,
    ) -> None:
        transforms = import_torchvision().transforms
        channels, height, width = images.inputs.shape[1:]
        steps = [transforms.ToTensor(), transforms.Normalize([0.5] * channels, [0.25] * channels)]
        if channels == 3:
            steps.insert(0, transforms.RandomHorizontalFlip())
        self._batch_size = batch_size
        self._loader = DataLoader(
            OneByOne(images, transforms.Compose(steps)),
            batch_size,
            shuffle=True,
        )
        self._device = device
        torch.manual_seed(0)
        self._model = build_model(options, (channels, height, width), classes).to(device)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=1e-3)
        self._criterion = nn.CrossEntropyLoss()
        self._batches: Iterator[Batch] = iter(())
        self._running_loss = 0.0

    def __call__(self, steps: int) -> float:
        """Take `steps` steps of whole batches; returns seconds."""
        began = time.perf_counter()
        for _ in range(steps):
            batch = next(self._batches, None)
            if batch is None or len(batch[1]) < self._batch_size:
                self._batches = iter(self._loader)
                batch = next(self._batches)
            self._step(*batch)
        return time.perf_counter() - began

    def _step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        images, labels = images.to(self._device), labels.to(self._device)
        self._optimizer.zero_grad()
        loss = self._criterion(self._model(images), labels)
        loss.backward()
        self._optimizer.step()
        self._running_loss += loss.item()


class OneByOne(TorchDataset[tuple[torch.Tensor, int]]):
    """Images as in torchvision's datasets: arrays that become PIL images one by one."""

    def __init__(self, images: Samples, transform: Callable[..., torch.Tensor]) -> None:
        self._pixels = images.inputs.permute(0, 2, 3, 1).numpy()
        self._labels = images.labels.tolist()
        self._transform = transform

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        pixels = self._pixels[index]
        return self._transform(
            Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
        ), self._labels[index]
