"""The run's files as they arrive here: logs and metrics that grow, records, artifacts."""

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import psutil

from inventories.codec import dump, from_json, load
from inventories.disk import lock
from inventories.disk.files import write_atomic
from inventories.disk.store import RunFolder
from inventories.errors import CorruptFile
from inventories.runs.activity import HangReport, RankActivity
from inventories.runs.outputs import NodeOutputs
from inventories.runs.records import NodeEnding, NodeRecord, RankRecord
from inventories.runs.run import Run, RunNode, RunOptions
from remote.errors import BadAnswer
from remote.files.receive import FileReceiver, plain_parts
from remote.runs import outputs
from remote.runs.metrics_lines import MetricsFile, read_metrics_file
from remote.runs.node_state import RANK_REASONS, problem_of
from remote.runs.rank_activity import hang_report, rank_activity
from remote.sessions.answers import answer_as, reading
from remote.shared import constants, flight_recorder
from remote.shared.checkpoint_files import lacking, parts_in
from remote.shared.files import digest_of, read_json, write_json

MAX_ARTIFACT_BYTES = 4 * 1000**3
"""Artifacts of one node that are brought back; larger ones stay there, for `gpuctl pull`."""
MAX_CHECKPOINT_BYTES = 64 * 1000**2
"""Checkpoints that are brought back with a run's end, which is to take seconds; larger ones stay on the node."""

Record = TypeVar("Record", RankRecord, NodeRecord)


def new_incoming(folder: RunFolder) -> Path:
    """Return a new path for received files, with the process in its name.

    Two commands, or two threads of one, may bring the files of one run at once.
    """
    return folder.path / f"incoming-{os.getpid()}-{secrets.token_hex(4)}"


def mirrored_path(folder: RunFolder) -> Path:
    """A file that exists while the checkpoints here are known to come from an active run.

    The run's first node may have newer ones then.
    """
    return folder.path / "mirrored"


def keep_checkpoints(folder: RunFolder, brought: Path, *, final: bool) -> list[str]:
    """Put a folder of checkpoints, whole, in place of the present ones; `final`: the run is over.

    Parts that other nodes wrote and have brought stay, and so do the lists of nodes that have ended. Two commands may
    do so at once: the later one's stay. Returns names under which nodes wrote other content. Raises InventoryError
    where the folder can't be locked.
    """
    old, mark = brought.with_name(".replaced"), mirrored_path(folder)
    shutil.rmtree(old, ignore_errors=True)
    with lock.hold(folder.path / "lock", subject=f"the checkpoints of run {folder.id}", command="gpuctl"):
        first = folder.load_run().nodes[0].name if folder.run_path.exists() else ""
        if not final:
            mark.touch(mode=0o600)
            write_parts(
                folder, {node: names for node, names in written_parts(folder).items() if node != first}
            )
        if folder.checkpoints_path.exists():
            folder.checkpoints_path.rename(old)
        brought.rename(folder.checkpoints_path)
        _move(old, folder.checkpoints_path, lacking(folder.checkpoints_path))
        # One that the first node lists and has not sent is another's till then.
        of_others = [
            name
            for name, node in _writers(folder).items()
            if node != first or not (folder.checkpoints_path / name).exists()
        ]
        _move(old, folder.checkpoints_path, of_others)
        differ = _differing(folder, old)
        if final:
            mark.unlink(missing_ok=True)
    shutil.rmtree(old, ignore_errors=True)
    return differ


def keep_parts(folder: RunFolder, node: str, brought: Path) -> list[str]:
    """Add files of another node than the first to the existing ones. Raises InventoryError as above.

    A file that counts from another node, which has listed it and not brought it yet, is this node's till then.
    Returns names under which it wrote other content than another node of the run.
    """
    with lock.hold(folder.path / "lock", subject=f"the checkpoints of run {folder.id}", command="gpuctl"):
        differ = _differing(folder, brought)
        writers = _writers(folder)
        of_script = [name for name, writer in writers.items() if writer == node]
        not_here = [name for name in writers if not (folder.checkpoints_path / name).exists()]
        _move(brought, folder.checkpoints_path, [*(of_script or parts_in(brought)), *not_here])
    shutil.rmtree(brought, ignore_errors=True)
    return differ


def _differing(folder: RunFolder, other_folder: Path) -> list[str]:
    """Return the names, of files that several nodes wrote, under which a folder has other content than is kept."""
    nodes = Counter(name for names in written_parts(folder).values() for name in names)
    pairs = {name: (other_folder / name, folder.checkpoints_path / name) for name in nodes if nodes[name] > 1}
    return [
        name
        for name, (other, current) in pairs.items()
        if other.is_file() and current.is_file() and not _same(other, current)
    ]


def written_parts(folder: RunFolder) -> dict[str, list[str]]:
    """Return the names of the checkpoint files that a script's ranks wrote, by node.

    A node that has not reported yet is left out.
    """
    return {
        node: names
        for node, names in read_json(folder.path / constants.PARTS).items()
        if isinstance(names, list)
    }


def write_parts(folder: RunFolder, names: Mapping[str, Sequence[str]]) -> None:
    """Keep which files of a script's checkpoints each node wrote."""
    write_json(folder.path / constants.PARTS, dict(names))


def _writers(folder: RunFolder) -> dict[str, str]:
    """Return the node whose file counts, by name: of several that wrote one of that name, the first of the run."""
    written = written_parts(folder)
    nodes = [node.name for node in folder.load_run().nodes] if written else []
    return {name: node for node in reversed(nodes) for name in written.get(node, ())}


def _move(source: Path, target: Path, names: Iterable[str]) -> None:
    """Move the existing files among these."""
    for name in names:
        if (source / name).is_file():
            (target / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (source / name).replace(target / name)


class RunFiles:
    """A node's share of a run's folder: logs, metrics and usage grow, records are replaced, artifacts arrive."""

    def __init__(
        self, folder: RunFolder, node: RunNode, incoming: Path, options: RunOptions | None = None
    ) -> None:
        """`incoming`: where artifacts, checkpoints and outputs are taken in, in a folder of the node's name."""
        self._folder = folder
        self._written: NodeOutputs | None = None
        self._node = node
        ranks = range(node.first_rank, node.first_rank + node.nproc)
        self._growing = {f"logs/{node.name}.log"}
        self._growing |= {constants.RANK_LOG.format(rank) for rank in ranks}
        self._growing |= {constants.RANK_METRICS.format(rank) for rank in ranks}
        self._growing |= {constants.RANK_DUMP.format(rank) for rank in ranks}
        self._growing.add(f"usage/{node.name}.jsonl")
        self._records = {constants.RANK_RECORD.format(rank): rank for rank in ranks}
        limit = MAX_ARTIFACT_BYTES + MAX_CHECKPOINT_BYTES + outputs.max_output_bytes(options)
        self.intake = FileReceiver(incoming / node.name, max_bytes=limit)

    def offsets(self) -> dict[str, int]:
        """The node's growing files, each with the number of its bytes that are here already."""
        return {name: self._size(name) for name in sorted(self._growing)}

    def records(self) -> list[str]:
        """The paths of the node's rank records, and of its end while that lasts."""
        return [*sorted(self._records), constants.ENDING]

    def ending(self, body: bytes) -> NodeEnding:
        """Return the node's end while it lasts. Raises BadAnswer."""
        with reading(self._node.name, "its record of the run's end"):
            return from_json(NodeEnding, json.loads(body), constants.ENDING)

    def hang_report(self, body: bytes) -> HangReport | None:
        """Save the node's report that its ranks make no progress; an empty one withdraws it.

        A later analysis of a command here is then over as well.
        """
        folder = self._folder.path / constants.HANGS
        path = folder / f"{self._node.name}.json"
        if not body:
            if path.exists():
                self._folder.hang_path.unlink(missing_ok=True)
                path.unlink()
            return None
        report = hang_report(self._node.name, body)
        folder.mkdir(mode=0o700, exist_ok=True)
        write_atomic(path, body)
        return report

    def keep_checkpoints(self) -> list[str]:
        """Put the checkpoints that the node has sent, all of them by now, into the run's folder.

        If a file was refused, the old set stays: half a set is no set. Returns names under which several nodes
        wrote other content.
        """
        brought = self.intake.root / constants.CHECKPOINTS
        whole = not any(path.startswith("checkpoints/") for path in self.intake.refused)
        if not (whole and brought.is_dir()):
            return []
        if self._node.rank != 0:
            return keep_parts(self._folder, self._node.name, brought)
        return keep_checkpoints(self._folder, brought, final=True)

    def wrote_parts(self, body: bytes) -> None:
        """Keep the node's list of the checkpoint files that a script's ranks wrote there."""
        names = json.loads(body)
        if not isinstance(names, list):
            raise BadAnswer(f"{self._node.name} sent a list of checkpoints that can't be read.")
        for name in names:
            plain_parts(name)
        with lock.hold(self._folder.path / "lock", subject="the checkpoints' list", command="gpuctl"):
            write_parts(self._folder, {**written_parts(self._folder), self._node.name: names})

    def written(self, header: Mapping[str, Any], body: bytes) -> None:
        """Save the node's list of the run's files in the project's folder."""
        self._written = outputs.listing_of(self._node.name, header, body)

    def keep_outputs(self) -> None:
        """Move the received files, complete by now, into the run's folder, and save the list."""
        if self._written is not None and (self._written.files or self._written.outside):
            outputs.keep_outputs(self._folder, self._written, self.intake.root / constants.OUTPUTS)

    def _size(self, path: str) -> int:
        target = self._folder.path / path
        return target.stat().st_size if target.exists() else 0

    def append(self, path: str, offset: int, body: bytes) -> None:
        """Append to a log or a metrics file of one of the node's own ranks, or to the node's usage."""
        if path not in self._growing:
            raise BadAnswer(f"{self._node.name} sent {path!r}, which is none of its files; it was refused.")
        if not 0 <= offset <= self._size(path):
            raise BadAnswer(f"{self._node.name} sent byte {offset} of {path}, out of order; it was refused.")
        target = self._folder.path / path
        target.parent.mkdir(mode=0o700, exist_ok=True)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b") as file:
            file.seek(offset)
            file.write(body)

    def record(self, path: str, body: bytes) -> RankRecord:
        """Keep a rank's record."""
        if path not in self._records:
            raise BadAnswer(f"{self._node.name} sent {path!r}, which is none of its records; it was refused.")
        with reading(self._node.name, "a rank's record"):
            record = answer_as(RankRecord, json.loads(body), path)
            if wrong := problem_of(record.ended, RANK_REASONS):
                raise CorruptFile(f"{wrong}.")
        if record.rank != self._records[path]:
            raise BadAnswer(f"{self._node.name}: {path} is the record of rank {record.rank}; it was refused.")
        write_atomic(self._folder.path / path, dump(record))
        return record


def merge_artifacts(folder: RunFolder, nodes: Sequence[RunNode], incoming: Path) -> None:
    """Move the nodes' files into `artifacts/`, and remove `incoming`, and such folders of processes that are gone.

    A name that two nodes brought with different content is kept from the node of lower rank; the other's is
    put under `artifacts/<node's name>/`, or `<node's name>-2` where that is taken.
    """
    brought: dict[str, dict[Path, Path]] = {}
    for node in nodes:
        top = incoming / node.name / constants.ARTIFACTS
        brought[node.name] = {
            file.relative_to(top): file for file in sorted(top.rglob("*")) if file.is_file()
        }
    names = {name for files in brought.values() for name in files}
    for node in sorted(nodes, key=lambda node: node.rank):
        for name, file in brought[node.name].items():
            target = _place_of(folder.artifacts_path, node.name, name, file, names)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.replace(target)
    for left in folder.path.glob("incoming-*"):
        pid = left.name.split("-")[1]
        if left == incoming or (pid.isdecimal() and not psutil.pid_exists(int(pid))):
            shutil.rmtree(left, ignore_errors=True)


def _place_of(artifacts: Path, node: str, name: Path, file: Path, occupied: Collection[Path]) -> Path:
    """Return the place of a node's file: its name, else a folder of the node's own, where it replaces an earlier one.

    `occupied`: the names of all received files, which may look like the ones in that folder.
    """
    place = artifacts / name
    if _is_room(place, artifacts) and (not place.exists() or _same(place, file)):
        return place
    candidates = (Path(node if number == 1 else f"{node}-{number}") / name for number in count(1))
    return next(
        artifacts / path
        for path in candidates
        if path not in occupied and _is_room(artifacts / path, artifacts)
    )


def _is_room(place: Path, artifacts: Path) -> bool:
    """Return whether a file can be put there: no folder is in its way, and no file in the way of its folders."""
    above = place.parents[: len(place.relative_to(artifacts).parts) - 1]
    return not place.is_dir() and not any(folder.exists() and not folder.is_dir() for folder in above)


def _same(first: Path, other: Path) -> bool:
    return first.stat().st_size == other.stat().st_size and digest_of(first) == digest_of(other)


def read_rank_records(folder: RunFolder, nodes: Sequence[RunNode]) -> dict[str, list[RankRecord]]:
    """The records that have arrived, by node."""
    paths = {
        node.name: [constants.RANK_RECORD.format(node.first_rank + n) for n in range(node.nproc)]
        for node in nodes
    }
    return {name: _records(RankRecord, [folder.path / path for path in paths[name]]) for name in paths}


def save_node_record(folder: RunFolder, record: NodeRecord) -> None:
    """Keep a node's record here, as `nodes/NAME.json`."""
    write_atomic(folder.nodes_path / f"{record.node}.json", dump(record))


def read_node_records(folder: RunFolder, nodes: Sequence[RunNode]) -> list[NodeRecord]:
    """The records that are here."""
    return _records(NodeRecord, [folder.nodes_path / f"{node.name}.json" for node in nodes])


def read_hang_reports(folder: RunFolder, nodes: Sequence[RunNode]) -> dict[str, HangReport]:
    """The reports that are here, by node."""
    paths = {node.name: folder.path / constants.HANGS / f"{node.name}.json" for node in nodes}
    return {name: hang_report(name, path.read_bytes()) for name, path in paths.items() if path.exists()}


def read_dumps(folder: RunFolder, ranks: Mapping[str, Sequence[RankRecord]]) -> dict[int, RankActivity]:
    """Return the activity of each rank at a timeout of NCCL's collective, by rank, without unreadable ones.

    `ranks`: the records by node.
    """
    records = {record.rank: (node, record) for node, some in ranks.items() for record in some}
    dumps = read_files({rank: folder.path / constants.RANK_DUMP.format(rank) for rank in records})
    by_rank = {}
    for rank, entries in dumps.items():
        node, record = records[rank]
        now = record.ended_at or max((entry["entered_at"] for entry in entries), default=0.0)
        by_rank[rank] = rank_activity(node, {"rank": rank, "now": now, "collectives": entries})
    return by_rank


def _records(cls: type[Record], paths: Sequence[Path]) -> list[Record]:
    again = "Remove the file; `gpuctl results` brings it again while the machines are there."
    return [load(cls, path.read_bytes(), str(path), rebuild=again) for path in paths if path.exists()]


def read_metrics(folder: RunFolder, run: Run) -> dict[int, MetricsFile]:
    """Return the metrics of each rank."""
    return {
        rank: _metrics_file(folder.path / constants.RANK_METRICS.format(rank))
        for rank in range(run.world_size)
    }


def read_usage(folder: RunFolder, run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return the load of each node: its lines, as the node wrote them."""
    return {
        node.name: _metrics_file(folder.path / constants.USAGE / f"{node.name}.jsonl").lines
        for node in run.nodes
    }


def _metrics_file(path: Path) -> MetricsFile:
    if not path.exists():
        return MetricsFile()
    with path.open("rb") as file:
        return read_metrics_file(file)


def tail(folder: RunFolder, rank: int, *, max_bytes: int = 65_536) -> str:
    """Return the end of a rank's log; empty without one."""
    path = folder.path / constants.RANK_LOG.format(rank)
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - max_bytes))
        return file.read().decode(errors="replace")


READ_CPU_S = 10.0
"""For one file: the largest takes some seconds."""


READ_S = 120.0
"""For one file on a machine that has no time for it."""


def read_files(paths: Mapping[int, Path], *, cpu_s: float = READ_CPU_S) -> dict[int, list[dict[str, Any]]]:
    """Return the last collectives in each file, by its rank; what can't be read, or takes too long, is left out."""
    dumps = {}
    left = {rank: path for rank, path in paths.items() if path.exists()}
    while left:
        # A process reads one file after the other, until one takes it too long.
        command = [sys.executable, "-I", flight_recorder.__file__, str(cpu_s), *map(str, left.values())]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=READ_S * len(left),
                check=False,
            ).stdout
        except subprocess.TimeoutExpired as error:
            done = error.stdout or b""
        lines = done.split(b"\n")[:-1]
        for rank, line in zip(left, lines, strict=False):
            if (entries := json.loads(line)) is not None:
                dumps[rank] = entries
        # The reader ended at the file after its last output.
        left = dict(list(left.items())[len(lines) + 1 :])
    return dumps
