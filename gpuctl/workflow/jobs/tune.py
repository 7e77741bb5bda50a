"""`tune`: a run whose trials Ray Tune draws and spreads over the cluster, and what came of them."""

import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuctl.app import App
from gpuctl.errors import Usage
from gpuctl.option_table.search_space import LISTS, Param, grid_points, trials_of
from gpuctl.option_table.tune_options import TuneSettings
from gpuctl.workflow.jobs.job import Job
from gpuctl.workflow.jobs.train import train
from gpuctl.workflow.runs.request.request import TrainRequest, check_built_in, check_together
from inventories.codec import to_json
from inventories.disk.store import RunFolder
from inventories.runs.result import Result
from inventories.runs.search import Search
from remote.files.tree import read_tree, root_of
from remote.launchers.rank_command import name_of_function, user_function

MAX_LINES = 4
"""Combinations of values for which a line is printed."""


@dataclass(frozen=True, kw_only=True)
class TuneRequest(TuneSettings):
    """The settings of a search. A `TrainRequest` has the others."""

    def document(self, metric: str, words: Sequence[str] | None) -> dict[str, Any]:
        """Return the search for the nodes. `words`: options of all trials of the built-in job; `None`: a function."""
        trials = trials_of(self.params, self.trials)
        return {
            "params": {param.name: param.document() for param in self.params},
            "fixed": {} if words is None else {"words": list(words)},
            "trials": trials,
            "samples": trials // grid_points(self.params),
            "metric": metric,
            "mode": self.mode,
            "scheduler": self.scheduler,
            "cpus": self.cpus,
            "gpus": self.gpus,
            "most_at_once": self.most_at_once,
            "seed": self.seed,
        }


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The result of a search."""

    result: Result
    words: tuple[str, ...] | None
    """Options that all trials of the built-in job had. `None`: it was a function."""
    search: Search
    interrupted: bool

    def document(self) -> dict[str, Any]:
        """Return the document of `tune --json`."""
        return {
            "run": self.result.run,
            "cluster": self.result.cluster,
            "status": self.result.status,
            "script": self.result.script,
            **to_json(self.search),
            "first_error": self.result.first_error,
            "seconds": self.result.seconds,
            "cost_usd": self.result.cost_usd,
            "dir": self.result.dir,
        }


def tune(app: App, request: TrainRequest, tuning: TuneRequest, *, on_end: Callable[[Tuned], None]) -> Tuned:
    """Search, and return the trials' results; Ctrl-C ends the search, and returns the results so far.

    `on_end` gets the result before machines started for it are ended.
    """
    from gpuctl.run_results.read_run import read_search

    metric = check(request, tuning)
    if tuning.gpus == 0:
        request = replace(request, device=request.device or "cpu")
    words = request.job_words if request.built_in else None
    search = tuning.document(metric, words)

    def tuned(job: Job) -> Tuned:
        return Tuned(
            result=job.result,
            words=words,
            search=read_search(RunFolder(Path(job.result.dir))) or Search.of(metric, tuning.mode, ()),
            interrupted=job.interrupted,
        )

    request = replace(request, launcher="ray", search=search)
    return tuned(train(app, request, command="tune", on_end=lambda job: on_end(tuned(job))))


def _check_function(request: TrainRequest, params: Sequence[Param]) -> None:
    """Raise Usage for a script without a function, with the lines that train it with the params' first values."""
    script, *args = request.words
    if script.rpartition(":")[0].endswith(".py") or not script.endswith(".py"):
        name_of_function(script)
        return
    values = [param.values if param.kind in LISTS else param.values[:1] for param in params]
    combinations = list(itertools.islice(itertools.product(*values), MAX_LINES + 1))
    lines = []
    for combination in combinations[:MAX_LINES]:
        pairs = zip(params, combination, strict=True)
        options = [word for param, value in pairs for word in (f"--{param.name}", str(value))]
        lines.append(shlex.join(["gpuctl", "train", script, *args, *options]))
    more = ["…"] * (len(combinations) > MAX_LINES)
    raise Usage(
        f"{script!r} names no function, and a search calls one for each trial: gpuctl tune … {shlex.quote(script)}:"
        "FUNCTION. To compare settings of a script as it is, start a run for each, and then show them side by side:\n"
        + "\n".join([*lines, *more, "gpuctl results RUN1 RUN2"])
    )


def check(request: TrainRequest, tuning: TuneRequest) -> str:
    """Return the metric. Raises Usage for a search that is not possible, before any launch."""
    check_together(request)
    if not request.built_in:
        _check_function(request, tuning.params)
    if request.on_cpu and tuning.gpus:
        raise Usage(
            f"--gpus-per-trial {tuning.gpus:g} and --device cpu contradict each other: leave one out."
        )
    if not tuning.params:
        raise Usage("There is nothing to search. Name what to search: --param 'lr=loguniform(1e-4,1e-1)'")
    trials_of(tuning.params, tuning.trials)  # raises Usage for too many, before each value is checked
    if not request.built_in:
        if tuning.metric is None:
            root = root_of(request.folder) if request.root is None else request.root
            user_function(request.words[0], read_tree(root, allow_large=True), request.folder)
            params = [word for param in tuning.params for word in param.words]
            line = shlex.join(["gpuctl", "tune", *params, "--metric", "NAME", *request.words])
            raise Usage(
                "--metric is missing: name the value to optimize, which the function reports with ray.tune.report: "
                f"{line}"
            )
        return tuning.metric
    for param in tuning.params:
        for value in param.values if param.kind in LISTS else param.values[:1]:
            check_built_in((*request.words, f"--{param.name.replace('_', '-')}", str(value)))
    return tuning.metric or "accuracy"
