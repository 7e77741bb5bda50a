"""`train --resume`: which run to go on from, and what is taken over from it."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpuctl.errors import Failed, Usage
from gpuctl.options import App
from gpuctl.workflow.checkpoints import Earlier, Survey, survey
from gpuctl.workflow.request import TrainRequest
from gpuctl.workflow.runs import latest
from inventories.errors import InventoryError, NotFound
from inventories.run import Run, RunOptions
from inventories.store import Store


def resolve(app: App, request: TrainRequest) -> tuple[TrainRequest, Earlier | None]:
    """The request completed by the earlier run that it names, and that run; None where it names none.

    Raises NotFound or Usage, and Failed where there are no checkpoints, or where newer ones may lie on a machine that
    does not answer.
    """
    if not (request.resume or request.resume_from):
        return request, None
    if request.resume_from:
        runs = list(_chain(app.store, latest(app, request.resume_from).load_run()))
    else:
        runs = [run for run in _newest_first(app) if same_script(request, run)]
    asked = survey(app.store, app.store.cluster(app.options.cluster), runs)
    picked = asked.pick()
    if picked is None:
        raise Failed(_nothing(app, request, asked))
    source, found, places = picked
    newer, error = asked.unknown() or (None, "")
    if newer is not None and not (newer == source and source == runs[0] and request.resume_from):
        raise Failed(older(source, newer, error))
    run = runs[0] if request.resume_from else source
    earlier = Earlier(run=run, source=source, found=found, places=places, unknown=newer)
    return taken_over(request, run), earlier


def older(source: Run, newer: Run, error: str) -> str:
    """The sentences for checkpoints that are not known to be the newest."""
    what = "what was brought here of it" if newer == source else f"the older run {source.run}"
    return (
        f"Run {newer.run} may have left newer checkpoints on {newer.nodes[0].name}, which does not answer: {error} "
        f"Try again when it does, or go on from {what} all the same: "
        f"gpuctl train --resume-from {source.run}"
    )


def after_failure(app: App, failed: str) -> Earlier:
    """What a run that failed has left to go on from, and which machines can. Raises SomeNodesFailed where none can.

    A machine that was lost and is back is first told to end its part of that run.
    """
    from remote.errors import SomeNodesFailed

    run = app.store.run(failed).load_run()
    cluster = app.store.cluster(app.options.cluster)
    asked = survey(app.store, cluster, list(_chain(app.store, run)), unfinished=run)
    answering = asked.answering(cluster)
    if not answering:
        raise SomeNodesFailed(f"none of the cluster's machines answers: {' '.join(asked.errors.values())}")
    picked, missed = asked.pick(), asked.unknown()
    left = Earlier(run=run, source=None, answering=answering, unknown=missed[0] if missed else None)
    if picked is None:
        return left
    source, found, places = picked
    return replace(left, source=source, found=found, places=places)


def taken_over(request: TrainRequest, run: Run) -> TrainRequest:
    """The request, with what was not typed taken from the earlier run. Raises Usage where that can't be.

    A script that is named stands for itself, with its arguments. Options alone are put after the run's own, where
    the last of each counts.
    """
    before = run.options or RunOptions()
    if missing := [name for name in before.env if name not in request.env]:
        raise Usage(
            f"Run {run.run} was given --env {', '.join(missing)}, and values are not kept. Give them again: "
            + " ".join(f"--env {name}=VALUE" for name in missing)
        )
    request = replace(
        request,
        nnodes=before.nnodes if request.nnodes is None else request.nnodes,
        nproc_per_node=request.nproc_per_node or before.nproc_per_node,
    )
    if not (request.python or request.pip or request.requirements or request.wheels):
        request = replace(
            request,
            python=before.python,
            pip=before.pip,
            requirements=Path(before.requirements) if before.requirements else None,
            wheels=Path(before.wheels) if before.wheels else None,
        )
    if not request.built_in:
        return request
    args = (*run.args, *request.words)
    if run.built_in:
        return replace(request, words=args)
    if run.script.startswith("-m "):
        words, module = args, run.script.removeprefix("-m ")
    else:
        words, module = (str(Path(before.project or "", run.script)), *args), None
    return replace(
        request, words=words, module=module, project=Path(before.project) if before.project else None
    )


def same_script(request: TrainRequest, run: Run) -> bool:
    """Whether a run is of the script that is named; where none is, of any."""
    if request.built_in:
        return True
    if request.module is not None:
        return run.script == f"-m {request.module}"
    project = run.options.project if run.options and run.options.project else None
    if run.built_in or project is None:
        return not run.built_in and Path(run.script).name == Path(request.words[0]).name
    return os.path.normpath(Path(project, run.script)) == os.path.normpath(Path.cwd() / request.words[0])


def _chain(store: Store, run: Run) -> Iterator[Run]:
    """A run, and those that it went on from, the nearest first, as far as their records can be read."""
    seen = set()
    while run.run not in seen:
        seen.add(run.run)
        yield run
        if run.resumed_from is None:
            return
        try:
            run = store.run(run.resumed_from).load_run()
        except InventoryError:
            return


def _newest_first(app: App) -> Iterator[Run]:
    """The cluster's runs. Raises NotFound where it has none."""
    folders = app.store.runs(app.options.cluster)
    if not folders:
        raise NotFound(f"The cluster {app.options.cluster} has no runs yet. Start one: gpuctl train")
    for folder in reversed(folders):
        try:
            yield folder.load_run()
        except InventoryError as error:
            app.output.say(f"run {folder.id} is passed over: {error}")


def _nothing(app: App, request: TrainRequest, asked: Survey) -> str:
    """The sentence for no checkpoints."""
    if request.resume_from:
        who = f"Run {asked.runs[0].run} left no checkpoint"
    else:
        which = "No run" if request.built_in else "No run of that script"
        who = f"{which} on the cluster {app.options.cluster} left a checkpoint"
    unreached = (
        f" Not every machine could be asked: {' '.join(asked.errors.values())}" if asked.errors else ""
    )
    return (
        f"{who} that can be reached: a run goes on from the files that its script has written to "
        f"$GPUCTL_RUN_DIR/checkpoints on its first node. To start from the beginning, leave out --resume.{unreached}"
    )
