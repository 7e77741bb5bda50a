"""Leftovers on this computer, and their removal: runs, and files of commands that were killed."""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from gpuctl.app import App
from gpuctl.command_results.upkeep import CleanItem
from gpuctl.scripts.sources import script_path
from gpuctl.workflow.clusters.clean.choices import LocalRun, began_at, places_of
from gpuctl.workflow.runs.runs import final_result
from inventories.disk.store import RunFolder, Store
from inventories.errors import InventoryError
from remote.files.checkpoints import in_folder
from remote.files.leftovers import Digests, Item
from remote.shared.files import digest_of
from remote.shared.trees import remove_tree, walk

NEVER_LAUNCHED_AGE = timedelta(days=1)
"""The folder of a run without a record that is younger may be of a run that is just being started."""


def runs_here(app: App) -> list[LocalRun]:
    """Return all runs of this computer, oldest first."""
    return [_local(folder) for folder in app.store.runs()]


def _local(folder: RunFolder) -> LocalRun:
    link = folder.path.is_symlink()
    sizes = {} if link else _sizes_in(folder.path)
    files, size = (
        {name: length for name, (length, _) in sizes.items()},
        sum(disk for _, disk in sizes.values()),
    )
    try:
        run, over = folder.load_run(), final_result(folder) is not None
    except InventoryError:
        return LocalRun(id=folder.id, cluster=None, bytes=size, link=link, files=files)
    return LocalRun(
        id=folder.id,
        cluster=run.cluster,
        # As `train --resume` compares them.
        script="built-in" if run.built_in else script_path(run) or Path(run.script).name,
        built_in=run.built_in,
        over=over,
        bytes=size,
        link=link,
        checkpoints=in_folder(folder.checkpoints_path, run) is not None,
        files=files,
        nodes=tuple(part.name for part in run.nodes),
        project=(run.options.root or run.options.project) if run.options else None,
    )


def _sizes_in(folder: Path) -> dict[str, tuple[int, int]]:
    """Return, by path in a folder, a file's length, and the bytes that it takes on the disk."""
    sizes = {}
    for name in walk(folder):
        with suppress(OSError):
            status = os.lstat(folder / name)
            sizes[name] = status.st_size, status.st_blocks * 512
    return sizes


def leftovers_here(app: App, now: datetime) -> list[CleanItem]:
    """Return the folders of runs that were never launched, and of removals that were interrupted."""
    runs, clusters = app.store.home / "runs", app.store.home / "clusters"
    doomed = [*runs.glob(".removed-*"), *clusters.glob(".removed-*")]
    for folder in runs.glob("[!.]*"):
        began = began_at(folder.name)
        if began is not None and now - began > NEVER_LAUNCHED_AGE and not (folder / "run.json").exists():
            doomed.append(folder)
    return [
        CleanItem(
            where=None,
            cluster=None,
            kind="removed",
            name=str(folder.relative_to(app.store.home)),
            bytes=sum(disk for _, disk in _sizes_in(folder).values()),
            removes=True,
            why="cut off",
        )
        for folder in sorted(doomed)
        if folder.is_dir() and not folder.is_symlink()
    ]


def digests_here(store: Store, run: str, items: Sequence[Item]) -> Digests:
    """Return the digests of the local copies of a run's files: equal size does not prove equal content."""
    folder = store.run(run).path
    files = [file for item in items if (item.kind, item.name) == ("run", run) for file in item.files or ()]
    copies = {file: [folder / place for place in places_of(file)] for file in files}
    return {
        f"{file.node}/{file.path}": [digest_of(path) for path in paths if path.is_file()]
        for file, paths in copies.items()
    }


def remove_here(store: Store, item: CleanItem) -> tuple[int, str | None]:
    """Remove a folder of this computer; return the bytes freed, and why something is left."""
    path = store.home / (f"runs/{item.name}" if item.kind == "run" else item.name)
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
