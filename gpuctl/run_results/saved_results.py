"""Saved results: the record of a launch, the runs that a run continues, the settings in which several differ."""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from gpuctl import text
from gpuctl.scripts.arguments import named_values
from inventories.disk.store import RunFolder
from inventories.errors import InventoryError
from inventories.runs.labels import MAX_NAME
from inventories.runs.result import Result
from inventories.runs.run import Run, RunOptions
from inventories.text import plural
from remote.shared.addresses import without_logins
from remote.shared.secret_arguments import without_secrets

Setting: TypeAlias = tuple[str, str]
"""Its kind, `option` for an option of the script, and its name."""


WIDTH = 30
"""Characters of a value, and of a name."""


ARGUMENTS = "arguments"
"""The name of words that belong to no option."""


def launch_of(result: Result) -> Run | None:
    """Return the record of the launch. `None`: it can't be read."""
    try:
        return RunFolder(Path(result.dir)).load_run()
    except (InventoryError, OSError):
        return None


def args_of(result: Result) -> tuple[str, ...]:
    """Return the script's arguments from the record of the launch. Empty: the record can't be read."""
    run = launch_of(result)
    return () if run is None else run.args


def earlier_of(result: Result) -> list[Result]:
    """Return the runs that a run continues, the oldest first, as far as their results can be read."""
    earlier: list[Result] = []
    run, visited = result, {result.run}
    while run.resumed_from is not None and run.resumed_from not in visited:
        visited.add(run.resumed_from)
        try:
            before = RunFolder(Path(result.dir).parent / run.resumed_from).load_result()
        except (InventoryError, OSError):
            break
        if before is None:
            break
        earlier.insert(0, before)
        run = before
    return earlier


def job_of(result: Result) -> tuple[str | None, ...]:
    """Return the job of a run: its script, arguments, model and data set."""
    return result.script, *args_of(result), result.train.model, result.train.dataset


def is_other_layout(result: Result, base: Result) -> bool:
    """Return whether a run is the job of `base` with other numbers of nodes or ranks: the speeds show the scaling."""
    layouts = {(run.nnodes, run.world_size) for run in (result, base)}
    return len(layouts) == 2 and job_of(result) == job_of(base)


def nothing_was_left(result: Result) -> bool:
    """Return whether the built-in job resumed a finished run, and so had no epoch to train."""
    train = result.train
    return (
        result.script == "built-in"
        and result.status == "succeeded"
        and result.resumed_from is not None
        and train.epochs is not None
        and not train.epoch_s
        and not train.loss
    )


def differences(results: Sequence[Result], *, layout: bool = True, terse: bool = False) -> list[str]:
    """Return, for each run, the settings that not all runs have: `lr 0.1, without amp`.

    Empty: the settings are equal. Values of variables, changed files and packages behind the name of a file are not
    compared. Without `layout`, the number of nodes and ranks does not count. `terse`: a run that has some of these
    settings is described by them alone.
    """
    return described_settings(settings_of(results, layout=layout), terse=terse)


def settings_of(results: Sequence[Result], *, layout: bool = True) -> dict[Setting, list[str | None]]:
    """Return each setting that a run has, with its value in every run. `None`: the run was not given it."""
    return _by_setting([_settings(result, launch_of(result), layout=layout) for result in results])


def changes(before: Run, run: Run) -> str:
    """Return the settings of a run that an earlier one did not have: `lr 0.1, without amp`. Empty: no such."""
    return described_settings(_by_setting([_settings(each, each, layout=True) for each in (before, run)]))[1]


def _by_setting(runs: Sequence[Mapping[Setting, str]]) -> dict[Setting, list[str | None]]:
    names = dict.fromkeys(itertools.chain.from_iterable(runs))
    return {name: [run.get(name) for run in runs] for name in names}


def described_settings(settings: Mapping[Setting, Sequence[str | None]], *, terse: bool = False) -> list[str]:
    """Return a text for each run, of the settings that differ. `settings`: at least the script."""
    differing = {name: values for name, values in settings.items() if len(set(values)) > 1}
    texts = []
    for at in range(len(next(iter(settings.values())))):
        known = {name: values for name, values in differing.items() if values[at] is not None}
        shown = known if terse and known else differing
        texts.append(", ".join(phrase(name, values[at], values) for name, values in shown.items()))
    return texts


def phrase(setting: Setting, value: str | None, values: Sequence[str | None]) -> str:
    """Return a setting with its value: `lr 0.1`, `without amp`. `values`: the setting's values in all runs."""
    kind, name = setting
    shown = text.shorten(text.clean(value or ""), WIDTH)
    label = text.shorten(text.clean(name), WIDTH)
    if value is None:
        return (
            f"{label} not given"
            if kind == "option" and any(values) and name != ARGUMENTS
            else f"without {label}"
        )
    return shown if kind != "option" or name == ARGUMENTS else f"{label} {shown}".rstrip()


def labels_of(results: Sequence[Result]) -> list[str]:
    """Return a label for each run: `fast: lr 0.5`; without a name of its own, also the end of its id.

    Runs with the same settings are labelled with their ranks.
    """
    labels = []
    for result, name, settings in zip(results, names_of(results), _settings_beside(results), strict=True):
        if result.name is None:
            labels.append(f"{settings or plural(result.world_size, 'rank')}, {_end_of(result)}")
        else:
            labels.append(f"{name}: {settings}" if settings else name)
    return labels


def descriptions_of(results: Sequence[Result]) -> list[str]:
    """Return each run's name, or else its id, with the settings that not all have: `fast (lr 0.5)`."""
    return [
        f"{name} ({settings})" if settings else name
        for name, settings in zip(names_of(results), _settings_beside(results), strict=True)
    ]


def names_of(results: Sequence[Result]) -> list[str]:
    """Return each run's name, with the end of its id if others have it, too; without a name its id."""
    names = [result.name for result in results]
    return [
        text.clean(
            result.run
            if result.name is None
            else result.name
            if names.count(result.name) == 1
            else f"{result.name} {_end_of(result)}",
            MAX_NAME + len(result.run),
        )
        for result in results
    ]


def _end_of(result: Result) -> str:
    return result.run.rsplit("-", 1)[-1]


def _settings_beside(results: Sequence[Result]) -> list[str]:
    """Return the settings that not all runs have. Empty: no setting differs, or the run's name has it: `lr-0.1`."""
    return [
        "" if all(_joined(each) in _joined(result.name or "") for each in settings.split(", ")) else settings
        for result, settings in zip(results, differences(results, terse=True), strict=True)
    ]


def _joined(words: str) -> str:
    """Return words with `-` around each of them."""
    return "-" + re.sub(r"[^\w.]|_", "-", words) + "-"


def setting_text(setting: Setting, value: str | None) -> str:
    """Return the value of a setting without its name, which stands above it: `0.1`, `yes`, `2`, `-`."""
    kind, name = setting
    if value is None:
        return text.UNKNOWN
    if kind == "option":
        return text.clean(value) or "yes"
    return text.clean(value.split()[0] if name in ("ranks", "nodes") else value.removeprefix(f"{name} "))


def _settings(result: Result | Run, run: Run | None, *, layout: bool) -> dict[Setting, str]:
    """Return the settings of a run, of its result and of its record. A setting that it was not given is missing."""
    options = options_of(without_secrets(run.args if run else ()))
    settings: dict[Setting, str] = {("run", "script"): result.script}
    settings |= {("option", name): value for name, value in options.items()}
    run_options = run.options if run and run.options else RunOptions()
    for option, values in (
        ("--env", run_options.env),
        ("--python", (run_options.python,)),
        ("--pip", run_options.pip),
        ("--requirements", (run_options.requirements,)),
    ):
        if any(values):
            settings["run", option] = without_logins(f"{option} {' '.join(filter(None, values))}")
    settings["run", "mode"] = result.mode
    if layout:
        settings["run", "ranks"] = plural(result.world_size, "rank")
        settings["run", "nodes"] = plural(result.nnodes, "node")
        if run and run.shape:
            settings["run", "shape"] = run.shape
    if result.commit:
        settings["run", "commit"] = text.commit(result.commit.sha, dirty=result.commit.dirty)
    return settings


def options_of(args: Sequence[str]) -> Mapping[str, str]:
    """Return the options of a script with their values: `--lr 0.1`, `--lr=0.1` and `lr=0.1` are one.

    A flag has an empty value.
    """
    options: dict[str, list[str]] = {}
    for name, value in named_values(args):
        options.setdefault(name or ARGUMENTS, []).extend([] if value is None else [value])
    return {name: " ".join(values) for name, values in options.items()}
