"""Track a rank's position in its training."""

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class TrainingProgress:
    """The position in the run, and this rank's sums of the current epoch."""

    def __init__(self, device: torch.device) -> None:
        self.epoch = 1
        """The current epoch; between two epochs, the next."""
        self.consumed = 0
        """Training images of this epoch that all ranks have consumed together, each counted once."""
        self.steps = 0
        """Steps of all epochs."""
        self.samples = 0
        """Samples that this rank has processed in all epochs."""
        self.counted = 0
        """Samples of this epoch that this rank counts; in a resumed epoch, rank 0 has all earlier samples."""
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        """Sum of the losses of the counted samples."""
        self._earlier_s = 0.0
        self._began: float | None = None

    def begin(self) -> None:
        """Start the clock of an epoch."""
        self._began = time.perf_counter()

    def seconds(self) -> float:
        """Return how long this epoch took until now, without the gap before a resumption."""
        return self._earlier_s + (0.0 if self._began is None else time.perf_counter() - self._began)

    def add_step(self, samples: int, loss_sum: Tensor, *, consumed: int, counts: bool) -> None:
        """Count a step, after which all ranks together are at `consumed`.

        `counts`: whether this rank's sums include the samples: one rank of each replica does.
        """
        self.steps += 1
        self.samples += samples
        self.consumed = consumed
        if counts:
            self.counted += samples
            self.loss_sum += loss_sum

    def next_epoch(self) -> None:
        """Move on to the next epoch."""
        self.epoch += 1
        self.consumed = self.counted = 0
        self.loss_sum.zero_()
        self._earlier_s, self._began = 0.0, None

    def state_dict(self, replicas: int) -> dict[str, Any]:
        """Return the position and this rank's sums for a checkpoint."""
        return {
            "epoch": self.epoch,
            "consumed": self.consumed,
            "steps": self.steps,
            "samples": self.samples * replicas,
            "taken": self.counted,
            "loss_sum": self.loss_sum.clone(),
            "seconds": self.seconds(),
        }

    def load_state_dict(self, state: Mapping[str, Any], replicas: int, *, first: bool) -> None:
        """Restore the position, and on the first rank the sums of all ranks."""
        self.epoch, self.consumed, self.steps = state["epoch"], state["consumed"], state["steps"]
        self.samples = state["samples"] // replicas
        self.counted = state["taken"] if first else 0
        self.loss_sum.fill_(float(state["loss_sum"]) if first else 0.0)
        self._earlier_s = state["seconds"]
