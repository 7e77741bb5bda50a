"""The time for which machines are rented for a training, and their cost. Pure."""

from dataclasses import dataclass

from train.advice.machines import Machines


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A whole training on rented machines."""

    total_s: tuple[float, float]
    """From the order of the machines to the last step: the best case and the worst."""
    usd: float | None
    """In the middle of that range, and at least the shortest time that is billed. `None`: no price is known."""


def training_cost(machines: Machines, samples: float, sample_s: tuple[float, float]) -> Cost:
    """Return the cost of a training with `samples`. `sample_s`: seconds for each, the best case and the worst."""
    best, worst = (machines.setup_s + samples * seconds for seconds in sample_s)
    billed_s = max(machines.min_billed_s, (best + worst) / 2)
    usd = None if machines.hourly_usd is None else machines.hourly_usd * billed_s / 3600
    return Cost(total_s=(best, worst), usd=usd)
