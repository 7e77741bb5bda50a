"""Write checkpoints when they are due, share the work among the ranks, and resume from the newest.

If every rank has the whole model, rank 0 writes one file. With a sharded strategy each rank writes its parts into a
folder. In both cases rank 0 collects the small state of the other ranks. The state is copied first, so training
continues during the write.

Rank 0 reads a file and broadcasts the state: only its node needs the file. Of a folder each rank reads its parts:
every node needs the whole folder. The number of ranks and the strategy may change.
"""

import math
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from train.checkpoints import files
from train.distributed.environment import DistributedEnvironment, ranks_text
from train.distributed.process_group import barrier
from train.errors import BadCheckpoint
from train.options import Options
from train.reporting.progress import TrainingProgress
from train.strategies.strategy import Strategy

if TYPE_CHECKING:
    from train.checkpoints.parts import PartsReader  # importing torch's part takes a second

DISK_TIMEOUT_S = 1800.0
"""Timeout for the other ranks while rank 0 writes or reads a checkpoint."""
State = dict[str, Any]


class Resumable(Protocol):
    """State that a checkpoint saves and restores."""

    options: Options
    env: DistributedEnvironment
    shapes: list[tuple[int, ...]]
    strategy: Strategy
    progress: TrainingProgress
    training_samples: int

    def identity(self) -> State:
        """Return the settings on which a checkpoint and the resuming job have to agree."""
        ...

    def state_dict(self) -> State:
        """Return this rank's state that decides how the run continues."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return this rank's tensors of a sharded model and its optimizer."""
        ...

    def load_state_dict(self, state: State, reader: "PartsReader | None" = None) -> None:
        """Restore the states of all ranks; their number may have changed."""
        ...


class Checkpointer:
    """Writes checkpoints when they are due, and resumes from the newest."""

    def __init__(self, trainer: Resumable, folder: Path) -> None:
        self._trainer = trainer
        self._folder = folder
        self._saved = (time.monotonic(), 0.0)
        """Time of the last checkpoint (or of the job's start), and the epochs that had passed by then."""
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._written: Future[Any] | None = None
        """Result of this rank's write in progress."""
        self._writing: int | None = None
        """Step of the checkpoint that the ranks are writing."""
        self._group: dist.ProcessGroup | None = None

    def due(self) -> bool:
        """Return whether a checkpoint is due. Ranks may differ at the end of an epoch: rank 0 decides then.

        Raises NotWritten if the last checkpoint could not be written.
        """
        self._raise_if_failed(wait=False)
        progress, options = self._trainer.progress, self._trainer.options
        every = options.checkpoint_every
        seconds, epochs = self._saved
        if every == 0:
            return False
        at_end = progress.consumed == self._trainer.training_samples
        if at_end and progress.epoch == options.epochs:
            return True  # another run may add epochs
        if every is None:
            return at_end and time.monotonic() - seconds >= files.DEFAULT_INTERVAL_S
        return math.floor(self._passed() / every + 1e-9) > math.floor(epochs / every + 1e-9)

    def save(self) -> None:
        """Copy the state, and write it in the background. Every rank calls this.

        Waits for the previous checkpoint. Raises NotWritten if that could not be written.
        """
        self.wait()
        trainer, env = self._trainer, self._trainer.env
        self._saved = (time.monotonic(), self._passed())
        state = trainer.state_dict()
        if env.world_size > 1:
            # Rank 0 writes the other ranks' state, too.
            sums = torch.stack([state["loss_sum"], torch.full_like(state["loss_sum"], state["taken"])])
            dist.all_reduce(sums)
            state["loss_sum"], state["taken"] = sums[0], int(sums[1])
            gathered: list[Any] = [None] * env.world_size
            dist.all_gather_object(gathered, (state["rng"], state["seen"]))
            state["rng"] = [rng for rngs, _ in gathered for rng in rngs]
            state["seen"] = [part for _, parts in gathered for part in parts]
        step = self._writing = state["steps"]
        about = {
            "step": step,
            "epoch": state["epoch"],
            "samples": state["samples"],
            "world_size": env.world_size,
        }
        whole = files.serialized({"of": trainer.identity(), **state}) if env.rank == 0 else None
        if trainer.strategy.sharded:
            self._save_parts(whole, about)
        elif whole is not None:
            keep = trainer.options.keep_checkpoints
            self._written = self._writer.submit(files.save, self._folder, whole, keep=keep, **about)

    def wait(self) -> None:
        """Wait until the last checkpoint is complete; if it is in parts, remove older ones. Every rank calls this.

        Raises NotWritten.
        """
        if self._writing is None:
            return
        step = self._writing
        self._raise_if_failed(wait=True)
        self._writing = None
        env = self._trainer.env
        # A slow disk is not a rank that hangs.
        barrier(f"checkpoint {step}", env, timeout_s=DISK_TIMEOUT_S)
        if not self._trainer.strategy.sharded:
            return
        names = [set[str]()]
        try:  # all nodes have parts; rank 0 decides which checkpoints are complete
            if env.rank == 0:
                names = [files.newest_names(self._folder, self._trainer.options.keep_checkpoints, step)]
                files.prune(self._folder, names[0])
            if env.world_size > 1:
                dist.broadcast_object_list(names, 0)
            if env.local_rank == 0 and env.rank != 0:
                files.prune(self._folder, names[0])
        except OSError as error:
            raise files.not_written(files.path_of(self._folder, step), str(error.strerror)) from error

    def _save_parts(self, rest: memoryview | None, about: dict[str, int]) -> None:
        from train.checkpoints import parts

        trainer, env = self._trainer, self._trainer.env
        path = files.path_of(self._folder, about["step"])
        if env.local_rank == 0:  # they would be of an earlier one of that name
            try:
                path.with_suffix(".json").unlink(missing_ok=True)
            except OSError as error:
                raise files.not_written(path, str(error.strerror)) from error
            shutil.rmtree(path, ignore_errors=True)
        barrier(f"folder of checkpoint {about['step']}", env, timeout_s=DISK_TIMEOUT_S)
        self._written = parts.save(path, trainer.tensors(), rest, about, self._of_hosts())

    def _raise_if_failed(self, *, wait: bool) -> None:
        """Raise the writer's error, if any. `wait`: first wait for the writer."""
        if self._written is None or not (wait or self._written.done()):
            return
        written, self._written = self._written, None
        error = written.exception()
        if error is None:
            return
        if self._trainer.strategy.sharded:
            from train.checkpoints import parts

            assert self._writing is not None
            raise parts.explained(error, files.path_of(self._folder, self._writing)) from error
        raise error

    def resume(self) -> str | None:
        """Resume from the newest usable checkpoint. Returns the message to log, or `None` without checkpoints.

        Raises BadCheckpoint.
        """
        env = self._trainer.env
        # Rank 0's checkpoints, the newest first, on every rank.
        broadcast: list[Any] = [files.documents(self._folder) if env.rank == 0 else None]
        if env.world_size > 1:
            dist.broadcast_object_list(broadcast, 0)
        documents: list[tuple[str, State]] = broadcast[0]
        damaged: list[str] = []
        for name, document in documents:
            wrong = self._problems(name, document) if document else [f"{name} is damaged"]
            if wrong:
                damaged += wrong
                continue
            before = self._load(name, document)
            self._saved = (time.monotonic(), self._passed())
            message = self._resumed_from(name, before)
            return message + (f" ({'; '.join(damaged)})" if damaged else "")
        if not damaged:
            return None
        return f"{'; '.join(damaged)}, and there is no other checkpoint: starting from the beginning"

    def _problems(self, name: str, document: State) -> list[str]:
        """Return the problems of a checkpoint's files on any node. The ranks of a node share the work."""
        env = self._trainer.env
        names = sorted(files.files_of(document))
        if "folder" not in document:
            assigned = names if env.rank == 0 else []
        else:
            assigned = names[env.local_rank :: env.local_world_size]
        problems = files.problems(self._folder, document, assigned)
        barrier(f"look at {name}", env, timeout_s=DISK_TIMEOUT_S)
        if env.world_size == 1:
            return problems
        of_all: list[list[str]] = [[]] * env.world_size
        dist.all_gather_object(of_all, problems)
        return sorted({problem for of_rank in of_all for problem in of_rank})

    def _load(self, name: str, document: State) -> int:
        """Load a verified checkpoint. Returns how many ranks wrote it. Raises BadCheckpoint."""
        trainer, path = self._trainer, self._folder / name
        try:
            if "folder" in document:
                from train.checkpoints import parts

                state = files.load(path / parts.REST)
                reader = parts.PartsReader(path, set(document["files"]))
            else:
                state, reader = self._of_rank_0(path), None
            check_identity(state["of"], trainer.identity(), path)
            check_position(state, samples=trainer.training_samples)
            if reader is None:
                check_optimizer(state["optimizer"], trainer.shapes, steps=state["steps"])
            trainer.load_state_dict(state, reader)
            before: int = state["world_size"]
        except BadCheckpoint:
            raise
        except Exception as error:  # the file may hold anything; the message quotes the error
            reason = (str(error) or type(error).__name__).split("\n")[0].rstrip(".")
            raise BadCheckpoint(
                f"The checkpoint {path} is not one of this job ({reason}). {files.WHAT_TO_DO}"
            ) from error
        return before

    def _of_rank_0(self, path: Path) -> State:
        """Return the state from the file, read by rank 0."""
        env = self._trainer.env
        broadcast: list[Any] = [files.load(path) if env.rank == 0 else None]
        barrier("newest checkpoint", env, timeout_s=DISK_TIMEOUT_S)
        if env.world_size > 1:
            dist.broadcast_object_list(broadcast, 0, group=self._of_hosts())
        state: State = broadcast[0]
        return state

    def _of_hosts(self) -> dist.ProcessGroup:
        """Return the group for objects in host memory."""
        if self._group is None:
            # Of its own, as the other ranks' calls may come in another order; and disks may be slow.
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=DISK_TIMEOUT_S))
        return self._group

    def _resumed_from(self, name: str, before: int) -> str:
        progress, now = self._trainer.progress, self._trainer.env.world_size
        done = progress.consumed / self._trainer.training_samples
        position = (
            f"epoch {progress.epoch}, {done:.0%} of it done"
            if done
            else f"the end of epoch {progress.epoch - 1}"
        )
        ranks = f", with {ranks_text(now)} instead of {before}" if before != now else ""
        return f"resuming from {name}: {position}, step {progress.steps}{ranks}"

    def _passed(self) -> float:
        """Return the epochs that have passed, with a fraction."""
        progress = self._trainer.progress
        return progress.epoch - 1 + progress.consumed / self._trainer.training_samples


def check_identity(theirs: State, ours: State, path: Path) -> None:
    """Raise BadCheckpoint if the checkpoint is of another model, dataset, optimizer or seed."""
    different = [name for name, value in ours.items() if theirs.get(name) != value]
    if different:
        was = ", ".join(f"{name} {theirs.get(name)}" for name in different)
        now = ", ".join(f"{name} {ours[name]}" for name in different)
        raise BadCheckpoint(
            f"The checkpoint {path} is of another job: it has {was}; this one {now}. Give the options of that job, "
            "or remove the checkpoint to start from the beginning."
        )


def check_position(state: State, *, samples: int) -> None:
    """Raise ValueError if a checkpoint's position in the run is impossible."""
    minima = {"epoch": 1, "consumed": 0, "steps": 0, "samples": 0, "taken": 0, "world_size": 1}
    for name, smallest in minima.items():
        if type(state[name]) is not int or state[name] < smallest:
            raise ValueError(f"its {name} is {state[name]!r}")
    if state["consumed"] >= samples:
        raise ValueError(f"its consumed is {state['consumed']} of {samples} samples")
    if not (isinstance(state["seconds"], float) and state["seconds"] >= 0):
        raise ValueError(f"its seconds are {state['seconds']!r}")
    if len(state["rng"]) != state["world_size"]:
        raise ValueError(f"it has random numbers of {len(state['rng'])} ranks")
    if not all(isinstance(value, int | float) or value is None for value in state["plateau"].values()):
        raise ValueError("its plateau is not of numbers")
    for part in state["seen"]:
        if not (type(part["samples"]) is int and isinstance(part["loss_sum"], float)):
            raise ValueError("its metrics are not of numbers")


def check_optimizer(state: State, shapes: Sequence[tuple[int, ...]], *, steps: int) -> None:
    """Raise ValueError if an optimizer's state does not fit the weights: its kernels would not check."""
    of_each = state["state"]
    if (steps and not of_each) or set(of_each) - set(range(len(shapes))):
        raise ValueError(
            f"its optimizer has the state of {len(of_each)} weights where there are {len(shapes)}"
        )
    for index, values in of_each.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and tuple(value.shape) not in ((), shapes[index]):
                raise ValueError(f"its optimizer's {name} has shape {tuple(value.shape)} for {shapes[index]}")
