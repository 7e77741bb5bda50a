"""`export`: the trained weights of a run as one file here, from its newest whole checkpoint."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuctl.app import App
from gpuctl.command_results.runs import ExportedModel
from gpuctl.errors import Failed, Usage
from gpuctl.output_files import check_file
from gpuctl.tables.view import open_view
from gpuctl.workflow.runs.outputs.checkpoints import ResumePoint, survey_checkpoints
from gpuctl.workflow.runs.placement import brought_here
from gpuctl.workflow.runs.request.ask_built_in import answer_in
from gpuctl.workflow.runs.runs import latest
from inventories.disk.store import RunFolder
from inventories.errors import NotFound
from inventories.runs.run import Run

FORMATS = (".safetensors", ".pt")


def export(app: App, named: str | None, target: Path) -> ExportedModel:
    """Write the weights of a run of the built-in job to a file; return the file's facts.

    The checkpoint comes from the run's nodes, unless the run's end brought it here. Raises Usage for another kind of
    file or run, NotFound without a checkpoint, Failed if newer ones may be on a node that does not answer, or the
    file can't be written.
    """
    if target.suffix not in FORMATS:
        raise Usage(
            f"{target} ends in neither {' nor '.join(FORMATS)}. Name the file, as in -o model.safetensors."
        )
    check_file(target)
    folder = latest(app, named)
    run = folder.load_run()
    if not run.built_in:
        raise Usage(
            f"Run {run.run} is of {run.script}, and only the built-in job's checkpoints are known. Export in the "
            "script itself, into $GPUCTL_RUN_DIR/artifacts: what is there comes back."
        )
    from remote.launchers.rank_command import built_in_tree

    with _checkpoints(app, folder, run) as checkpoints:
        # A child process writes the file: nothing of gpuctl itself imports torch.
        done = subprocess.run(
            [sys.executable, "-m", "train.checkpoints.export", checkpoints.resolve(), target.resolve()],
            cwd=built_in_tree().root,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise Failed(
            lines[-1] if lines else f"The weights could not be written: exit status {done.returncode}."
        )
    try:
        document = answer_in(done.stdout, dict)
    except ValueError as error:
        raise Failed(f"It is not known whether {target} was written: {error}.") from error
    return ExportedModel(run=run.run, file=str(target), left_out=tuple(document.pop("left_out")), **document)


@contextmanager
def _checkpoints(app: App, folder: RunFolder, run: Run) -> Iterator[Path]:
    """Yield a folder on this computer with the run's newest checkpoint."""
    from remote.files.checkpoints import in_folder, lacks_parts
    from remote.runs.run_files import mirrored_path

    local = in_folder(folder.checkpoints_path, run)
    if local is not None and not local.lacks and not mirrored_path(folder).exists():
        yield folder.checkpoints_path
        return
    cluster = app.store.cluster(run.cluster)
    point = ResumePoint(run=run, source=run, checkpoints=local)
    if cluster.exists():
        with open_view(app.output, logs=False) as view:
            view.phase("collect", f"asking the nodes of run {run.run} for its checkpoints")
            survey = survey_checkpoints(app.store, cluster, [run])
        if (missed := survey.unknown()) is not None:
            _, node, error = missed
            raise Failed(
                f"Run {run.run} may have left its newest checkpoint on {node}, which does not answer: {error} Try "
                "again when it does."
            )
        for _, missing in survey.torn():
            raise Failed(lacks_parts(run, missing))
        if (picked := survey.pick()) is not None:
            point = ResumePoint(run=run, source=run, checkpoints=picked[1], locations=picked[2])
    if point.checkpoints is None or (point.checkpoints.lacks and not point.locations):
        raise NotFound(
            f"No checkpoint of run {run.run} is in reach: none came back with it, and no machine of the cluster "
            f"{run.cluster} has any. The model that a finished run wrote is in {folder.artifacts_path}."
        )
    with brought_here(folder, point, bring=bool(point.locations)) as checkpoints:
        yield checkpoints
