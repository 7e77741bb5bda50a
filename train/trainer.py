"""The model, the data and the epochs of one rank."""

import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from train import data
from train.batches import Batches, LoadedBatches, Normalize, ResidentBatches, Share, judged
from train.communication import gradient_bytes, parallel
from train.data import Images, Pictures
from train.distributed import Place, meet
from train.errors import BadOptions
from train.metrics import MetricsManager
from train.models import build
from train.optim import learning_rate, optimizer_for, set_lr
from train.options import DEFAULT_BATCH, Augmentation, Options
from train.plateau import Plateau
from train.progress import Progress, StepLog
from train.report import Epoch, Report
from train.resume import Checkpoints, rng_state, set_rng_state
from train.sampling import rank_samples
from train.step import Objective, Step, autocast, check_single_image, part_of, smallest_part
from train.timing import StepTimer

JUDGED_AT_ONCE = 1024
JUDGED_NUMBERS = 2**20
"""Images, and numbers in them, a forward pass that is not trained on; as many images as one that is, at least."""
DATA_TIMEOUT_S = 1800.0
"""Until every rank has its data: some nodes may have to download them first."""
RESIDENT_SHARE = 0.5
"""Of a GPU's free memory, at most, for the images."""
PATIENCE, FACTOR = 2, 0.5
"""Of the schedule `plateau`: epochs without a better validation loss, and what the learning rate then falls to."""
GROWTH = 16
"""How much larger than at the start a batch can become, at most."""
AS_ASKED_FOR = ("lr", "weight_decay", "fused", "capturable")
"""Settings of the optimizer that are this run's, and not those of the checkpoint that it goes on from."""
OF_A_RANK = 1_000_003
"""Between the seeds of two ranks."""


class Trainer:
    """What one rank needs for its epochs."""

    def __init__(
        self, options: Options, place: Place, device: torch.device, report: Report, checkpoints: Path
    ) -> None:
        self.options = options
        self.place = place
        self._device = device
        self._report = report
        fast = options.loop == "fast"

        self._data = data.load(options, place)
        meet("data", place, timeout_s=DATA_TIMEOUT_S)
        self.images = len(self._data.training)
        """To train on, of all ranks."""
        self._most = rank_samples(self.images, place.world_size)
        self._batch_size = batch_size_of(options, self.images, place.world_size)
        self._normalize = Normalize(self._data.mean, self._data.std, device)
        self._batches = self._training_batches(fast=fast)
        self._metrics = {
            name: MetricsManager(options.metrics, self._data.classes, device, samples=self._most)
            for name in ("training", "validation", "test")
        }

        torch.manual_seed(options.seed)
        self.timer = StepTimer(device)
        self.model = build(options, self._data.shape, self._data.classes).to(device)
        """The bare model, without any wrapper."""
        # Convolutions are up to twice as fast with the channels innermost.
        self._format = torch.channels_last if fast else torch.contiguous_format
        self.model.to(memory_format=self._format)  # type: ignore[call-overload]
        part = part_of(self._batch_size, options.accumulate)
        if smallest_part(self._most, self._batch_size, part) == 1:
            check_single_image(self.model, options.model, self._data.shape)
        # The fused kernel of SGD leaves its momentum unset where the first scaled gradients overflow.
        fused = fast and not (options.optimizer == "sgd" and options.precision == "fp16")
        self._optimizer = optimizer_for(options, self.model.parameters(), fused=fused)
        self._step = Step(options, self._objective(), self._optimizer, self.timer, part=part)
        self._rate = learning_rate(options, place.world_size)
        self._lr = options.lr
        self._plateau = Plateau(
            patience=PATIENCE,
            factor=FACTOR,
            grow_batch=options.grow_batch,
            batch_size=self._batch_size,
            max_batch_size=min(self._most, GROWTH * self._batch_size),
        )
        torch.manual_seed(options.seed + OF_A_RANK * place.rank)  # masks of dropout are each rank's own
        self.progress = Progress(device)
        self._judged_at_once = max(part, min(JUDGED_AT_ONCE, JUDGED_NUMBERS // math.prod(self._data.shape)))
        self._log = StepLog(report, self.timer, device, options.log_every)
        self._checkpoints = Checkpoints(self, checkpoints)
        self._due = False

    def start(self) -> None:
        """Tell what is trained, and go on from a checkpoint if there is one."""
        self._report.start(
            self._device,
            steps_per_epoch=self._steps(self._batch_size, 0),
            batch_size=self._batch_size,
            parameters=sum(p.numel() for p in self.model.parameters()),
            gradient_bytes=gradient_bytes(self.model, self.options.compression),
        )
        resumed = self._checkpoints.resume()
        if resumed:
            self._report.say(resumed)

    def take_epoch(self) -> Epoch:
        """Take every training image of this rank that is left in this epoch once, then evaluate.

        To be told, and then kept by `keep`: what a checkpoint has, a run that goes on from it does not tell again.
        """
        progress = self.progress
        progress.begin()
        loss, samples, self._due = self._train()
        seconds = progress.seconds()
        training = self._metrics["training"].compute()
        validation = self.validate()
        if self.options.schedule == "plateau":
            self._plateau.after_epoch(validation["loss"])
        epoch = Epoch(
            number=progress.epoch,
            seconds=seconds,
            samples=samples,
            loss=loss,
            lr=self._lr,
            training=training,
            validation=validation,
        )
        progress.next_epoch()
        return epoch

    def keep(self) -> None:
        """Write a checkpoint where one is due at the end of the epoch that was taken."""
        if self._due:
            self._checkpoints.save()

    def validate(self) -> dict[str, float]:
        """The metrics of the validation images."""
        return self._judge("validation", self._data.validation)

    def test(self) -> dict[str, float] | None:
        """The metrics of the test images; None where there are none beside those of the validation."""
        return self._judge("test", self._data.test) if self._data.test else None

    def identity(self) -> dict[str, Any]:
        """What a checkpoint and the job that goes on from it have to agree on."""
        return {
            "model": self.options.model,
            "stem": self.options.stem,
            "dataset": self._data.name,
            "images": self.images,
            "shape": list(self._data.shape),
            "classes": self._data.classes,
            "optimizer": self.options.optimizer,
            "seed": self.options.seed,
        }

    def state(self) -> dict[str, Any]:
        """All that decides how the run goes on, as this rank has it."""
        progress = self.progress
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._step.scaler.state_dict(),
            "plateau": dict(self._plateau.state_dict()),
            "rng": [rng_state(self._device)],
            "seen": self._metrics["training"].seen(),
            "world_size": self.place.world_size,
            "epoch": progress.epoch,
            "consumed": progress.consumed,
            "steps": progress.steps,
            "samples": progress.samples * self.place.world_size,
            "taken": progress.taken,
            "loss_sum": progress.loss_sum.clone(),
            "seconds": progress.seconds(),
        }

    def take_over(self, state: dict[str, Any]) -> None:
        """Go on where the `state` of all ranks together was; they may have been more or fewer."""
        self.model.load_state_dict(state["model"])
        for theirs, ours in zip(
            state["optimizer"]["param_groups"], self._optimizer.state_dict()["param_groups"], strict=True
        ):
            theirs |= {name: ours[name] for name in AS_ASKED_FOR if name in ours}
        self._optimizer.load_state_dict(state["optimizer"])
        self._step.scaler.load_state_dict(state["scaler"])
        self._plateau.load_state_dict(state["plateau"])
        progress, rank = self.progress, self.place.rank
        progress.epoch, progress.consumed, progress.steps = state["epoch"], state["consumed"], state["steps"]
        progress.samples = state["samples"] // self.place.world_size
        progress.taken = state["taken"] if rank == 0 else 0
        progress.loss_sum.fill_(float(state["loss_sum"]) if rank == 0 else 0.0)
        progress.went(state["seconds"])
        if rank == 0:
            self._metrics["training"].take_over(state["seen"])
        if rank < len(state["rng"]):
            set_rng_state(state["rng"][rank], self._device)
        else:
            torch.manual_seed(self.options.seed + OF_A_RANK * rank + progress.steps)

    def _training_batches(self, *, fast: bool) -> Batches:
        options, place, images = self.options, self.place, self._data.training
        auto: Augmentation = "flip" if self._data.flips else "none"
        which = Share(
            seed=options.seed,
            rank=place.rank,
            world_size=place.world_size,
            augmentation=auto if options.augmentation == "auto" else options.augmentation,
        )
        if isinstance(images, Pictures):
            from train.streamed import StreamedBatches

            return StreamedBatches(images, self._normalize, which, self._device, timeout_s=options.timeout_s)
        size = images.images.numel()
        fits = self._device.type != "cuda" or size < RESIDENT_SHARE * torch.cuda.mem_get_info(self._device)[0]
        if fast:
            if not fits:
                self._report.say(
                    f"the images ({size / 1e9:.1f} GB) are more than the GPU's memory takes: they stay in the "
                    "host's, and are copied batch by batch"
                )
            kept = self._device if fits else torch.device("cpu")
            return ResidentBatches(images, self._normalize, which, self._device, kept=kept)
        normalize = Normalize(self._data.mean, self._data.std, torch.device("cpu"))
        return LoadedBatches(images, normalize, which, self._device)

    def _objective(self) -> Objective | DistributedDataParallel:
        """The model and its loss; the gradients are averaged over the ranks where there are several."""
        objective = Objective(self.model, self.options)
        if self.place.world_size == 1:
            return objective
        return parallel(
            objective,
            self._device,
            compression=self.options.compression,
            bucket_mb=self.options.bucket_mb,
            steps=self.options.epochs * self._steps(self._batch_size, 0),
            on_ready=self.timer.gradients_ready,
        )

    def _steps(self, batch_size: int, consumed: int) -> int:
        """That are left in an epoch."""
        return math.ceil(rank_samples(self.images, self.place.world_size, consumed) / batch_size)

    def _train(self) -> tuple[float, int, bool]:
        """Mean loss and number of samples, of all ranks, and whether a checkpoint is due at the epoch's end.

        When it returns, all ranks have taken their steps.
        """
        self.model.train()
        progress, world_size, factors = self.progress, self.place.world_size, self._plateau.factors
        size = min(round(self._batch_size * factors.batch_size), self._most)
        batches = self._batches.epoch(progress.epoch, size, progress.consumed)
        for _ in range(self._steps(size, progress.consumed)):
            self.timer.start()
            images, labels = next(batches)
            if self._step.compiles(len(labels)) and self.timer.count:
                self.timer.set_aside()
            images = images.contiguous(memory_format=self._format)
            self.timer.data_ready()
            consumed = min(self.images, progress.consumed + len(labels) * world_size)
            middle = (progress.consumed + consumed) / 2
            self._lr = self._rate.at(progress.epoch - 1 + middle / self.images) * factors.lr
            set_lr(self._optimizer, self._lr)
            loss, logits = self._step(images, labels)
            self.timer.end()
            loss_sum = loss.double() * len(labels)
            self._metrics["training"].update(logits, labels, loss_sum)
            progress.took(len(labels), loss_sum, consumed=consumed)
            self._log.took(progress, loss)
            if consumed < self.images and self._checkpoints.due():
                self._checkpoints.save()
        self._log.finish()
        counted = [progress.taken, self.place.rank == 0 and self._checkpoints.due()]
        totals = torch.cat([progress.loss_sum[None], torch.tensor(counted).to(progress.loss_sum)])
        if world_size > 1:
            dist.all_reduce(totals)
        loss_of_all, samples, due = totals.tolist()
        return loss_of_all / samples, int(samples), due > 0

    @torch.inference_mode()
    def _judge(self, name: str, images: Images) -> dict[str, float]:
        """The metrics of images that are not trained on; every rank counts in its part."""
        self.model.eval()
        place = self.place
        if place.world_size > 1:
            for buffer in self.model.buffers():  # running statistics: rank 0's are those that are kept
                dist.broadcast(buffer, 0)
        parts = judged(
            images,
            self._normalize,
            self._device,
            rank=place.rank,
            world_size=place.world_size,
            at_once=self._judged_at_once,
        )
        for part, labels in parts:
            with autocast(self.options.precision, self._device):
                logits = self.model(part.contiguous(memory_format=self._format))
            loss_sum = cross_entropy(logits.double(), labels, reduction="sum")
            self._metrics[name].update(logits, labels, loss_sum)
        return self._metrics[name].compute()


def batch_size_of(options: Options, images: int, world_size: int) -> int:
    """A rank's batch. Raises BadOptions for one that is more than there is, or that can't be divided."""
    most = rank_samples(images, world_size)
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
    if options.accumulate > size:
        raise BadOptions(f"A batch of {size} images can't be computed in {options.accumulate} parts.")
    return size
