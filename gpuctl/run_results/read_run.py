"""Read a run's folder: the records of the run alone, or all of its evidence."""

import itertools
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gpuctl.errors import Failed
from gpuctl.run_results.evidence import Evidence, Records
from gpuctl.run_results.metrics import has_losses
from gpuctl.run_results.outputs import MAX_LISTED, outputs_of
from gpuctl.run_results.rank_metrics import RankMetrics
from gpuctl.run_results.written_losses import written_losses
from inventories.codec import from_json, load
from inventories.disk.store import RunFolder
from inventories.errors import CorruptFile
from inventories.runs.hang import Hang
from inventories.runs.outputs import FileKind, RunFile
from inventories.runs.records import NodeRecord
from inventories.runs.run import Checkpoints, Run
from inventories.runs.search import Search, TrialsFile
from remote.files.checkpoints import in_folder
from remote.runs.outputs import read_outputs
from remote.runs.run_files import (
    mirrored_path,
    read_dumps,
    read_hang_reports,
    read_metrics,
    read_node_records,
    read_rank_records,
    read_usage,
    tail,
)
from remote.shared.constants import RANK_LOG

TRIALS = "artifacts/trials.json"
FOLDERS: tuple[tuple[FileKind, str], ...] = (
    ("log", "logs"),
    ("metrics", "metrics"),
    ("artifact", "artifacts"),
    ("output", "outputs"),
    ("checkpoint", "checkpoints"),
)


def read_records(folder: RunFolder, run: Run, watched: Mapping[str, NodeRecord] | None = None) -> Records:
    """Return the records of a run.

    `watched`: records of nodes that a command here made, as it lost the nodes; a node's own record counts instead.
    """
    nodes = {record.node: record for record in read_node_records(folder, run.nodes)}
    again = "Remove the file; `gpuctl why` makes it again while the run goes on."
    path, ranks = folder.hang_path, read_rank_records(folder, run.nodes)
    return Records(
        run=run,
        ranks=ranks,
        nodes=tuple({**(watched or {}), **nodes}.values()),
        hang=load(Hang, path.read_bytes(), str(path), rebuild=again) if path.exists() else None,
        hang_reports=read_hang_reports(folder, run.nodes),
        dumps=read_dumps(folder, ranks),
    )


def read_run(folder: RunFolder, run: Run, watched: Mapping[str, NodeRecord] | None = None) -> Evidence:
    """Return the evidence of a run. `watched`: as in `read_records`."""
    metrics = rank_metrics(folder, run)
    outputs = read_outputs(folder, run.nodes)
    losses = None
    if not run.built_in and not has_losses(metrics):
        log = folder.path / RANK_LOG.format(0)
        losses = written_losses(log, folder.outputs_path, outputs_of(outputs)[0])
    search = None
    if run.searched:
        with suppress(Failed):
            search = read_search(folder)
    return Evidence(
        **vars(read_records(folder, run, watched)),
        folder=folder.path,
        metrics=metrics,
        log_tails={rank: tail(folder, rank) for rank in range(run.world_size)},
        losses=losses,
        usage=read_usage(folder, run),
        outputs=outputs,
        files=files_of(folder),
        checkpoints=checkpoints_left(folder, run),
        search=search,
    )


def rank_metrics(folder: RunFolder, run: Run) -> dict[int, RankMetrics]:
    """Return the metrics of each rank."""
    return {rank: RankMetrics.of(file) for rank, file in read_metrics(folder, run).items()}


def read_search(folder: RunFolder) -> Search | None:
    """Return the search in a run's folder, as far as known. `None`: it ended before a trial. Raises Failed."""
    path = folder.path / TRIALS
    if not path.exists():
        return None
    try:
        trials = from_json(TrialsFile, json.loads(path.read_text()), str(path))
    except (CorruptFile, ValueError, RecursionError) as error:
        raise Failed(f"{path} can't be read: {error} The run's log tells of the trials, too.") from error
    return Search.of(trials.metric, trials.mode, trials.trials)


def checkpoints_left(folder: RunFolder, run: Run) -> dict[str, Checkpoints]:
    """Return, by node, the checkpoints that a run left, where these are here as they were at its end."""
    if mirrored_path(folder).exists():
        return {}
    checkpoints = in_folder(folder.checkpoints_path, run)
    return {} if checkpoints is None or checkpoints.lacks else {run.nodes[0].name: checkpoints}


def files_of(folder: RunFolder) -> tuple[RunFile, ...]:
    """Return the copies of a run here: logs, metrics, artifacts, outputs, checkpoints; up to MAX_LISTED of a kind."""
    return tuple(
        RunFile(
            kind=kind,
            path=os.path.relpath(path, folder.path).encode("utf-8", "backslashreplace").decode(),
            bytes=size,
        )
        for kind, name in FOLDERS
        for path, size in itertools.islice(_files_below(folder.path / name), MAX_LISTED)
    )


def _files_below(folder: Path) -> Iterator[tuple[str, int]]:
    for inner, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = f"{inner}/{name}"
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield path, status.st_size
