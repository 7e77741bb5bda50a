"""The model, the data and the epochs of one rank."""

import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from train.batches.batch import Normalize
from train.batches.factory import batch_size_per_rank, training_batches
from train.batches.sampling import samples_per_rank
from train.checkpoints import parts
from train.checkpoints.checkpointer import Checkpointer
from train.checkpoints.rng import rng_state, set_rng_state
from train.data.dataset import Images
from train.data.load import load_dataset
from train.distributed.environment import DistributedEnvironment
from train.distributed.process_group import barrier
from train.evaluation import MAX_IMAGES, MAX_NUMBERS, evaluate
from train.models.networks import build_model
from train.optimization.lr_schedule import lr_schedule, set_lr
from train.optimization.optimizer import build_optimizer
from train.optimization.plateau import Plateau
from train.options import Options
from train.reporting.metrics import MetricsManager
from train.reporting.progress import TrainingProgress
from train.reporting.report import Epoch, Report
from train.reporting.step_logger import StepLogger
from train.reporting.timing import StepTimer
from train.strategies.choice import build_strategy
from train.train_step import (
    ModelWithLoss,
    TrainStep,
    check_single_image,
    micro_batch_size,
    smallest_micro_batch,
)

DATA_TIMEOUT_S = 1800.0
"""Until every rank has its data: some nodes may have to download it first."""
PATIENCE, FACTOR = 2, 0.5
"""Of the schedule `plateau`: epochs without a better validation loss, and the factor of the learning rate then."""
MAX_GROWTH = 16
"""How many times larger than at the start a batch can become."""
SETTINGS_OF_THIS_RUN = ("lr", "weight_decay", "fused", "capturable")
"""Settings of the optimizer that are taken from the options, not from the checkpoint."""
SEED_STRIDE = 1_000_003
"""Between the seeds of two ranks."""


class Trainer:
    """What one rank needs for its epochs."""

    def __init__(
        self,
        options: Options,
        env: DistributedEnvironment,
        device: torch.device,
        report: Report,
        checkpoints: Path,
    ) -> None:
        self.options = options
        self.env = env
        self._device = device
        self._report = report
        fast = options.loop == "fast"

        self._data = load_dataset(options, env)
        barrier("data", env, timeout_s=DATA_TIMEOUT_S)
        self.images = len(self._data.training)
        """Training images of all ranks together."""
        self._samples = samples_per_rank(self.images, env.world_size)
        self._batch_size = batch_size_per_rank(options, self.images, env.world_size)
        self._normalize = Normalize(self._data.mean, self._data.std, device)
        self._batches = training_batches(options, env, self._data, device, report.say)
        self._metrics = {
            name: MetricsManager(options.metrics, self._data.classes, device, samples=self._samples)
            for name in ("training", "validation", "test")
        }

        torch.manual_seed(options.seed)
        self.timer = StepTimer(device)
        self.strategy = build_strategy(options, env, device)
        self.model = build_model(options, self._data.shape, self._data.classes).to(device)
        """The bare model, without any wrapper; its weights may be this rank's part of them."""
        # Convolutions are up to twice as fast with the channels innermost.
        innermost = fast and self.strategy.any_memory_format
        self._format = torch.channels_last if innermost else torch.contiguous_format
        self.model.to(memory_format=self._format)  # type: ignore[call-overload]
        micro_batch = micro_batch_size(self._batch_size, options.gradient_accumulation_steps)
        if smallest_micro_batch(self._samples, self._batch_size, micro_batch) == 1:
            check_single_image(self.model, options.model, self._data.shape)
        self.strategy.shard(self.model)
        # The fused kernel of SGD leaves its momentum unset where the first scaled gradients overflow.
        unfused_sgd = options.precision == "fp16" or not self.strategy.fused_sgd
        fused = fast and not (options.optimizer == "sgd" and unfused_sgd)
        self._optimizer = build_optimizer(self.strategy, self.model.parameters(), fused=fused)
        wrapped = self.strategy.wrap(
            ModelWithLoss(self.model, options),
            steps=options.epochs * self._steps(self._batch_size, 0),
            on_ready=self.timer.gradients_ready,
        )
        self._step = TrainStep(
            options, wrapped, self._optimizer, self.timer, self.strategy, micro_batch_size=micro_batch
        )
        self._lr_schedule = lr_schedule(options, env.world_size)
        self._lr = options.lr
        self._plateau = Plateau(
            patience=PATIENCE,
            factor=FACTOR,
            grow_batch=options.grow_batch,
            batch_size=self._batch_size,
            max_batch_size=min(self._samples, MAX_GROWTH * self._batch_size),
        )
        torch.manual_seed(options.seed + SEED_STRIDE * env.rank)  # every rank has its own dropout masks
        self.progress = TrainingProgress(device)
        self._evaluation_batch = max(micro_batch, min(MAX_IMAGES, MAX_NUMBERS // math.prod(self._data.shape)))
        self._step_logger = StepLogger(report, self.timer, device, options.log_every)
        self._checkpointer = Checkpointer(self, checkpoints)
        self._checkpoint_due = False

    def start(self) -> None:
        """Report what is trained, and resume from a checkpoint if there is one."""
        self._report.start(
            self._device,
            steps_per_epoch=self._steps(self._batch_size, 0),
            batch_size=self._batch_size,
            parameters=sum(p.numel() for p in self.model.parameters()),
            gradient_bytes=self.strategy.gradient_bytes(self.model),
            strategy=self.strategy.name,
            parts_known=self.strategy.times_communication,
        )
        resumed = self._checkpointer.resume()
        if resumed:
            self._report.say(resumed)

    def train_epoch(self) -> Epoch:
        """Train on every image of this rank that is left in this epoch, then evaluate.

        The caller reports the epoch before it calls `save_if_due`: a resumed run does not report it again.
        """
        progress = self.progress
        progress.begin()
        loss, samples, self._checkpoint_due = self._train()
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

    def save_if_due(self) -> None:
        """Write a checkpoint where one is due at the end of the last epoch."""
        if self._checkpoint_due:
            self._checkpointer.save()

    def finish(self) -> None:
        """Wait until the last checkpoint is whole."""
        self._checkpointer.wait()

    def validate(self) -> dict[str, float]:
        """Compute the metrics of the validation images."""
        return self._evaluate("validation", self._data.validation)

    def test(self) -> dict[str, float] | None:
        """Compute the metrics of the test images; None where only the validation images are there."""
        return self._evaluate("test", self._data.test) if self._data.test else None

    def identity(self) -> dict[str, Any]:
        """Return what a checkpoint and the job that resumes from it have to agree on."""
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

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides how the run continues, as this rank has it.

        Without the tensors of a sharded strategy's model and optimizer, which are `tensors`.
        """
        if self.strategy.sharded:
            groups = [{**group, "params": []} for group in self._optimizer.param_groups]
            whole: dict[str, Any] = {"optimizer": {"state": {}, "param_groups": groups}}
        else:
            whole = {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}
        return {
            **whole,
            "scaler": self._step.scaler.state_dict(),
            "plateau": dict(self._plateau.state_dict()),
            "rng": [rng_state(self._device)],
            "seen": self._metrics["training"].state_dict(),
            "world_size": self.env.world_size,
            **self.progress.state_dict(self.env),
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return what this rank has of the model's and the optimizer's tensors, by the bare model's names."""
        return parts.tensors(self.strategy, self.model, self._optimizer)

    def load_state_dict(self, state: dict[str, Any], reader: parts.PartsReader | None = None) -> None:
        """Continue from the states of all ranks together, which may have been more or fewer.

        `reader`: of the model's and the optimizer's tensors, where they are not in the state.
        """
        groups = state["optimizer"]["param_groups"]
        for theirs, ours in zip(groups, self._optimizer.param_groups, strict=True):
            theirs |= {name: ours[name] for name in SETTINGS_OF_THIS_RUN if name in ours}
        if reader is not None:
            reader.load(self.strategy, self.model, self._optimizer, groups)
        else:
            self.strategy.load_model(self.model, state["model"])
            self.strategy.load_optimizer(self._optimizer, state["optimizer"])
        self._step.scaler.load_state_dict(state["scaler"])
        self._plateau.load_state_dict(state["plateau"])
        self.progress.load_state_dict(state, self.env)
        rank = self.env.rank
        if rank == 0:
            self._metrics["training"].load_state_dict(state["seen"])
        if rank < len(state["rng"]):
            set_rng_state(state["rng"][rank], self._device)
        else:
            torch.manual_seed(self.options.seed + SEED_STRIDE * rank + self.progress.steps)

    def _steps(self, batch_size: int, consumed: int) -> int:
        """Return the number of steps that are left in an epoch."""
        return math.ceil(samples_per_rank(self.images, self.env.world_size, consumed) / batch_size)

    def _train(self) -> tuple[float, int, bool]:
        """Take the steps that are left in the epoch.

        Returns the mean loss and the number of samples, of all ranks, and whether a checkpoint is due now. All ranks
        have taken their steps then.
        """
        self.model.train()
        progress, world_size, factors = self.progress, self.env.world_size, self._plateau.factors
        size = min(round(self._batch_size * factors.batch_size), self._samples)
        batches = self._batches.epoch(progress.epoch, size, progress.consumed)
        for _ in range(self._steps(size, progress.consumed)):
            self.timer.start()
            images, labels = next(batches)
            if self._step.compiles(len(labels)) and self.timer.count:
                self.timer.exclude()
            images = images.contiguous(memory_format=self._format)
            self.timer.data_ready()
            consumed = min(self.images, progress.consumed + len(labels) * world_size)
            middle = (progress.consumed + consumed) / 2
            self._lr = self._lr_schedule.at(progress.epoch - 1 + middle / self.images) * factors.lr
            set_lr(self._optimizer, self._lr)
            loss, logits = self._step(images, labels)
            self.timer.end()
            loss_sum = loss.double() * len(labels)
            self._metrics["training"].update(logits, labels, loss_sum)
            progress.add_step(len(labels), loss_sum, consumed=consumed)
            self._step_logger.add(progress, loss)
            if consumed < self.images and self._checkpointer.due():
                self._checkpointer.save()
        self._step_logger.finish()
        counts = [progress.taken, self.env.rank == 0 and self._checkpointer.due()]
        totals = torch.cat([progress.loss_sum[None], torch.tensor(counts).to(progress.loss_sum)])
        if world_size > 1:
            dist.all_reduce(totals)
        loss_of_all, samples, due = totals.tolist()
        return loss_of_all / samples, int(samples), due > 0

    def _evaluate(self, name: str, images: Images) -> dict[str, float]:
        return evaluate(
            self.model,
            images,
            self._metrics[name],
            self._normalize,
            env=self.env,
            device=self._device,
            precision=self.options.precision,
            memory_format=self._format,
            batch_size=self._evaluation_batch,
        )
