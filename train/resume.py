"""Going on where a run was interrupted, to the same end: what a checkpoint holds, and how the ranks share it.

Rank 0 writes and reads the files; the other ranks tell it what they alone know, and are told what it read. So only
rank 0's node has to have the checkpoint, and the ranks may be more or fewer than those that wrote it.
"""

import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from train import checkpoint
from train.distributed import meet
from train.errors import BadCheckpoint

if TYPE_CHECKING:
    from train.trainer import Trainer

State = dict[str, Any]
DISK_TIMEOUT_S = 1800.0
"""For rank 0 to write or read a checkpoint, which the others wait for."""


class Checkpoints:
    """Writes them when it is time, and goes on from the newest."""

    def __init__(self, trainer: "Trainer", folder: Path) -> None:
        self._trainer = trainer
        self._folder = folder
        self._saved = (time.monotonic(), 0.0)
        """When the last one was written, or the job began, and epochs that had passed then."""

    def due(self) -> bool:
        """Whether it is time for one. Ranks may differ at the end of an epoch: there, rank 0 decides."""
        progress, options = self._trainer.progress, self._trainer.options
        every = options.checkpoint_every
        seconds, epochs = self._saved
        if every == 0:
            return False
        at_end = progress.consumed == self._trainer.images
        if at_end and progress.epoch == options.epochs:
            return True  # another run may add epochs
        if every is None:
            return at_end and time.monotonic() - seconds >= checkpoint.APART_S
        return math.floor(self._passed() / every + 1e-9) > math.floor(epochs / every + 1e-9)

    def save(self) -> None:
        """Every rank calls it at the same step."""
        trainer, place = self._trainer, self._trainer.place
        self._saved = (time.monotonic(), self._passed())
        state = trainer.state()
        if place.world_size > 1:
            sums = torch.stack([state["loss_sum"], torch.full_like(state["loss_sum"], state["taken"])])
            dist.all_reduce(sums)
            state["loss_sum"], state["taken"] = sums[0], int(sums[1])
            own: list[Any] = [None] * place.world_size
            dist.all_gather_object(own, (state["rng"], state["seen"]))
            state["rng"] = [rng for rngs, _ in own for rng in rngs]
            state["seen"] = [part for _, seen in own for part in seen]
        if place.rank == 0:
            checkpoint.save(
                self._folder,
                {"of": trainer.identity(), **state},
                step=state["steps"],
                keep=trainer.options.keep_checkpoints,
                epoch=state["epoch"],
                samples=state["samples"],
                world_size=place.world_size,
            )
        # A slow disk is not a rank that hangs.
        meet(f"checkpoint {state['steps']}", place, timeout_s=DISK_TIMEOUT_S)

    def resume(self) -> str | None:
        """Go on from the newest checkpoint, if there is one; what is to be told then. Raises BadCheckpoint."""
        trainer, place = self._trainer, self._trainer.place
        found: list[Any] = [([], None)]
        if place.rank == 0:
            newest = checkpoint.newest(self._folder)
            damaged = checkpoint.passed_over(self._folder, newest)
            found = [(damaged, None if newest is None else (newest.name, checkpoint.load(newest)))]
        meet("the newest checkpoint", place, timeout_s=DISK_TIMEOUT_S)
        if place.world_size > 1:
            dist.broadcast_object_list(found, 0)
        damaged, whole = found[0]
        passed = f"{', '.join(damaged)} {'is' if len(damaged) == 1 else 'are'} damaged"
        if whole is None:
            return (
                f"{passed}, and there is no other checkpoint: starting from the beginning"
                if damaged
                else None
            )
        name, state = whole
        path = self._folder / name
        try:
            _check_identity(state["of"], trainer.identity(), path)
            check_position(state, images=trainer.images)
            check_optimizer(state["optimizer"], trainer.model.parameters(), steps=state["steps"])
            trainer.take_over(state)
        except BadCheckpoint:
            raise
        except Exception as error:  # it may hold anything; what is wrong with it is in the sentence
            reason = (str(error) or type(error).__name__).split("\n")[0].rstrip(".")
            raise BadCheckpoint(
                f"The checkpoint {path} is not one of this job ({reason}). {checkpoint.ANEW}"
            ) from error
        self._saved = (time.monotonic(), self._passed())
        progress, done = trainer.progress, trainer.progress.consumed / trainer.images
        where = (
            f"epoch {progress.epoch}, {done:.0%} of it done"
            if done
            else f"the end of epoch {progress.epoch - 1}"
        )
        before, now = state["world_size"], place.world_size
        ranks = f", with {now} rank{'s' if now > 1 else ''} in place of {before}" if before != now else ""
        instead = f" ({passed})" if damaged else ""
        return f"resuming from {name}: {where}, step {progress.steps}{ranks}{instead}"

    def _passed(self) -> float:
        """Epochs, with a fraction."""
        progress = self._trainer.progress
        return progress.epoch - 1 + progress.consumed / self._trainer.images


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """This rank's random numbers to come."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Go on with the random numbers of `rng_state`."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def check_position(state: State, *, images: int) -> None:
    """Raises ValueError where the numbers of a checkpoint are none that a run can have come to."""
    least = {"epoch": 1, "consumed": 0, "steps": 0, "samples": 0, "taken": 0, "world_size": 1}
    for name, smallest in least.items():
        if type(state[name]) is not int or state[name] < smallest:
            raise ValueError(f"its {name} is {state[name]!r}")
    if state["consumed"] >= images:
        raise ValueError(f"its consumed is {state['consumed']} of {images} images")
    if not (isinstance(state["seconds"], float) and state["seconds"] >= 0):
        raise ValueError(f"its seconds are {state['seconds']!r}")
    if len(state["rng"]) != state["world_size"]:
        raise ValueError(f"it has random numbers of {len(state['rng'])} ranks")
    if not all(isinstance(value, int | float) or value is None for value in state["plateau"].values()):
        raise ValueError("its plateau is not of numbers")
    for part in state["seen"]:
        if not (type(part["samples"]) is int and isinstance(part["loss_sum"], float)):
            raise ValueError("its metrics are not of numbers")


def check_optimizer(state: State, parameters: Iterable[Tensor], *, steps: int) -> None:
    """Raises ValueError where an optimizer's state is not of these parameters: its kernels would not look."""
    of_each = state["state"]
    shapes = [tuple(parameter.shape) for parameter in parameters]
    if (steps and not of_each) or set(of_each) - set(range(len(shapes))):
        raise ValueError(
            f"its optimizer has the state of {len(of_each)} weights where there are {len(shapes)}"
        )
    for index, values in of_each.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and tuple(value.shape) not in ((), shapes[index]):
                raise ValueError(f"its optimizer's {name} has shape {tuple(value.shape)} for {shapes[index]}")


def _check_identity(theirs: State, ours: State, path: Path) -> None:
    different = [name for name, value in ours.items() if theirs.get(name) != value]
    if different:
        was = ", ".join(f"{name} {theirs.get(name)}" for name in different)
        now = ", ".join(f"{name} {ours[name]}" for name in different)
        raise BadCheckpoint(
            f"The checkpoint {path} is of another job: it has {was}; this one {now}. Give the options of that job, "
            "or remove the checkpoint to start from the beginning."
        )
