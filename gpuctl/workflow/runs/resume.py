"""Resume a run: choose the run and its checkpoints, and take over its settings."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuctl.app import App
from gpuctl.errors import Failed, Usage
from gpuctl.option_table.train_options import TrainSettings
from gpuctl.scripts.arguments import option_groups
from gpuctl.scripts.sources import script_path
from gpuctl.text import clean, for_cluster
from gpuctl.workflow.runs.outputs.checkpoints import CheckpointSurvey, Picked, ResumePoint, survey_checkpoints
from gpuctl.workflow.runs.request.request import TrainRequest
from gpuctl.workflow.runs.runs import latest, no_runs
from inventories.disk.store import Store
from inventories.errors import InventoryError, NotFound
from inventories.option import Option, options_of
from inventories.runs.result import Result
from inventories.runs.run import Run, RunNode, RunOptions
from inventories.text import did_you_mean
from remote.files.tree import without_links_above
from remote.shared.constants import HANG_OFF


def resolve(app: App, request: TrainRequest) -> tuple[TrainRequest, ResumePoint | None]:
    """Complete a request from the earlier run that it names. Returns the request and that run.

    `None`: the request resumes no run. Raises NotFound if no checkpoint exists, Usage, and Failed if checkpoints, or
    newer ones, may lie on a machine that does not answer.
    """
    if not (request.resume or request.resume_from):
        return request, None
    _refuse_value(app, request)
    if request.resume_from:
        point = _named(app, latest(app, request.resume_from).load_run())
    else:
        point = _latest_of_script(app, request)
    completed = taken_over(request, point.run)
    if completed.nnodes_text != request.nnodes_text:
        app.output.say(f"note: --nnodes {completed.nnodes_text}, as run {point.run.run} was started")
    return completed, point


def _refuse_value(app: App, request: TrainRequest) -> None:
    """Raise Usage for a script in place of the run of --resume-from, and for a word that --resume does not take."""
    if request.resume_from:
        script = Path(request.resume_from)
        if script.suffix == ".py":
            line = shlex.join(["gpuctl", "train", "--resume", str(script), *request.words])
            raise Usage(
                f"--resume-from takes a run, and {script} is a script. To resume its latest run: {line}"
            )
        return
    if request.built_in or request.module is not None:
        return
    word, *words = request.words
    path = request.folder / word
    if path.suffix in ("", ".py") and (path.is_file() or (path / "__main__.py").is_file()):
        return
    with suppress(NotFound):
        run = app.store.run(word).id
        raise Usage(
            f"--resume takes no value. To resume run {run}: "
            + shlex.join(["gpuctl", "train", "--resume-from", run, *words])
        )
    if words and Path(words[0]).suffix == ".py":
        line = shlex.join(["gpuctl", "train", "--resume", *words])
        raise Usage(f"--resume takes no value: leave out {shlex.quote(word)}: {line}")


def _named(app: App, run: Run) -> ResumePoint:
    """Return a run that the user chose, with its own checkpoints, or with the checkpoints that it resumed."""
    survey = survey_checkpoints(
        app.store, app.store.cluster(app.options.cluster), list(_chain(app.store, run))
    )
    picked = survey.pick()
    if picked is None:
        raise _nothing(app, f"Run {run.run} left no", [run.run], survey)
    source, checkpoints, locations = picked
    newer, node, error = survey.unknown() or (None, "", "")
    if newer is not None and not newer == source == run:
        raise Failed(older(source, newer, node, error))
    _note_torn(app, survey)
    return ResumePoint(
        run=run, source=source, checkpoints=checkpoints, locations=locations, unknown=newer, unknown_node=node
    )


def _latest_of_script(app: App, request: TrainRequest) -> ResumePoint:
    """Return the latest run with checkpoints of the named script. No script is named: of the latest run's script."""
    runs = []  # without those that a search made, and with a line on each whose record can't be read
    for folder in reversed(app.store.runs(app.options.cluster)):
        try:
            run = folder.load_run()
            if not run.searched:
                runs.append(run)
        except InventoryError as error:
            app.output.say(f"run {folder.id} is skipped: {error}")
    if not runs:
        raise no_runs(app)
    same = [run.run for run in runs if same_script(request, run, runs[0])]
    every = survey_checkpoints(app.store, app.store.cluster(app.options.cluster), runs)
    candidates = every.only(same)
    survey = candidates.only(candidates.wrote())
    picked = survey.pick()
    if picked is None:
        foreign = {run.run for run in runs}.difference(same)
        if request.built_in:
            subject = f"Run {runs[0].run}, the latest, was of {runs[0].script}, and no run of that"
        else:
            name = request.module or request.words[0]
            missing = not request.module and not (request.folder / name).exists()
            scripts = [*(run.script for run in runs), *(path.name for path in request.folder.glob("*.py"))]
            if missing and not same and (hint := did_you_mean(name, scripts)):
                raise NotFound(f"There is no script {name}, and no run of it{hint}")
            subject = f"There is no script {name}, and no run of it" if missing else f"No run of {name}"
            # The script of another path may be the same one, moved since.
            foreign &= {run.run for run in runs if Path(run.script).name == Path(name).name}
        other = every.only(foreign).pick()
        raise _nothing(app, f"{subject} left a", [run.run for run in candidates.runs], survey, other)
    source, checkpoints, locations = picked
    if (missed := survey.unknown()) is not None:
        raise Failed(older(source, *missed))
    _note_torn(app, survey)
    for run in candidates.runs[: candidates.runs.index(source)]:
        if run not in survey.runs:
            app.output.say(f"run {run.run} is skipped: it wrote no checkpoint")
    return ResumePoint(run=source, source=source, checkpoints=checkpoints, locations=locations)


def _note_torn(app: App, survey: CheckpointSurvey) -> None:
    """Print the runs that are left out because no machine has all of their newest checkpoint."""
    from remote.files.checkpoints import lacks_parts

    for run, missing in survey.torn():
        app.output.say(lacks_parts(run, missing))


def older(source: Run, newer: Run, node: str, error: str) -> str:
    """Return the sentences for checkpoints that may not be the newest."""
    source_text = "what was brought here of it" if newer == source else f"the older run {source.run}"
    return (
        f"Run {newer.run} may have left newer checkpoints on {node}, which does not answer: {error} "
        f"Try again when it does, or resume from {source_text} all the same: "
        f"gpuctl train --resume-from {source.run}"
    )


def resume_hint(app: App, result: Result) -> str:
    """Return the command that resumes a run. Empty: it succeeded, or this computer has no checkpoint of the run."""
    from remote.files.checkpoints import in_folder

    folder = app.store.run(result.run)
    if (
        result.status not in ("failed", "stopped")
        or in_folder(folder.checkpoints_path, folder.load_run()) is None
    ):
        return ""
    return for_cluster("resume from there: gpuctl train --resume", result.cluster)


def resume_point_of(app: App, run: Run, lost: Mapping[str, Sequence[RunNode]]) -> ResumePoint:
    """Return the checkpoints that an ended run left, and the machines that can resume it.

    A lost machine that answers again first ends its part of that run. `lost`: name of a machine → its parts in
    earlier runs, which it ends, too. Raises SomeNodesFailed if no machine answers.
    """
    from remote.errors import SomeNodesFailed
    from remote.runs.run_files import read_node_records

    cluster = app.store.cluster(app.options.cluster)
    ended = {record.node for record in read_node_records(app.store.run(run.run), run.nodes)}
    unfinished = {part.name: [part, *lost.get(part.name, ())] for part in run.nodes if part.name not in ended}
    survey = survey_checkpoints(
        app.store, cluster, list(_chain(app.store, run)), unfinished={**lost, **unfinished}
    )
    answering = survey.answering(cluster)
    if not answering:
        raise SomeNodesFailed(f"none of the cluster's machines answers: {' '.join(survey.errors.values())}")
    picked, missed = survey.pick(), survey.unknown()
    unknown, node, _ = missed or (None, "", "")
    left = ResumePoint(run=run, source=None, answering=answering, unknown=unknown, unknown_node=node)
    if picked is None:
        return left
    source, checkpoints, locations = picked
    return replace(left, source=source, checkpoints=checkpoints, locations=locations)


def taken_over(request: TrainRequest, run: Run) -> TrainRequest:
    """Return the request with the settings of the earlier run that were not typed. Raises Usage.

    A named script keeps the arguments that were typed for it. Options alone replace options of the built-in job, and
    stand after the arguments of a script, where most scripts take the last of each.
    """
    before = run.options or RunOptions()
    if missing := [name for name in before.env if name not in request.env]:
        raise Usage(
            f"Run {run.run} was given --env {', '.join(missing)}, and values are not kept. Give them again: "
            + " ".join(f"--env {name}=VALUE" for name in missing)
        )
    request = replace(
        request,
        launcher=request.launcher or run.mode,
        min_nodes=before.min_nodes if request.nnodes is None else request.min_nodes,
        **_hang_options(request, before),
    )
    request = _resumed(request, before, "always")
    # The needs of a named script are known only if it is of the same project.
    if before.root and (request.built_in or request.folder.is_relative_to(before.root)):
        request = _resumed(request, before, "project")
    if not (request.python or request.pip or request.requirements or request.wheels):
        request = _resumed(request, before, "environment")
    if not request.built_in:
        return request
    if run.built_in:
        return replace(request, words=last_of_each((*run.args, *request.job_words)), device=None)
    cut = len(run.args) - before.added_args
    added = superseded(run.args[cut:], request.words)
    args = (*run.args[:cut], *added)
    if run.script.startswith("-m "):
        words, module = args, run.script.removeprefix("-m ")
    else:
        words, module = (str(Path(before.project or "", run.script)), *args), None
    project = Path(before.project) if before.project else None
    request = replace(request, words=words, module=module, added_args=len(added), project=project)
    return _resumed(request, before, "script")


def _resumed(request: TrainRequest, before: RunOptions, when: str) -> TrainRequest:
    """Return the request with the earlier run's options that are taken over `when`, unless they are set."""
    options = [option for option in options_of(TrainSettings) if option.resumed == when]
    unset = [option for option in options if getattr(request, option.name) in (option.default, None, {})]
    return replace(
        request, **{option.name: _revived(option, getattr(before, option.name)) for option in unset}
    )


def _revived(option: Option, value: Any) -> Any:  # noqa: ANN401 - an option's value is its own
    """Return the value of a record as a request has it."""
    if option.kind is not Path or value is None:
        return value
    return tuple(map(Path, value)) if option.multiple else Path(value)


def _hang_options(request: TrainRequest, before: RunOptions) -> dict[str, Any]:
    """Return the settings of the earlier run for hangs that this run can have, too."""
    after = request.hang_after
    if after is None and before.hang_after is not None:
        after = "off" if before.hang_after == HANG_OFF else float(before.hang_after)
    on_hang = request.on_hang or before.on_hang
    if request.on_hang is None and (after == "off" or request.detach):
        on_hang = None
    elif request.on_hang is None and on_hang == "restart" and request.max_restarts == 0:
        on_hang = "stop"  # restarts are not taken over
    return {"hang_after": after, "on_hang": on_hang}


def last_of_each(words: Sequence[str]) -> tuple[str, ...]:
    """Return the built-in job's options, each once: with its last value, at its first place.

    An option is `--name` with what follows until the next one, `--name=value`, `--flag` or `--no-flag`.
    """
    options = {}
    for group in option_groups(words):
        name = group[0].split("=")[0].removeprefix("--").removeprefix("no-")
        # The two options for a batch size exclude each other.
        options["batch-size" if name == "global-batch-size" else name] = group
    return tuple(word for group in options.values() for word in group)


def superseded(before: Sequence[str], words: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments that resumes have added to a script's: earlier ones, and then the new ones.

    An earlier option is left out where a new one has its name and as many values: it counts no more.
    """
    new = {_form(group) for group in option_groups(words)}
    earlier = [group for group in option_groups(before) if _form(group) not in new]
    return (*(word for group in earlier for word in group), *words)


def _form(group: Sequence[str]) -> tuple[str, int]:
    """Return an option's name and the number of its values, of which one may stand behind a `=`."""
    name, equals, _ = group[0].partition("=")
    return name, len(group) - 1 + len(equals)


def same_script(request: TrainRequest, run: Run, newest: Run) -> bool:
    """Return whether a run is of the named script. No script is named: of the script of the cluster's newest run."""
    if request.built_in:
        if newest.built_in or run.built_in:
            return newest.built_in and run.built_in
        paths = script_path(newest), script_path(run)
        if None in paths:
            return Path(newest.script).name == Path(run.script).name
        return paths[0] == paths[1]
    if request.module is not None:
        return run.script == f"-m {request.module}"
    path = script_path(run)
    if run.built_in or path is None:
        return not run.built_in and Path(run.script).name == Path(request.words[0]).name
    return path == str(without_links_above(request.folder / request.words[0]))


def _chain(store: Store, run: Run) -> Iterator[Run]:
    """Yield a run and the runs that it resumed, the nearest first, as far as their records can be read."""
    ids = set()
    while run.run not in ids:
        ids.add(run.run)
        yield run
        if run.resumed_from is None:
            return
        try:
            run = store.run(run.resumed_from).load_run()
        except InventoryError:
            return


def _nothing(
    app: App, begin: str, runs: Sequence[str], survey: CheckpointSurvey, other: "Picked | None" = None
) -> Failed | NotFound:
    """Return the error for no checkpoints: NotFound, or Failed if not every machine answered.

    `begin`: its first words. `runs`: the script's runs. `other`: the checkpoints of a run of another script.
    """
    from remote.files.checkpoints import lacks_parts

    torn = "".join(f" {lacks_parts(run, missing)}" for run, missing in survey.torn())
    instead = unreached = ""
    if other is not None:
        run, _, _ = other
        instead = f" Run {run.run} of {run.script} left some: gpuctl train --resume-from {run.run}"
    if survey.errors:
        unreached = f" Not every machine could be asked: {' '.join(survey.errors.values())}"
    instead = instead or ("" if torn else _saved_elsewhere(app.store, runs))
    files = "whole checkpoint" if torn else "file"
    return (Failed if survey.errors else NotFound)(
        f"{begin} {files} in $GPUCTL_RUN_DIR/checkpoints on a node or on this computer, so gpuctl has nothing to "
        f"resume from. To start from the beginning, leave out --resume.{torn}{unreached}{instead}"
    )


def _saved_elsewhere(store: Store, runs: Sequence[str]) -> str:
    """Return the sentences on the weights that the newest of these runs saved in the project."""
    from gpuctl.run_results.missing.written import train_line
    from gpuctl.workflow.runs.outputs.latest_files import WEIGHTS

    for name in runs:
        with suppress(InventoryError):
            run, result = store.run(name).load_run(), store.run(name).load_result()
            outputs = result.outputs if result else ()
            if saved := next((file.path for file in outputs if file.path.endswith(WEIGHTS)), ""):
                share = ["--share-outputs"] if len(run.nodes) > 1 else []
                return (
                    f" Run {name} wrote {clean(saved)} in the project. If the script can load that, start it with "
                    f"the script's own option: {train_line(run, run.args, *share)}"
                )
    return ""
