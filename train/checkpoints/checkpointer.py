"""When checkpoints are written, how the ranks share them, and how a job resumes from one.

Rank 0 writes and reads the files. The other ranks send it the state that is theirs alone, and get what it read. So
only rank 0's node has to have the checkpoint, and the number of ranks may change.
"""

import math
import time
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from train.checkpoints import files
from train.checkpoints.checks import State, check_identity, check_optimizer, check_position
from train.distributed.environment import DistributedEnvironment
from train.distributed.process_group import barrier
from train.errors import BadCheckpoint
from train.options import Options
from train.reporting.progress import TrainingProgress

DISK_TIMEOUT_S = 1800.0
"""For rank 0 to write or read a checkpoint, which the others wait for."""


class Resumable(Protocol):
    """What can be written to a checkpoint, and resumed from one."""

    options: Options
    env: DistributedEnvironment
    shapes: list[tuple[int, ...]]
    progress: TrainingProgress
    images: int

    def identity(self) -> State:
        """Return what a checkpoint and the job that resumes from it have to agree on."""
        ...

    def state_dict(self) -> State:
        """Return everything that decides how the run continues, as this rank has it."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Continue from the states of all ranks together, which may have been more or fewer."""
        ...


class Checkpointer:
    """Writes checkpoints when they are due, and resumes from the newest."""

    def __init__(self, trainer: Resumable, folder: Path) -> None:
        self._trainer = trainer
        self._folder = folder
        self._saved = (time.monotonic(), 0.0)
        """When the last one was written, or the job began, and the epochs that had passed then."""

    def due(self) -> bool:
        """Return whether it is time for one. Ranks may differ at the end of an epoch: there, rank 0 decides."""
        progress, options = self._trainer.progress, self._trainer.options
        every = options.checkpoint_every
        seconds, epochs = self._saved
        if every == 0:
            return False
        at_end = progress.consumed == self._trainer.images
        if at_end and progress.epoch == options.epochs:
            return True  # another run may add epochs
        if every is None:
            return at_end and time.monotonic() - seconds >= files.DEFAULT_INTERVAL_S
        return math.floor(self._passed() / every + 1e-9) > math.floor(epochs / every + 1e-9)

    def save(self) -> None:
        """Write a checkpoint. Every rank calls it at the same step."""
        trainer, env = self._trainer, self._trainer.env
        self._saved = (time.monotonic(), self._passed())
        state = trainer.state_dict()
        if env.world_size > 1:
            _gather(state, env.world_size)
        if env.rank == 0:
            files.save(
                self._folder,
                {"of": trainer.identity(), **state},
                step=state["steps"],
                keep=trainer.options.keep_checkpoints,
                epoch=state["epoch"],
                samples=state["samples"],
                world_size=env.world_size,
            )
        # A slow disk is not a rank that hangs.
        barrier(f"checkpoint {state['steps']}", env, timeout_s=DISK_TIMEOUT_S)

    def resume(self) -> str | None:
        """Resume from the newest checkpoint, if there is one. Returns what to tell of it. Raises BadCheckpoint."""
        damaged, newest = self._newest_of_rank_0()
        problem = f"{', '.join(damaged)} {'is' if len(damaged) == 1 else 'are'} damaged"
        if newest is None:
            return (
                f"{problem}, and there is no other checkpoint: starting from the beginning"
                if damaged
                else None
            )
        name, state = newest
        self._load(self._folder / name, state)
        self._saved = (time.monotonic(), self._passed())
        return self._resumed_from(name, state["world_size"]) + (f" ({problem})" if damaged else "")

    def _newest_of_rank_0(self) -> tuple[list[str], tuple[str, State] | None]:
        """Return the damaged checkpoints on rank 0, and the name and the state of its newest whole one."""
        env = self._trainer.env
        found: list[Any] = [([], None)]
        if env.rank == 0:
            newest = files.newest(self._folder)
            damaged = files.skipped(self._folder, newest)
            found = [(damaged, None if newest is None else (newest.name, files.load(newest)))]
        barrier("the newest checkpoint", env, timeout_s=DISK_TIMEOUT_S)
        if env.world_size > 1:
            dist.broadcast_object_list(found, 0)
        damaged, whole = found[0]
        return damaged, whole

    def _load(self, path: Path, state: State) -> None:
        trainer = self._trainer
        try:
            check_identity(state["of"], trainer.identity(), path)
            check_position(state, images=trainer.images)
            check_optimizer(state["optimizer"], trainer.shapes, steps=state["steps"])
            trainer.load_state_dict(state)
        except BadCheckpoint:
            raise
        except Exception as error:  # it may hold anything; what is wrong with it is in the sentence
            reason = (str(error) or type(error).__name__).split("\n")[0].rstrip(".")
            raise BadCheckpoint(
                f"The checkpoint {path} is not one of this job ({reason}). {files.WHAT_TO_DO}"
            ) from error

    def _resumed_from(self, name: str, before: int) -> str:
        progress, now = self._trainer.progress, self._trainer.env.world_size
        done = progress.consumed / self._trainer.images
        position = (
            f"epoch {progress.epoch}, {done:.0%} of it done"
            if done
            else f"the end of epoch {progress.epoch - 1}"
        )
        ranks = f", with {now} rank{'s' if now > 1 else ''} instead of {before}" if before != now else ""
        return f"resuming from {name}: {position}, step {progress.steps}{ranks}"

    def _passed(self) -> float:
        """Return the epochs that have passed, with a fraction."""
        progress = self._trainer.progress
        return progress.epoch - 1 + progress.consumed / self._trainer.images


def _gather(state: State, world_size: int) -> None:
    """Complete rank 0's state by what the other ranks alone know."""
    sums = torch.stack([state["loss_sum"], torch.full_like(state["loss_sum"], state["taken"])])
    dist.all_reduce(sums)
    state["loss_sum"], state["taken"] = sums[0], int(sums[1])
    own: list[Any] = [None] * world_size
    dist.all_gather_object(own, (state["rng"], state["seen"]))
    state["rng"] = [rng for rngs, _ in own for rng in rngs]
    state["seen"] = [part for _, seen in own for part in seen]
