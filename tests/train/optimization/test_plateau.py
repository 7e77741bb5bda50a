import json
import math
import random

import pytest
import torch

from train.optimization.plateau import Factors, Plateau


def plateau(**differs):
    settings = {
        "patience": 1,
        "factor": 0.5,
        "grow_batch": False,
        "batch_size": 32,
        "max_batch_size": 128,
    }
    return Plateau(**settings | differs)


def factors_after(machine, losses):
    """(learning rate, batch size) factors after each loss."""
    every = [machine.after_epoch(loss) for loss in losses]
    return [(factors.lr, factors.batch_size) for factors in every]


def test_plateau_factors_start_at_1():
    assert plateau().factors == Factors(lr=1.0, batch_size=1.0)


@pytest.mark.parametrize(
    ("differs", "losses", "factors"),
    [
        pytest.param({}, [3, 2, 1], [(1, 1)] * 3, id="falling"),
        pytest.param({}, [1, 1, 1, 1, 1], [(1, 1), (1, 1), (0.5, 1), (0.5, 1), (0.25, 1)], id="flat"),
        pytest.param({}, [1, 2, 0.5, 2, 2], [(1, 1)] * 4 + [(0.5, 1)], id="a better one counts from 0 again"),
        pytest.param({"patience": 0}, [1, 1, 1], [(1, 1), (0.5, 1), (0.25, 1)], id="no patience"),
        pytest.param({"patience": 0}, [1, 0.99995], [(1, 1), (0.5, 1)], id="hardly better is not better"),
        pytest.param({"patience": 0}, [1, 0.9998], [(1, 1), (1, 1)], id="better"),
        pytest.param({"patience": 0}, [math.nan, 1, math.inf], [(0.5, 1), (0.5, 1), (0.25, 1)], id="not finite"),
        pytest.param(
            {"patience": 0, "grow_batch": True},
            [1, 1, 1, 1, 1],
            [(1, 1), (1, 2), (1, 4), (0.5, 4), (0.25, 4)],
            id="the batch first, as far as it may",
        ),
        pytest.param(
            {"patience": 0, "grow_batch": True, "max_batch_size": 63},
            [1, 1],
            [(1, 1), (0.5, 1)],
            id="a batch that may not grow",
        ),
    ],
)  # fmt: skip
def test_plateau_factors_follow_the_losses(differs, losses, factors):
    assert factors_after(plateau(**differs), losses) == factors


@pytest.mark.parametrize("patience", [0, 1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_plateau_learning_rate_equals_torch_reduce_lr_on_plateau(patience, seed):
    chance = random.Random(seed)
    losses = [1 / epoch + chance.random() for epoch in range(1, 60)]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=patience, eps=0)
    rates = []
    for loss in losses:
        theirs.step(loss)
        rates.append(optimizer.param_groups[0]["lr"])
    assert [lr for lr, _ in factors_after(plateau(patience=patience), losses)] == rates
    assert min(rates) < 1


@pytest.mark.parametrize("stopped", range(8))
def test_plateau_resumes_from_its_state_dict(stopped):
    losses = [2, 1, 1, 1.5, 1, 0.5, 0.7, 0.6]
    whole = factors_after(plateau(grow_batch=True), losses)
    first, second = plateau(grow_batch=True), plateau(grow_batch=True)
    before = factors_after(first, losses[:stopped])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.factors == first.factors
    assert before + factors_after(second, losses[stopped:]) == whole
