"""Selection of the files of earlier runs that a script may load: its own runs' files, and files that it names."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from gpuctl.scripts.sources import names_in, only_writes, reads_files
from inventories.disk.store import RunFolder
from inventories.errors import InventoryError
from remote.files.earlier import EarlierFiles
from remote.shared.checkpoint_sets import sets_in

if TYPE_CHECKING:
    from gpuctl.workflow.runs.request.project import Project


def loadable(project: "Project", earlier: Mapping[str, EarlierFiles], runs: Path) -> dict[str, EarlierFiles]:
    """Return the files of earlier runs that a script may load; empty if its sources load no files.

    `runs`: the folder of the runs' records.
    """
    script, sources = project.script, project.sources
    if sources and not any(map(reads_files, sources)):
        return {}
    ids = {run for left in earlier.values() for run in left.runs.values()}
    own_runs = {run for run in ids if run and _script_of(runs / run) == script.title}
    typed = names_in((), script.args)
    written = {
        path
        for left in earlier.values()
        for path in left.files
        if (name := PurePosixPath(path).name) not in typed and only_writes(sources, name)
    }
    return selected(earlier, own_runs, names_in(sources, script.args), written)


def selected(
    earlier: Mapping[str, EarlierFiles],
    own_runs: Collection[str],
    names: Collection[str],
    written: Collection[str] = (),
) -> dict[str, EarlierFiles]:
    """Return the files that these runs wrote, or of whose paths a part is among the names, without the `written`.

    A checkpoint in parts is selected whole.
    """
    chosen = {
        path
        for left in earlier.values()
        for path in left.files
        if left.runs.get(path) in own_runs or not set(path.split("/")).isdisjoint(names)
    }.difference(written)
    paths = {path for left in earlier.values() for path in left.files}
    for members in sets_in(paths).values():
        if not chosen.isdisjoint(members):
            chosen.update(members)
    return {
        node: replace(left, files={path: entry for path, entry in left.files.items() if path in chosen})
        for node, left in earlier.items()
    }


def _script_of(run: Path) -> str | None:
    with suppress(InventoryError, OSError):
        return RunFolder(run).load_run().script
    return None
