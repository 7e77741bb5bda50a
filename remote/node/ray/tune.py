"""A search with Ray Tune, driven from the first node; its trials run wherever GPUs and CPUs are free.

    python3 -I <folder> ray_tune SEARCH

SEARCH is a JSON document: function (`module:name` in the folder of the code), code (that folder's name), params (name
to kind and values), fixed (further values of every trial), env (names of variables that trials get), trials,
metric, mode, scheduler, cpus, gpus, most_at_once, seed. The record of the trials is always in the run's
`artifacts/trials.json`. Runs on the Python that has Ray.
"""

import difflib
import importlib
import json
import math
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from remote.shared.constants import ARTIFACTS, CODE, NODE_HOME_VARIABLE, RUN_DIR_VARIABLE
from remote.shared.files import write_json

WRONG_OPTIONS = 2
SAVE_S = 1.0
"""Seconds between two writes of the record while trials run."""


def main(arguments: List[str]) -> int:
    """Run the search; 0 where at least one trial ended well."""
    import ray
    from ray import cloudpickle, tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search import BasicVariantGenerator

    search = json.loads(arguments[0])
    run_dir = Path(os.environ[RUN_DIR_VARIABLE])
    # Its tables of values that are shown here anyway, and its traceback about a metric, on which `Trials` has a
    # sentence.
    os.environ.update(RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_STRICT_METRIC_CHECKING="1")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers have not got this module
    ray.init(log_to_driver=False)
    trials = Trials(search, run_dir / ARTIFACTS / "trials.json")
    tuner = tune.Tuner(
        tune.with_resources(trainable(search), {"cpu": search["cpus"], "gpu": search["gpus"]}),
        param_space={
            name: domain(tune, param, "{}-{}".format(search["seed"], name))
            for name, param in search["params"].items()
        },
        tune_config=tune.TuneConfig(
            metric=search["metric"],
            mode=search["mode"],
            num_samples=search["samples"],
            scheduler=ASHAScheduler() if search["scheduler"] == "asha" else None,
            search_alg=BasicVariantGenerator(random_state=search["seed"]),
            max_concurrent_trials=search["most_at_once"] or None,
        ),
        run_config=tune.RunConfig(
            name="tune", storage_path=str(run_dir / ".ray"), verbose=0, callbacks=[callback(tune, trials)]
        ),
    )
    try:
        tuner.fit()
    except Exception:
        if not trials.wrong_metric:
            raise
        trials.stopped()
        print(trials.wrong_metric, file=sys.stderr)
        return WRONG_OPTIONS
    trials.save()
    ray.shutdown()
    return 0 if any(trial["status"] == "done" for trial in trials.known.values()) else 1


def trainable(search: Dict[str, Any]) -> Callable[[Dict[str, Any]], None]:
    """Return the function of a trial, in a worker on any node: it runs in the folder of the code there."""
    function, code, fixed = search["function"], search["code"], search["fixed"]
    variables = {name: os.environ[name] for name in search["env"]}  # not in Ray's own description of a trial

    def run_trial(config: Dict[str, Any]) -> None:
        folder = os.path.join(os.environ[NODE_HOME_VARIABLE], CODE, code)
        os.environ.update(variables)
        sys.path.insert(0, folder)
        os.chdir(folder)
        module, _, name = function.partition(":")
        getattr(importlib.import_module(module), name)(dict(fixed, **config))

    return run_trial


def domain(tune: Any, param: Dict[str, Any], seed: str) -> Any:  # noqa: ANN401 - Ray's, which is not imported here
    """Return Ray's own description of a parameter's values."""
    kind, values = param["kind"], param["values"]
    if kind == "grid":
        return tune.grid_search(values)
    if kind == "choice":
        return tune.sample_from(Rounds(values, seed))
    return getattr(tune, kind)(*values)


class Rounds:
    """Draws values in rounds: each value once, in random order, before any value again."""

    def __init__(self, values: List[Any], seed: str) -> None:
        self._values = values
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._left = []  # type: List[Any]

    def __call__(self, _: Any) -> Any:  # noqa: ANN401 - Ray's description of a trial, a value
        """Return the next value."""
        if not self._left:
            self._left = self._random.sample(self._values, len(self._values))
        return self._left.pop()


class Trials:
    """The record of the trials."""

    def __init__(self, search: Dict[str, Any], path: Path) -> None:
        self._search = search
        self._path = path
        self._saved_at = 0.0
        self.known = {}  # type: Dict[str, Dict[str, Any]]
        self.wrong_metric = ""
        """The sentence for a report without the judged value."""

    def update(self, trial: Any, result: Optional[Dict[str, Any]], status: str) -> None:  # noqa: ANN401 - Ray's Trial
        """A trial began, reported or ended."""
        number = list(self.known).index(trial.trial_id) if trial.trial_id in self.known else len(self.known)
        new = {"trial": number, "params": trial.config, "metrics": {}, "reports": 0, "error": None}
        entry = self.known.setdefault(trial.trial_id, dict(new, began_at=time.time()))
        result = flat(result or {})
        if result:
            # Ray adds many values, of its clock and its names.
            entry["metrics"] = {
                name: value
                for name, value in result.items()
                if name.split("/")[0] not in RAYS_OWN
                and isinstance(value, (int, float))
                and not isinstance(value, bool)
            }
            entry["reports"] = result.get("training_iteration", 0)
            entry["node"] = result.get("node_ip")
        metric = self._search["metric"]
        if result and metric not in result:
            names = sorted(entry["metrics"])
            near = difflib.get_close_matches(metric, names, n=1)
            self.wrong_metric = "error: --metric {}: no such thing is reported{}, but {}".format(
                metric,
                " (did you mean '{}'?)".format(near[0]) if near else "",
                ", ".join(names) or "nothing that is a number",
            )
            raise KeyError(metric)
        value = entry["metrics"].get(metric)
        changed = entry.get("status") != status
        entry.update(value=value, status=status, seconds=round(time.time() - entry["began_at"], 3))
        if changed:
            self._say(entry)
        if changed or time.time() - self._saved_at > SAVE_S:
            self.save()

    def failed(self, trial: Any) -> None:  # noqa: ANN401 - Ray's Trial
        """A trial raised."""
        self.update(trial, None, "failed")
        path = getattr(trial, "error_file", None)
        if path and os.path.exists(path):
            lines = [line for line in Path(path).read_text(errors="replace").splitlines() if line.strip()]
            self.known[trial.trial_id]["error"] = lines[-1] if lines else None
        self.save()

    def stopped(self) -> None:
        """The search has ended, and with it its active trials."""
        for entry in self.known.values():
            if entry["status"] == "running":
                entry["status"] = "stopped"
        self.save()

    def _say(self, entry: Dict[str, Any]) -> None:
        metric, value, status = self._search["metric"], entry["value"], entry["status"]
        params = "  ".join(
            ("{} {:.4g}" if isinstance(value, float) else "{} {!s}").format(name, value)
            for name, value in entry["params"].items()
        )
        if status == "running":
            came_to = "begins"
        else:
            shown = "no {}".format(metric) if value is None else "{} {:.4g}".format(metric, value)
            ended = sum(trial["status"] != "running" for trial in self.known.values())
            came_to = "{}  ({}; {} of {} over)".format(shown, status, ended, self._search["trials"])
        print("trial {}: {}  {}".format(entry["trial"], params, came_to))
        sys.stdout.flush()

    def save(self) -> None:
        """Write the record."""
        self._saved_at = time.time()
        rows = [
            {key: _plain(value) for key, value in entry.items() if key != "began_at"}
            for entry in self.known.values()
        ]
        write_json(
            self._path, {"metric": self._search["metric"], "mode": self._search["mode"], "trials": rows}
        )


RAYS_OWN = {
    "done", "training_iteration", "trial_id", "date", "timestamp", "time_this_iter_s", "time_total_s", "pid",
    "hostname", "node_ip", "config", "time_since_restore", "iterations_since_restore", "checkpoint_dir_name",
    "should_checkpoint", "experiment_tag",
}  # fmt: skip


def flat(result: Dict[str, Any], before: str = "") -> Dict[str, Any]:
    """Return a report with Ray Tune's names of nested values: `eval/accuracy`."""
    named = {}  # type: Dict[str, Any]
    for name, value in result.items():
        named.update(flat(value, before + name + "/") if isinstance(value, dict) else {before + name: value})
    return named


def _plain(value: Any) -> Any:  # noqa: ANN401 - of a JSON document
    """Without what JSON has no word for."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def callback(tune: Any, trials: Trials) -> Any:  # noqa: ANN401 - Ray's own, which is not imported here
    """Forwards Ray Tune's callbacks to `trials`."""

    class TrialReporter(tune.Callback):  # type: ignore[misc,unused-ignore]
        def on_trial_start(self, **info: Any) -> None:  # noqa: ANN401
            trials.update(info["trial"], None, "running")

        def on_trial_result(self, **info: Any) -> None:  # noqa: ANN401
            trials.update(info["trial"], info["result"], "running")

        def on_trial_complete(self, **info: Any) -> None:  # noqa: ANN401
            trials.update(info["trial"], None, "done")

        def on_trial_error(self, **info: Any) -> None:  # noqa: ANN401
            trials.failed(info["trial"])

    return TrialReporter()
