"""Check a checkpoint, which may come from anywhere, before a job resumes from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from train.errors import BadCheckpoint

State = dict[str, Any]


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
