"""Train on one rank: the model, the data and the epochs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.batches.batch import preparation
from train.batches.factory import batch_size_per_rank, training_batches
from train.batches.sampling import samples_per_rank
from train.checkpoints.checkpointer import Checkpointer
from train.data.dataset import Dataset, Samples
from train.data.same_data import check_same_data
from train.distributed.environment import DistributedEnvironment
from train.distributed.process_group import barrier
from train.evaluation import MAX_NUMBERS, MAX_SAMPLES, evaluate, perplexity
from train.models.gpt import GPT, materialise
from train.models.gpt_sizes import GPT_SIZES
from train.models.networks import build_model
from train.optimization.optimizer import build_optimizer, lr_schedule, set_lr
from train.optimization.plateau import Plateau
from train.options import Options
from train.reporting.device_use import DeviceUse, device_use
from train.reporting.metrics import MetricsManager
from train.reporting.progress import TrainingProgress
from train.reporting.report import Epoch, Report
from train.reporting.step_logger import StepLogger
from train.reporting.timing import StepTime, StepTimer, TimeParts, Timing, summarize
from train.step_graph import GraphedStep, allows_graphs, recorder_of
from train.strategies.choice import build_strategy
from train.strategies.degrees import micro_batches
from train.strategies.recompute import recompute_blocks
from train.train_step import (
    ModelWithLoss,
    TrainStep,
    check_single_image,
    micro_batch_size,
    smallest_micro_batch,
)

if TYPE_CHECKING:
    from train.checkpoints.parts import PartsReader

DATA_TIMEOUT_S = 1800.0
"""Timeout until every rank has its data: some nodes may have to download it first."""
PATIENCE, FACTOR = 2, 0.5
"""Schedule `plateau`: epochs without a better validation loss, and the learning rate's factor after these."""
MAX_GROWTH = 16
"""Maximum growth of a batch over its initial size."""
SETTINGS_OF_THIS_RUN = ("lr", "weight_decay", "fused", "capturable")
"""Optimizer settings taken from the options, not from the checkpoint."""
SEED_STRIDE = 1_000_003
"""Distance between the seeds of two ranks."""
NO_GRAPHS = (
    "no step is recorded as a CUDA graph: --graphs on needs GPUs, a single rank or --strategy ddp, and --loop fast. "
    "Leave out --precision fp16 and fp64, --compile, --compression and --activation-checkpointing."
)


class Trainer:
    """A rank's model, data, optimizer and progress."""

    def __init__(
        self,
        options: Options,
        env: DistributedEnvironment,
        device: torch.device,
        report: Report,
        checkpoints: Path,
        parts_of_run: TimeParts,
        load: Callable[[], Dataset],
    ) -> None:
        """`parts_of_run`: collects the run's times. `load`: returns the dataset."""
        self.options = options
        self.env = env
        self._device = device
        self._report = report
        self._run_parts = parts_of_run
        fast = options.loop == "fast"

        self.strategy = build_strategy(options, env, device)
        # Before anything is on the device: from here on the work uses the stream for recording.
        recorder = recorder_of(device) if allows_graphs(options, self.strategy) else None
        with self._run_parts.measure("data"):
            self._data = load()
            barrier("data", env, timeout_s=DATA_TIMEOUT_S)
            check_same_data(self._data, env)
        self.training_samples = len(self._data.training)
        """Training samples of all ranks together."""
        replicas = self.strategy.sizes.replicas
        self._samples = samples_per_rank(self.training_samples, replicas)
        self._batch_size = batch_size_per_rank(options, self.training_samples, replicas)
        self._prepare = preparation(self._data, device)
        self._batches = training_batches(options, self.strategy, self._data, device, report.say)
        names = () if options.is_text else options.metrics
        self._metrics = {
            name: MetricsManager(names, self._data.classes, device, samples=self._samples)
            for name in ("training", "validation", "test")
        }

        torch.manual_seed(options.seed)
        self.timer = StepTimer(device)
        # Convolutions are up to twice as fast with the channels innermost.
        innermost = fast and self.strategy.any_memory_format and not options.is_text
        self._format = torch.channels_last if innermost else torch.contiguous_format
        number = micro_batches(options, self.strategy.sizes, self._batch_size)
        micro_batch = micro_batch_size(self._batch_size, number)
        self.model = self._distributed_model(number, micro_batch)
        """The bare model, without any wrapper, or this rank's part of the model."""
        # The fused kernel of SGD leaves its momentum unset where the first scaled gradients overflow.
        unfused_sgd = options.precision == "fp16" or not self.strategy.fused_sgd
        fused = fast and not (options.optimizer == "sgd" and unfused_sgd)
        self._optimizer = build_optimizer(
            self.strategy, self.model.parameters(), fused=fused, graphs=recorder is not None
        )
        steps = options.epochs * self._steps(self._batch_size, 0)
        wrapped = self.strategy.wrap(
            ModelWithLoss(self.model, options), steps=steps, on_ready=self.timer.gradients_ready
        )
        self._step = TrainStep(
            options,
            wrapped,
            self._optimizer,
            self.timer,
            self.strategy,
            batch_size=self._batch_size,
            micro_batch_size=micro_batch,
        )
        self._graphed = recorder and GraphedStep(self._step, recorder, report.say, self._whole_steps_left)
        if options.graphs == "on" and recorder is None:
            report.say(NO_GRAPHS)
        self._lr_schedule = lr_schedule(options, replicas)
        self._lr = options.lr
        self._plateau = Plateau(
            patience=PATIENCE,
            factor=FACTOR,
            grow_batch=options.grow_batch,
            batch_size=self._batch_size,
            max_batch_size=min(self._samples, MAX_GROWTH * self._batch_size),
        )
        # Every replica has its own dropout masks.
        torch.manual_seed(options.seed + SEED_STRIDE * self.strategy.replica)
        self.progress = TrainingProgress(device)
        numbers = math.prod(self._data.shape) * (self._data.classes if options.is_text else 1)
        # A pipeline's stages exchange tensors of one size.
        self._evaluation_batch = (
            number * micro_batch
            if self.strategy.sizes.pp > 1
            else max(micro_batch, min(MAX_SAMPLES, MAX_NUMBERS // numbers))
        )
        self._step_logger = StepLogger(
            report, self.timer, device, options.log_every, counts=self.strategy.counts
        )
        self._checkpointer = Checkpointer(self, checkpoints)
        self._checkpoint_due = False

    def start(self) -> None:
        """Report the start, and resume from a checkpoint if one exists."""
        self._report.start(
            self._device,
            steps_per_epoch=self._steps(self._batch_size, 0),
            batch_size=self._batch_size,
            parameters=sum(map(math.prod, self.shapes)),
            gradient_bytes=self.strategy.gradient_bytes(self.model),
            strategy=self.strategy.name,
            place=self.strategy.sizes.place(self.env.rank),
            parts_known=self.strategy.times_communication,
            seconds=self._run_parts.seconds,
        )
        self._run_parts.seconds.clear()
        with self._run_parts.measure("checkpoints"):
            resumed = self._checkpointer.resume()
        if resumed:
            self._report.say(resumed)

    def train_epoch(self) -> Epoch:
        """Train on this rank's remaining samples of this epoch, then evaluate.

        The caller reports the epoch before it calls `save_if_due`: a resumed run does not report it again.
        """
        progress = self.progress
        progress.begin()
        first = self.timer.count
        with self._run_parts.measure("steps"):
            loss, samples, self._checkpoint_due = self._train()
        seconds, steps = progress.seconds(), self.timer.steps(first)
        first_steps_s = sum(step.apart_ms for step in steps if step.is_first) / 1000
        self._run_parts.add("first_steps", first_steps_s)
        self._run_parts.add("steps", -first_steps_s)
        # Text has no other training metric, and keeps no logits.
        with self._run_parts.measure("evaluation"):
            training = {"loss": loss} if self.options.is_text else self._metrics["training"].compute()
        validation = self.validate()
        if self.options.schedule == "plateau":
            self._plateau.after_epoch(validation["loss"])
        epoch = Epoch(
            number=progress.epoch,
            seconds=seconds,
            samples=samples,
            first_steps_s=first_steps_s,
            timing=self._timing(steps),
            loss=loss,
            lr=self._lr,
            training=training,
            validation=validation,
        )
        progress.next_epoch()
        return epoch

    def save_if_due(self) -> None:
        """Write the checkpoint that was due at the end of the epoch, if any."""
        if self._checkpoint_due:
            self._save()

    def finish(self) -> None:
        """Wait until the last checkpoint is complete. No step follows."""
        if self._graphed:
            self._graphed.release()
        self._checkpointer.wait()

    def validate(self) -> dict[str, float]:
        """Compute the metrics of the validation samples."""
        return self._evaluate("validation", self._data.validation)

    def test(self) -> dict[str, float] | None:
        """Compute the metrics of the test samples; `None` without test samples."""
        return self._evaluate("test", self._data.test) if self._data.test else None

    def timing(self) -> Timing | None:
        """Return the timing of all steady steps of this run."""
        return self._timing(self.timer.steps())

    def device_use(self) -> DeviceUse:
        """Return how much of their devices the ranks use. Every rank calls it after a step."""
        timing = self.timing()
        return device_use(
            self.model,
            self._optimizer,
            self.strategy.devices,
            self.options.precision,
            graphs=timing is not None and timing.graphs,
        )

    @property
    def flops_per_sample(self) -> float | None:
        """Return the operations for a sample, forward and backward; `None`: not known."""
        size = GPT_SIZES.get(self.options.model)
        length = self.options.seq_len
        return None if size is None else size.flops_per_token(self._data.classes, length) * length

    def identity(self) -> dict[str, Any]:
        """Return the settings on which a checkpoint and the resuming job have to agree."""
        return {
            "model": self.options.model,
            "stem": self.options.stem,
            "dataset": self._data.name,
            "images": self.training_samples,
            "shape": list(self._data.shape),
            "classes": self._data.classes,
            "optimizer": self.options.optimizer,
            "seed": self.options.seed,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state that decides how the run continues.

        A sharded strategy's model and optimizer tensors are in `tensors` instead.
        """
        if self.strategy.sharded:
            # The groups differ only in their weights.
            group = {**self._optimizer.param_groups[0], "params": []}
            whole: dict[str, Any] = {"optimizer": {"state": {}, "param_groups": [group]}}
        else:
            whole = {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}
        return {
            **whole,
            "scaler": self._step.scaler.state_dict() or self.strategy.scaler_state(),
            "plateau": dict(self._plateau.state_dict()),
            "rng": [rng_state(self._device)],
            "seen": self._metrics["training"].state_dict(),
            "world_size": self.env.world_size,
            "strategy": self.strategy.name,
            **self.progress.state_dict(self.strategy.sizes.replicas),
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return this rank's tensors of the model and the optimizer, by the bare model's names."""
        from train.checkpoints import parts

        return parts.tensors(self.strategy, self.model, self._optimizer)

    def load_state_dict(self, state: dict[str, Any], reader: "PartsReader | None" = None) -> None:
        """Restore the states of all ranks; their number may have changed.

        `reader`: reads the model's and optimizer's tensors if the state lacks them.
        """
        [theirs], ours = state["optimizer"]["param_groups"], self._optimizer.param_groups[0]
        theirs |= {name: ours[name] for name in SETTINGS_OF_THIS_RUN if name in ours}
        if reader is not None:
            reader.load(self.strategy, self.model, self._optimizer, theirs)
        else:
            self.strategy.load_model(self.model, state["model"])
            self.strategy.load_optimizer(self._optimizer, state["optimizer"])
        if state["scaler"]:
            self._step.scaler.load_state_dict(state["scaler"])
            self.strategy.load_scaler(state["scaler"])
        self._plateau.load_state_dict(state["plateau"])
        first = self.env.rank == 0
        self.progress.load_state_dict(state, self.strategy.sizes.replicas, first=first)
        if first:
            self._metrics["training"].load_state_dict(state["seen"])
        if (state["world_size"], state.get("strategy", self.strategy.name)) == (
            self.env.world_size,
            self.strategy.name,
        ):
            set_rng_state(state["rng"][self.env.rank], self._device)
        else:
            torch.manual_seed(self.options.seed + SEED_STRIDE * self.strategy.replica + self.progress.steps)

    def _distributed_model(self, micro_batches: int, micro_batch: int) -> nn.Module:
        """Build the model on this rank's device, distributed by the strategy."""
        options, shape = self.options, self._data.shape
        weightless = options.is_text and self.strategy.shards_without_weights
        model = build_model(options, shape, self._data.classes, on_meta=weightless)
        self.shapes = [tuple(p.shape) for p in model.parameters()]
        """Shapes of the whole model's weights."""
        if not weightless:
            model.to(self._device)
        model.to(memory_format=self._format)  # type: ignore[call-overload]
        smallest = smallest_micro_batch(self._samples, self._batch_size, micro_batch)
        # A pipeline fills all micro-batches up to one size.
        single = (micro_batch if self.strategy.sizes.pp > 1 else smallest) == 1
        if single and not options.is_text:
            check_single_image(model, options.model, shape)
        example = self._prepare(torch.zeros(1, *shape, device=self._device, dtype=torch.uint8))
        example = example.to("meta") if weightless else example
        if options.activation_checkpointing:
            recompute_blocks(model)
        self.strategy.shard(model, example, micro_batches=micro_batches, micro_batch_size=micro_batch)
        if weightless:
            assert isinstance(model, GPT)
            materialise(model, self.strategy.weights_device, options.seed)
        return model

    def _steps(self, batch_size: int, consumed: int) -> int:
        """Return the number of steps left in an epoch."""
        return math.ceil(
            samples_per_rank(self.training_samples, self.strategy.sizes.replicas, consumed) / batch_size
        )

    def _whole_steps_left(self, batch_size: int) -> int:
        """Return the number of steps left in the run with `batch_size` samples each."""
        progress, replicas = self.progress, self.strategy.sizes.replicas
        now, later = (
            samples_per_rank(self.training_samples, replicas, at) // batch_size
            for at in (progress.consumed, 0)
        )
        return now + (self.options.epochs - progress.epoch) * later

    def _train(self) -> tuple[float, int, bool]:
        """Take the steps left in the epoch.

        Returns the mean loss and the number of samples, of all ranks, and whether a checkpoint is due now. By then
        all ranks have taken their steps.
        """
        self.model.train()
        progress, factors = self.progress, self._plateau.factors
        replicas, counts = self.strategy.sizes.replicas, self.strategy.counts
        take_step = self._graphed or self._step
        self.timer.interrupt()
        size = min(round(self._batch_size * factors.batch_size), self._samples)
        batches = self._batches.epoch(progress.epoch, size, progress.consumed)
        for _ in range(self._steps(size, progress.consumed)):
            self.timer.start()
            images, labels = next(batches)
            images = images.contiguous(memory_format=self._format)
            self.timer.data_ready(len(labels))
            consumed = min(self.training_samples, progress.consumed + len(labels) * replicas)
            middle = (progress.consumed + consumed) / 2
            self._lr = self._lr_schedule.at(progress.epoch - 1 + middle / self.training_samples) * factors.lr
            set_lr(self._optimizer, self._lr)
            loss, logits = take_step(images, labels)
            self.timer.end()
            loss_sum = loss.double() * len(labels)
            if counts and logits is not None:
                self._metrics["training"].update(logits, labels, loss_sum)
            progress.add_step(len(labels), loss_sum, consumed=consumed, counts=counts)
            self._step_logger.add(progress, loss)
            if consumed < self.training_samples and self._checkpointer.due():
                self._save()
        self._step_logger.finish()
        local_sums = [progress.counted, self.env.rank == 0 and self._checkpointer.due()]
        totals = torch.cat([progress.loss_sum[None], torch.tensor(local_sums).to(progress.loss_sum)])
        if self.env.world_size > 1:
            dist.all_reduce(totals)
        loss_of_all, samples, due = totals.tolist()
        return loss_of_all / samples, int(samples), due > 0

    def _timing(self, steps: Sequence[StepTime]) -> Timing | None:
        """Summarize steps, with the speed of all ranks together."""
        timing = summarize(steps)
        return timing and replace(timing, samples_per_s=timing.samples_per_s * self.strategy.sizes.replicas)

    def _save(self) -> None:
        with self._run_parts.measure("checkpoints"):
            self._checkpointer.save()
        self.timer.interrupt()

    def _evaluate(self, name: str, samples: Samples) -> dict[str, float]:
        with self._run_parts.measure("evaluation"):
            metrics = evaluate(
                self.model,
                samples,
                self._metrics[name],
                self._prepare,
                strategy=self.strategy,
                device=self._device,
                memory_format=self._format,
                batch_size=self._evaluation_batch,
            )
        return {**metrics, "perplexity": perplexity(metrics["loss"])} if self.options.is_text else metrics


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of the CPU's generator, and of the GPU's where the device is one."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Continue with the random numbers that came after `rng_state`."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
