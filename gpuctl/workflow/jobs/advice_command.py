"""Commands for a row of `advise`: rent the machines, train on them, remove them.

On the machines of a cluster, the commands are the training alone.
"""

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuctl.workflow.runs.request.request import DATA_OPTIONS, value_of
from gpuctl.workflow.runs.strategy.ask import min_billed_s
from inventories.machine import Inventory
from inventories.specs.checks import MIN_TTL_S
from provision.clouds import describe, price_region
from provision.pricing.catalog import SHAPES
from provision.pricing.prices import Prices
from provision.pricing.spending import ttl_text
from provision.rented.planning.planned_resources import disk_hourly_usd

TTL_MARGIN = 1.25
"""Times the slowest forecast: validation, checkpoints and the download of the data are not in it."""
TTL_STEPS_S = ((4 * 3600.0, 600.0), (math.inf, 3600.0))
"""Below a time, the step to which --ttl is rounded up."""
BOOT_VOLUME_GB = 200
"""Of each machine, as in a plan for an image that needs no more."""
COST_MARGIN = 1.1
"""Times the list price: an image may need a larger boot volume."""
PACKAGES: Mapping[str, str] = {"--tokenizer": "tokenizers"}
"""Options of the built-in job that need a package on the nodes."""
FILE_OPTIONS = (*DATA_OPTIONS, "--tokenizer")
"""Options of the built-in job for files on the nodes."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """The prices of a command, and where they hold."""

    prices: Prices
    region: str | None
    """Region as typed. `None`: each provider's default for prices."""
    large_folders: frozenset[str] = frozenset()
    """Folders of this computer that `push` copies only with --yes."""


def command_of(row: Mapping[str, Any], account: Account) -> str:
    """Return the commands of a row for machines to rent, joined by `&&`."""
    training = _training(row["words"], account.large_folders)
    return " && ".join(map(shlex.join, (_up(row, account), *training, ["gpuctl", "down"])))


def command_on(inventory: Inventory, row: Mapping[str, Any], large: Collection[str]) -> str:
    """Return the commands of a row for machines of a cluster, joined by `&&`. `large`: as `large_folders` returns."""
    nnodes = ["--nnodes", str(row["count"])] if row["count"] < len(inventory.machines) else []
    training = _training(row["words"], large, cluster=["--cluster", inventory.cluster], nnodes=nnodes)
    return " && ".join(map(shlex.join, training))


def _training(
    job_words: Sequence[str],
    large: Collection[str],
    *,
    cluster: Sequence[str] = (),
    nnodes: Sequence[str] = (),
) -> list[list[str]]:
    """Return the commands that copy the job's files to the nodes, and the one that trains."""
    words, pushes = list(job_words), []
    for option in FILE_OPTIONS:
        value = value_of(words, option)
        if value is None or not (path := Path(value)).exists():
            continue  # a path that is not on this computer is one of the nodes already
        typed = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        pushes.append(["gpuctl", "push", *cluster, *["--yes"] * (str(path) in large), str(typed)])
        words = _with_value(words, option, f"~/{path.name}")
    pip = [f"--pip={package}" for option, package in PACKAGES.items() if value_of(words, option) is not None]
    return [*pushes, ["gpuctl", "train", *cluster, *nnodes, *pip, "--", *words]]


def _up(row: Mapping[str, Any], account: Account) -> list[str]:
    """Return the command that rents the machines, with its limits if the duration is known."""
    shape = SHAPES[row["shape"]]
    words = ["gpuctl", "up", "--shape", shape.name, "--count", str(row["count"])]
    if (region := price_region(shape.provider, account.region)) is not None:
        words += ["--region", region]
    if row["total_s"] is None:
        return words
    limit_s = ttl_s(row["total_s"][1])
    words += ["--ttl", ttl_text(limit_s)]
    provider = shape.provider
    disk_usd = disk_hourly_usd(
        provider,
        region,
        BOOT_VOLUME_GB,
        usd_per_gb_month=account.prices.disk_usd_per_gb_month(provider, region),
    )
    other_usd = None if disk_usd is None else disk_usd + describe(provider).address_hourly_usd
    if row["hourly_usd"] is None or other_usd is None:
        return words
    hourly_usd = row["hourly_usd"] + row["count"] * other_usd
    billed_s = max(limit_s, min_billed_s(shape))
    return [*words, "--max-cost", f"{math.ceil(COST_MARGIN * hourly_usd * billed_s / 3600)}"]


def ttl_s(forecast_s: float) -> float:
    """Return the time limit for machines that are needed for `forecast_s` at most."""
    wanted_s = max(MIN_TTL_S, TTL_MARGIN * forecast_s)
    step_s = next(step_s for below_s, step_s in TTL_STEPS_S if wanted_s <= below_s)
    return math.ceil(wanted_s / step_s) * step_s


def with_absolute_paths(words: Sequence[str]) -> list[str]:
    """Return the job's options with absolute paths for files on this computer: the job's part runs elsewhere."""
    options = list(words)
    for option in FILE_OPTIONS:
        value = value_of(options, option)
        if value is not None and (path := Path(value).expanduser()).exists():
            options = _with_value(options, option, str(path.resolve()))
    return options


def large_folders(words: Sequence[str]) -> frozenset[str]:
    """Return the folders of the job's options that are on this computer, and that `push` copies only with --yes."""
    from remote.files.tree import MAX_BYTES, MAX_FILES

    large = set()
    for folder in map(Path, filter(None, (value_of(words, option) for option in FILE_OPTIONS))):
        sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
        if sum(sizes) > MAX_BYTES or len(sizes) > MAX_FILES:
            large.add(str(folder))
    return frozenset(large)


def _with_value(words: Sequence[str], option: str, value: str) -> list[str]:
    """Return the words with another value of an option, wherever it is."""
    changed: list[str] = []
    for word in words:
        before = changed[-1] if changed else ""
        if before == option:
            changed.append(value)
        else:
            changed.append(f"{option}={value}" if word.startswith(f"{option}=") else word)
    return changed
