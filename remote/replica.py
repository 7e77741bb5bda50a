"""The run's files as they arrive here. Nothing that a node says can reach outside the run's folder."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from inventories.codec import from_json
from inventories.run import NodeRecord, RankRecord, Run, RunNode
from inventories.store import RunFolder
from remote.errors import BadAnswer
from remote.tree import human_bytes

MAX_ARTIFACT_BYTES = 4 * 1000**3
"""Artifacts of one node that are brought back; larger ones stay there, for `gpuctl pull`."""
MAX_DEPTH = 32


def plain_parts(path: str) -> list[str]:
    """The components of a relative path that a node sent. Raises BadAnswer for anything but plain names."""
    parts = path.split("/")
    bad = any(part in ("", ".", "..") or "\0" in part or "\\" in part or len(part) > 255 for part in parts)
    if bad or len(parts) > MAX_DEPTH:
        raise BadAnswer(
            f"A node sent the file name {path!r}, which is not a plain relative path; it was refused."
        )
    return parts


class Intake:
    """Files that come in chunks: each is written beside its place and renamed when it is whole."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = 0
        self.bytes = 0
        self._open: dict[str, tuple[Path, Any]] = {}

    def chunk(self, path: str, offset: int, body: bytes) -> None:
        """Take a chunk; chunks of one file come in order."""
        temporary, digest = self._open.get(path) or self._start(path)
        if offset != temporary.stat().st_size:
            raise BadAnswer(f"The file {path!r} came out of order; it was refused.")
        with temporary.open("ab") as file:
            file.write(body)
        digest.update(body)

    def complete(self, path: str, expected_bytes: int, sha256: str, mode: int) -> Path:
        """The file is whole: check it and put it in its place."""
        temporary, digest = self._open.get(path) or self._start(path)
        del self._open[path]
        size = temporary.stat().st_size
        if size != expected_bytes or digest.hexdigest() != sha256:
            temporary.unlink()
            raise BadAnswer(f"The file {path!r} arrived damaged; it was refused.")
        temporary.chmod(0o700 if mode & 0o100 else 0o600)
        target = self.root.joinpath(*plain_parts(path))
        temporary.replace(target)
        self.files += 1
        self.bytes += size
        return target

    def discard(self) -> None:
        """Remove what never became whole."""
        for temporary, _ in self._open.values():
            temporary.unlink(missing_ok=True)
        self._open.clear()

    def _start(self, path: str) -> tuple[Path, Any]:
        target = self.root.joinpath(*plain_parts(path))
        folder = self.root
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in plain_parts(path)[:-1]:
            folder = folder / part
            # The folder is ours alone and only plain files are ever made in it, so there are no links to follow.
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                raise BadAnswer(
                    f"The file name {path!r} goes through something that is no folder; it was refused."
                )
            folder.mkdir(mode=0o700, exist_ok=True)
        if target.is_dir():
            raise BadAnswer(f"The file {path!r} has the name of a folder; it was refused.")
        temporary = target.with_name(f".incoming-{os.getpid()}-{len(self._open)}")
        temporary.unlink(missing_ok=True)
        temporary.touch(mode=0o600)
        self._open[path] = (temporary, hashlib.sha256())
        return self._open[path]


class Replica:
    """One node's share of a run's folder: logs and metrics grow, records are replaced, artifacts arrive."""

    def __init__(self, folder: RunFolder, run: Run, node: RunNode) -> None:
        self._folder = folder
        self._node = node
        ranks = range(node.first_rank, node.first_rank + node.nproc)
        self._growing = {f"logs/{node.name}.log": None}
        self._growing |= {f"logs/rank-{rank}.log": None for rank in ranks}
        self._growing |= {f"metrics/rank-{rank}.jsonl": None for rank in ranks}
        self._records = {f"ranks/rank-{rank}.json" for rank in ranks}
        self._run = run
        self.intake = Intake(folder.path / "incoming" / node.name)

    def offsets(self) -> dict[str, int]:
        """Bytes that are here already, by path."""
        paths = {path: self._folder.path / path for path in self._growing}
        return {name: path.stat().st_size for name, path in paths.items() if path.exists()}

    def append(self, path: str, offset: int, body: bytes) -> None:
        """Append to a log or a metrics file of one of the node's own ranks."""
        if path not in self._growing:
            raise BadAnswer(f"{self._node.name} sent {path!r}, which is none of its files; it was refused.")
        target = self._folder.path / path
        target.parent.mkdir(mode=0o700, exist_ok=True)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b") as file:
            file.seek(offset)
            file.write(body)

    def record(self, path: str, body: bytes) -> RankRecord:
        """Keep a rank's record."""
        if path not in self._records:
            raise BadAnswer(f"{self._node.name} sent {path!r}, which is none of its records; it was refused.")
        try:
            document = json.loads(body)
            known = {key: document[key] for key in RankRecord.__dataclass_fields__ if key in document}
            record = from_json(RankRecord, known, f"{self._node.name}:{path}")
        except (ValueError, TypeError) as error:
            raise BadAnswer(f"{self._node.name}: the record {path} can't be read: {error}.") from error
        target = self._folder.path / path
        target.parent.mkdir(mode=0o700, exist_ok=True)
        temporary = target.with_name(f".{target.name}")
        temporary.write_text(json.dumps(known))
        temporary.chmod(0o600)
        temporary.replace(target)
        return record


def merge_artifacts(folder: RunFolder, nodes: Sequence[RunNode]) -> None:
    """Move what the nodes brought into `artifacts/`.

    A name that two nodes brought with different content is kept from the node of lower rank; the other's is
    put under `artifacts/<node's name>/`.
    """
    for node in sorted(nodes, key=lambda node: node.rank):
        incoming = folder.path / "incoming" / node.name / "artifacts"
        if not incoming.is_dir():
            continue
        for file in sorted(path for path in incoming.rglob("*") if path.is_file()):
            name = file.relative_to(incoming)
            target = folder.artifacts_path / name
            if target.exists() and not _same(target, file):
                target = folder.artifacts_path / node.name / name
            try:
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                file.replace(target)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                # One node's file has the name of another node's folder.
                target = folder.artifacts_path / node.name / name
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                file.replace(target)
    shutil.rmtree(folder.path / "incoming", ignore_errors=True)


def _same(one: Path, other: Path) -> bool:
    def digest(path: Path) -> bytes:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()

    return one.stat().st_size == other.stat().st_size and digest(one) == digest(other)


def read_rank_records(folder: RunFolder, nodes: Sequence[RunNode]) -> dict[str, list[RankRecord]]:
    """The records that have arrived, by node."""
    found: dict[str, list[RankRecord]] = {}
    for node in nodes:
        paths = [
            folder.path / "ranks" / f"rank-{node.first_rank + local}.json" for local in range(node.nproc)
        ]
        found[node.name] = [
            from_json(RankRecord, json.loads(path.read_bytes()), str(path)) for path in paths if path.exists()
        ]
    return found


def save_node_record(folder: RunFolder, record: NodeRecord) -> None:
    """Keep a node's record here, as `nodes/NAME.json`."""
    from inventories.codec import to_json
    from inventories.files import write_atomic

    (folder.path / "nodes").mkdir(mode=0o700, exist_ok=True)
    write_atomic(folder.path / "nodes" / f"{record.node}.json", json.dumps(to_json(record)).encode())


def read_node_records(folder: RunFolder, nodes: Sequence[RunNode]) -> list[NodeRecord]:
    """The records that are here."""
    paths = [folder.path / "nodes" / f"{node.name}.json" for node in nodes]
    return [
        from_json(NodeRecord, json.loads(path.read_bytes()), str(path)) for path in paths if path.exists()
    ]


def read_metrics(folder: RunFolder, run: Run) -> dict[int, list[dict[str, Any]]]:
    """Metrics lines by rank; a line that is no JSON object (a torn last one) is left out."""
    return {
        rank: list(_lines(folder.path / "metrics" / f"rank-{rank}.jsonl")) for rank in range(run.world_size)
    }


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            parsed = metrics_line(line)
            if parsed is not None:
                yield parsed


def metrics_line(line: bytes) -> dict[str, Any] | None:
    """One line of a metrics file; None where it is no JSON object."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def tail(folder: RunFolder, rank: int, *, max_bytes: int = 16_384) -> str:
    """The end of a rank's log; empty where there is none."""
    path = folder.path / "logs" / f"rank-{rank}.log"
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - max_bytes))
        return file.read().decode(errors="replace")


def summary(intakes: Sequence[Intake]) -> str:
    """`3 files, 1.2 MB`."""
    files = sum(intake.files for intake in intakes)
    return f"{files} files, {human_bytes(sum(intake.bytes for intake in intakes))}"
