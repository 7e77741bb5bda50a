"""The training run of one rank, from the first weights to the model on disk."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam
from torchmetrics.classification import MulticlassAccuracy

from train.artifacts import save_model
from train.data import DATASETS, TrainingBatches, shard, split
from train.distributed import (
    Place,
    choose_device,
    cpu_threads,
    process_group,
    ranks_on_this_machine,
    this_place,
    usable_cores,
)
from train.models import MODELS
from train.options import Optimizer, Options
from train.report import Epoch, Report
from train.timing import StepTimer, summarize, time_averaging

OPTIMIZERS: dict[Optimizer, Callable[[Iterable[nn.Parameter], float], torch.optim.Optimizer]] = {
    "adam": lambda parameters, lr: Adam(parameters, lr=lr),
    "sgd": lambda parameters, lr: SGD(parameters, lr=lr, momentum=0.9),
}

EVALUATED_AT_ONCE = 1024
"""Held-out images a forward pass."""


def run(options: Options) -> None:
    """Train, evaluate, report, save. Every rank calls it with the same options."""
    place = this_place()
    device = choose_device(options.device, place)
    metrics = os.environ.get("GPUCTL_METRICS")
    with (
        Report(path=Path(metrics) if metrics else None, place=place, options=options) as report,
        process_group(place, device, timeout_s=options.timeout_s),
    ):
        fair = cpu_threads(place, cores=usable_cores(), ranks=ranks_on_this_machine(place))
        torch.set_num_threads(options.threads or fair)
        trainer = Trainer(options, place, device, report)
        report.start(device, steps_per_epoch=len(trainer.batches))
        epochs = []
        for number in range(1, options.epochs + 1):
            epochs.append(trainer.epoch(number))
            report.epoch(epochs[-1])
        report.end(epochs, summarize(trainer.timer.steps))
        if options.save and place.rank == 0:
            path = Path(os.environ.get("GPUCTL_RUN_DIR") or ".") / "artifacts" / "model.pt"
            save_model(trainer.model, path)
            report.say(f"model written to {path}")


class Trainer:
    """The model, the data and the progress of one rank."""

    def __init__(self, options: Options, place: Place, device: torch.device, report: Report) -> None:
        self._options = options
        self._place = place
        self._device = device
        self._report = report

        dataset = DATASETS[options.dataset]()
        training, held_out = split(dataset)
        self.batches = TrainingBatches(
            training,
            batch_size=options.batch_size,
            seed=options.seed,
            rank=place.rank,
            world_size=place.world_size,
            pin_memory=device.type == "cuda",
        )
        self._held_out = shard(held_out, rank=place.rank, world_size=place.world_size)
        self._accuracy = MulticlassAccuracy(num_classes=dataset.classes, average="micro").to(device)

        torch.manual_seed(options.seed)
        self.timer = StepTimer(device)
        self.model = MODELS[options.model](dataset.shape, dataset.classes).to(device)
        """The bare model, without any wrapper."""
        self._parallel: nn.Module = self.model
        if place.world_size > 1:
            parallel = DistributedDataParallel(
                self.model, device_ids=[device] if device.type == "cuda" else None
            )
            time_averaging(parallel, self.timer)
            self._parallel = parallel
        self._optimizer = OPTIMIZERS[options.optimizer](self.model.parameters(), options.lr)
        self._steps = 0
        self._samples = 0

    def epoch(self, number: int) -> Epoch:
        """Take every training image of this rank once, then evaluate. Epochs count from 1."""
        began = time.perf_counter()
        loss, samples = self._train(number)
        seconds = time.perf_counter() - began
        return Epoch(number=number, seconds=seconds, samples=samples, loss=loss, accuracy=self._evaluate())

    def _train(self, epoch: int) -> tuple[float, int]:
        """Mean loss and number of samples, of all ranks; when it returns, all of them have taken their steps."""
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._device)
        samples_before = self._samples
        self.model.train()
        batches = iter(self.batches.epoch(epoch))
        for _ in range(len(self.batches)):
            self.timer.start()
            images, labels = (self._to_device(tensor) for tensor in next(batches))
            self.timer.data_ready()
            loss = cross_entropy(self._parallel(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            self.timer.backward_done()
            self._optimizer.step()
            self._optimizer.zero_grad()
            loss_sum += loss.detach() * len(labels)
            self.timer.end()
            self._count(epoch, loss, len(labels))
        totals = torch.stack([loss_sum, torch.full_like(loss_sum, self._samples - samples_before)])
        if self._place.world_size > 1:
            dist.all_reduce(totals)
        total_loss, samples = totals.tolist()
        return total_loss / samples, int(samples)

    def _count(self, epoch: int, loss: Tensor, samples: int) -> None:
        self._steps += 1
        self._samples += samples
        if self._steps % self._options.log_every == 0:
            self._report.step(
                self._steps,
                epoch=epoch,
                loss=loss.item(),
                samples=self._samples,
                step_time=self.timer.steps[-1],
            )

    @torch.inference_mode()
    def _evaluate(self) -> float:
        """Accuracy on the held-out images, 0 .. 1: every rank counts in its part, torchmetrics adds up the counts."""
        self.model.eval()
        self._accuracy.reset()
        parts = (torch.split(tensor, EVALUATED_AT_ONCE) for tensor in self._held_out.tensors)
        for images, labels in zip(*parts, strict=True):
            self._accuracy.update(self.model(self._to_device(images)), self._to_device(labels))
        return float(self._accuracy.compute())

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True)
