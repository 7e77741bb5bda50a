"""The schedule `plateau`: where the validation loss stops falling, a lower learning rate or a larger batch.

A larger batch makes the gradients less noisy, as a lower learning rate does, and an epoch takes fewer steps.
"""

import math
from dataclasses import dataclass
from typing import TypedDict

THRESHOLD = 1e-4
"""A loss is better if it is lower than the best one by more than that fraction."""


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Factors of the options' learning rate and batch size."""

    lr: float
    batch_size: float


class PlateauState(TypedDict):
    """The state of a plateau, numbers only."""

    best: float
    bad_epochs: int
    lr_drops: int
    batch_growths: int


class Plateau:
    """Decides from the validation loss of each epoch how far the learning rate falls and the batch grows.

    After more than `patience` epochs in a row without a better loss, the learning rate is multiplied by `factor`.
    With `grow_batch` the batch size is divided by it instead, as long as it stays within `max_batch_size`. Ranks
    with the same losses come to the same factors, to the last bit.
    """

    def __init__(
        self, *, patience: int, factor: float, grow_batch: bool, batch_size: int, max_batch_size: int
    ) -> None:
        """`batch_size` is the one at the start; it and `max_batch_size` are both of a rank, or both of all ranks."""
        assert patience >= 0
        assert 0 < factor < 1
        self._patience = patience
        self._factor = factor
        self._grow_batch = grow_batch
        self._batch_size = batch_size
        self._max_batch_size = max_batch_size
        self._best = math.inf
        self._bad_epochs = 0
        self._lr_drops = 0
        self._batch_growths = 0

    @property
    def factors(self) -> Factors:
        """The present factors; both are 1 at the start."""
        return Factors(lr=self._factor**self._lr_drops, batch_size=self._factor**-self._batch_growths)

    def after_epoch(self, validation_loss: float) -> Factors:
        """Return the factors from the next epoch on. A loss that is not a number is not a better one."""
        if validation_loss < self._best * (1 - THRESHOLD):
            self._best = validation_loss
            self._bad_epochs = 0
        else:
            self._bad_epochs += 1
        if self._bad_epochs > self._patience:
            self._bad_epochs = 0
            grown = self._batch_size * self._factor ** -(self._batch_growths + 1)
            if self._grow_batch and grown <= self._max_batch_size:
                self._batch_growths += 1
            else:
                self._lr_drops += 1
        return self.factors

    def state_dict(self) -> PlateauState:
        """Return the state for a checkpoint."""
        return {
            "best": self._best,
            "bad_epochs": self._bad_epochs,
            "lr_drops": self._lr_drops,
            "batch_growths": self._batch_growths,
        }

    def load_state_dict(self, state: PlateauState) -> None:
        """Continue from the state of another plateau."""
        self._best = state["best"]
        self._bad_epochs = state["bad_epochs"]
        self._lr_drops = state["lr_drops"]
        self._batch_growths = state["batch_growths"]
