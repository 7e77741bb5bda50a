"""Leftovers on this computer, and their removal: runs, and files of commands that were killed."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from gpuctl.app import App
from gpuctl.workflow.clusters.clean.what_to_clean import Choice, LocalRun, began_at
from gpuctl.workflow.runs.collect import final_result
from gpuctl.workflow.runs.resume import script_path
from inventories.disk.store import RunFolder, Store
from inventories.errors import InventoryError
from inventories.runs.run import Run
from remote.files.checkpoints import in_folder
from remote.shared.trees import remove_tree, walk

NEVER_LAUNCHED_AGE = timedelta(days=1)
"""The folder of a run without a record that is younger may be of a run that is just being started."""


def runs_here(app: App) -> list[LocalRun]:
    """Return all runs of this computer, oldest first."""
    return [_local(folder) for folder in app.store.runs()]


def with_files(app: App, runs: Sequence[LocalRun], ids: Collection[str]) -> list[LocalRun]:
    """Return the runs; the runs with these ids get the sizes of all their files."""
    return [
        replace(run, files=_sizes_in(app.store.run(run.id).path)) if run.id in ids else run for run in runs
    ]


def _sizes_in(folder: Path) -> dict[str, int]:
    return {name: _status(folder / name)[0] for name in walk(folder)}


def _local(folder: RunFolder) -> LocalRun:
    link = folder.path.is_symlink()
    size = 0 if link else _size_of(folder.path)
    try:
        run, over = folder.load_run(), final_result(folder) is not None
    except InventoryError:
        return LocalRun(id=folder.id, cluster=None, bytes=size, link=link)
    checkpoints = in_folder(folder.checkpoints_path, run)
    return LocalRun(
        id=folder.id,
        cluster=run.cluster,
        script=script_of(run),
        built_in=run.built_in,
        over=over,
        bytes=size,
        link=link,
        checkpoints=None if checkpoints is None else checkpoints.bytes,
        nodes=tuple(part.name for part in run.nodes),
        project=(run.options.root or run.options.project) if run.options else None,
    )


def _size_of(folder: Path) -> int:
    return sum(_status(folder / name)[1] for name in walk(folder))


def script_of(run: Run) -> str:
    """Return the key that runs of the same script share, as `train --resume` compares them."""
    return "built-in" if run.built_in else script_path(run) or Path(run.script).name


def _status(path: Path) -> tuple[int, int]:
    """Return a file's length, and the bytes that it takes on the disk."""
    try:
        status = os.lstat(path)
    except OSError:
        return 0, 0
    return status.st_size, status.st_blocks * 512


def leftovers_here(app: App, now: datetime) -> list[Choice]:
    """Return the folders of runs that were never launched, and of removals that were interrupted."""
    runs, clusters = app.store.home / "runs", app.store.home / "clusters"
    doomed = [*runs.glob(".removed-*"), *clusters.glob(".removed-*")]
    for folder in runs.glob("[!.]*"):
        began = began_at(folder.name)
        if began is not None and now - began > NEVER_LAUNCHED_AGE and not (folder / "run.json").exists():
            doomed.append(folder)
    return [
        Choice(
            where=None,
            cluster=None,
            kind="removed",
            name=str(folder.relative_to(app.store.home)),
            bytes=_size_of(folder),
            removes=True,
            why="cut off",
        )
        for folder in sorted(doomed)
        if folder.is_dir() and not folder.is_symlink()
    ]


def remove_here(store: Store, choice: Choice) -> tuple[int, str | None]:
    """Remove a folder of this computer; the bytes that are free, and why something is left."""
    path = store.home / (f"runs/{choice.name}" if choice.kind == "run" else choice.name)
    if path.is_symlink():
        return 0, "it is a link"
    aside = path.with_name(f".removed-{os.urandom(8).hex()}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return 0, None
    except OSError as error:
        return 0, error.strerror or str(error)
    return remove_tree(aside)
