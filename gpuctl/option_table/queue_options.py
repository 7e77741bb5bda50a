"""The options of `gpuctl queue add`, in addition to the options of `gpuctl train`."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from gpuctl.errors import Usage
from inventories.option import option
from inventories.runs.labels import MAX_NAME
from remote.shared.secret_arguments import is_secret

MAX_POINTS = 1_000
SWEEP_TAG = "sweep"
"""Tag of all runs of a sweep, by which `results` selects them."""
SWEEP_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
"""Value of the tag unless the user gave another."""
_add = partial(option, commands=("queue add",))
NOT_QUEUED = frozenset(
    {"detach", "fresh", "share_outputs", "resume", "resume_from", "max_restarts", "on_hang"}
)
"""Keywords of `train` for which gpuctl has to stay, or that change what another run uses."""


def sweep_values(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the options of a sweep with their values: `lr=0.1,0.01`. Raises Usage."""
    sweep: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        points = tuple(values.split(","))
        if not (name.strip("-") and equals and all(points)) or any(letter.isspace() for letter in name):
            raise Usage(f"--sweep {word} can't be read: write an option and its values, such as lr=0.1,0.01")
        if any(is_secret(name, point) for point in points):
            raise Usage(
                f"--sweep {name} would show secrets, as its values become the runs' names: add a run for each value."
            )
        sweep[name.lstrip("-")] = tuple(dict.fromkeys(points))
    if math.prod(map(len, sweep.values())) > MAX_POINTS:
        raise Usage(f"--sweep makes more than {MAX_POINTS} entries: give fewer values.")
    return sweep


def grid(sweep: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return the points of a sweep's grid; the last option changes fastest. One empty point: no sweep. Pure."""
    return [dict(zip(sweep, values, strict=True)) for values in product(*sweep.values())]


def point_text(point: Mapping[str, str]) -> str:
    """Return a point of the grid as people write it: `lr=0.1,seed=2`."""
    return ",".join(f"{name}={value}" for name, value in point.items())


def point_name(name: str, point: Mapping[str, str], number: int) -> str:
    """Return the name of the run at a point: `base-lr=0.1-seed=2`, or with its number if that is too long."""
    words = "-".join(f"{option}={value}" for option, value in point.items())
    full = f"{name}-{re.sub(r'[^A-Za-z0-9_.=+-]', '_', words)}"
    return full if len(full) <= MAX_NAME else f"{name[: MAX_NAME - 6]}-{number}"


# fmt: off
@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """The options of `gpuctl queue add`, in addition to the options of `gpuctl train`."""

    priority: int = _add(
        "--priority", default=0, metavar="N", min=-1_000_000, max=1_000_000,
        help="Entries with a higher priority start first (default: 0).",
    )
    after: str | None = _add(
        "--after", metavar="RUN",
        help="Start once this run or entry has ended, however it ended.",
    )
    sweep: Mapping[str, Sequence[str]] = _add(
        "--sweep", default={}, metavar="NAME=V,V", kind=str, multiple=True, read=sweep_values,
        help="Add an entry for each value of a script's option, such as lr=0.1,0.01. Repeatable: each combination.",
    )
# fmt: on


def queue_settings(**options: Any) -> QueueSettings:  # noqa: ANN401 - as the command line has them
    """Return the settings for options of the command line. Raises Usage for a sweep that can't be read."""
    return QueueSettings(**{**options, "sweep": sweep_values(options["sweep"])})
