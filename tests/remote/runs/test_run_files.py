"""Test that a node's files stay within the run's folder, whatever the node sends."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import a_run

from inventories.disk.store import RunFolder, Store
from inventories.runs.run import Run, RunNode, RunOptions
from remote.errors import BadAnswer
from remote.files.receive import FileReceiver, plain_parts
from remote.runs.run_files import (
    RunFiles,
    merge_artifacts,
    mirrored_path,
    new_incoming,
    read_rank_records,
)

ROOT = Path(__file__).parents[3]


def send(intake: FileReceiver, path: str, body: bytes, *, sha256: str | None = None) -> None:
    intake.chunk(path, 0, body)
    intake.complete(path, len(body), sha256 or hashlib.sha256(body).hexdigest(), 0o644)


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../../x",
        "/etc/passwd",
        "a//b",
        ".",
        "",
        "a/./b",
        "a\0b",
        "x" * 300,
        "a/" * 40,
        "a/\ud800",
        5,
        None,
    ],
)
def test_intake_refuses_hostile_names_one_by_one(tmp_path: Path, path: Any) -> None:
    intake = FileReceiver(tmp_path / "in" / "side")
    send(intake, path, b"evil")
    send(intake, "good.txt", b"good")
    intake.discard()
    assert list(intake.refused) == [path]
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / "in" / "side" / "good.txt"]


@given(
    st.lists(
        st.sampled_from(["..", ".", "a", "b", "", "/", "\0", "~", "a b", "c\n", "\udc80", "\ud800"]),
        min_size=1,
        max_size=5,
    )
)
def test_plain_parts_never_lead_out_of_the_folder(parts: list[str]) -> None:
    path = "/".join(parts)
    try:
        values = plain_parts(path)
    except BadAnswer:
        return
    root = Path("/root-of-the-run")
    resolved = Path(*root.parts, *values)
    assert resolved.is_relative_to(root)
    assert ".." not in resolved.parts


def test_intake_does_not_follow_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside)
    intake = FileReceiver(root)
    send(intake, "link/x", b"evil")
    assert list(intake.refused) == ["link/x"]
    assert not list(outside.iterdir())


def test_intake_drops_damaged_and_misordered_files(tmp_path: Path) -> None:
    intake = FileReceiver(tmp_path)
    send(intake, "a", b"body", sha256="0" * 64)
    intake.chunk("b", 5, b"body")
    intake.chunk("c", 0, b"never whole")
    intake.discard()
    assert sorted(intake.refused) == ["a", "b"]
    assert not list(tmp_path.iterdir())


def test_intake_keeps_interleaved_files_apart(tmp_path: Path) -> None:
    intake = FileReceiver(tmp_path)
    bodies = {"a": b"of a", "b": b"of b", "c": b"of c"}
    for name in ("a", "b"):
        intake.chunk(name, 0, bodies[name])
    for name in ("a", "c", "b"):
        if name == "c":
            intake.chunk(name, 0, bodies[name])
        intake.complete(name, 4, hashlib.sha256(bodies[name]).hexdigest(), 0o644)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == bodies


def test_intake_refuses_files_over_the_byte_limit(tmp_path: Path) -> None:
    intake = FileReceiver(tmp_path, max_bytes=10)
    send(intake, "a", b"123456")
    intake.chunk("b", 0, b"123")
    send(intake, "c", b"12")
    assert intake.refused == {"c": "over the limit of 10 bytes"}
    intake.chunk("b", 3, b"45")
    send(intake, "d", b"1234")
    intake.discard()
    assert intake.refused == dict.fromkeys("cb", "over the limit of 10 bytes")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"123456", "d": b"1234"}
    assert (intake.files, intake.bytes) == (2, 10)


def test_intake_counts_a_replaced_file_once(tmp_path: Path) -> None:
    intake = FileReceiver(tmp_path, max_bytes=10)
    for _ in range(3):
        send(intake, "a", b"123456")
        send(intake, "b", b"1234")
        assert (intake.refused, intake.files, intake.bytes) == ({}, 2, 10)
        intake.begin_again()
    send(intake, "c", b"1")
    send(intake, "a", b"12345", sha256="0" * 64)
    assert intake.refused == {"c": "over the limit of 10 bytes", "a": "it arrived damaged"}
    send(intake, "b", b"123")
    send(intake, "d", b"1")
    send(intake, "e", b"1")
    assert sorted(intake.refused) == ["a", "c", "e"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 10


def test_intakes_of_one_process_and_folder_do_not_mix(tmp_path: Path) -> None:
    item, other = FileReceiver(tmp_path), FileReceiver(tmp_path)
    for intake in (item, other):
        intake.chunk("a", 0, b"first ")
    for intake in (item, other):
        intake.chunk("a", 6, b"half")
    for intake in (item, other):
        intake.complete("a", 10, hashlib.sha256(b"first half").hexdigest(), 0o644)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name == "a"} == {
            "a": b"first half"
        }
    assert [intake.refused for intake in (item, other)] == [{}, {}]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("change", [b"body and more", b"bad!", None])
@pytest.mark.parametrize("read_again_bytes", [0, 100])
def test_intake_refuses_a_file_that_changed_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: bytes | None, read_again_bytes: int
) -> None:
    monkeypatch.setattr("remote.files.receive.READ_AGAIN_BYTES", read_again_bytes)
    intake = FileReceiver(tmp_path)
    intake.chunk("a", 0, b"body")
    (file,) = tmp_path.iterdir()
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change)
    intake.complete("a", 4, hashlib.sha256(b"body").hexdigest(), 0o644)
    noticed = change != b"bad!" or read_again_bytes > 0
    assert intake.refused == ({"a": "it arrived damaged"} if noticed else {})
    assert len(list(tmp_path.iterdir())) == (0 if noticed else 1)


def test_replica_limits_artifacts_and_checkpoints_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.runs.run_files.MAX_ARTIFACT_BYTES", 10)
    monkeypatch.setattr("remote.runs.run_files.MAX_CHECKPOINT_BYTES", 5)
    folder, run = folder_of_two(tmp_path)
    options = RunOptions(bring=("none",))
    intake = RunFiles(folder, run.nodes[0], new_incoming(folder), options).intake
    for path, body in (("artifacts/a", b"1234567890"), ("checkpoints/c", b"12345"), ("artifacts/b", b"1")):
        send(intake, path, body)
    assert intake.refused == {"artifacts/b": "over the limit of 15 bytes"}


BRINGS_AGAIN_AND_AGAIN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from inventories.disk.store import RunFolder
from remote.runs.run_files import keep_checkpoints, new_incoming
folder, final = RunFolder(Path(sys.argv[2])), sys.argv[3] == "True"
brought = new_incoming(folder) / "checkpoints"
print("ready", flush=True)
sys.stdin.readline()
for number in range(200):
    brought.mkdir(parents=True)
    (brought / "shard").write_text(f"{final} {number}")
    keep_checkpoints(folder, brought, final=final)
"""


def test_replica_keeps_checkpoints_from_two_commands_at_once(tmp_path: Path) -> None:
    folder, _ = folder_of_two(tmp_path)
    pipe = subprocess.PIPE
    commands = [
        subprocess.Popen(
            [sys.executable, "-c", BRINGS_AGAIN_AND_AGAIN, str(ROOT), str(folder.path), str(final)],
            stdin=pipe, stdout=pipe, stderr=pipe, text=True,
        )
        for final in (True, False)
    ]  # fmt: skip
    for command in commands:
        assert command.stdout.readline() == "ready\n"
    for command in commands:
        command.stdin.write("\n")
        command.stdin.flush()
    output = [command.communicate(timeout=60)[1] for command in commands]
    assert output == ["", ""]
    last = (folder.checkpoints_path / "shard").read_text()
    assert last in ("True 199", "False 199")
    assert mirrored_path(folder).exists() == (last == "False 199")
    assert not list(folder.path.glob("incoming-*/.replaced"))


def folder_of_two(tmp_path: Path) -> tuple[RunFolder, Run]:
    folder = Store(tmp_path).new_run(datetime.now(UTC))
    nodes = tuple(RunNode(name=f"n-{r}", rank=r, nproc=1, first_rank=r, run_dir="/r") for r in (0, 1))
    run = a_run(run=folder.id, cluster="n", script="x", nodes=nodes, started_at="2026-01-01T00:00:00+00:00")
    return folder, run


def test_replica_accepts_only_files_of_the_nodes_own_ranks(tmp_path: Path) -> None:
    folder, run = folder_of_two(tmp_path)
    files = RunFiles(folder, run.nodes[1], new_incoming(folder))
    files.append("logs/rank-1.log", 0, b"hello")
    files.append("logs/rank-1.log", 5, b" again")
    assert (folder.path / "logs" / "rank-1.log").read_bytes() == b"hello again"
    assert files.offsets() == {
        "hangs/nccl-1": 0,
        "logs/n-1.log": 0,
        "logs/rank-1.log": 11,
        "metrics/rank-1.jsonl": 0,
        "usage/n-1.jsonl": 0,
    }
    assert files.records() == ["ranks/rank-1.json", "ending.json"]
    for offset in (-1, 12, 10**12):
        with pytest.raises(BadAnswer):
            files.append("logs/rank-1.log", offset, b"evil")
    for path in ("logs/rank-0.log", "logs/../run.json", "run.json", "usage/n-0.jsonl", "logs/n-0.log"):
        with pytest.raises(BadAnswer):
            files.append(path, 0, b"evil")
    with pytest.raises(BadAnswer):
        files.record("ranks/rank-0.json", b"{}")
    with pytest.raises(BadAnswer):
        files.record("ranks/rank-1.json", b"[]")


def test_replica_reads_rank_records_with_fewer_and_more_keys(tmp_path: Path) -> None:
    folder, run = folder_of_two(tmp_path)
    old = {"rank": 1, "local_rank": 0, "pid": 7, "started_at": 1.5, "ended_at": 2.5, "exit_code": 0}
    record = RunFiles(folder, run.nodes[1], new_incoming(folder)).record(
        "ranks/rank-1.json", json.dumps(old).encode()
    )
    assert (record.metrics_began_at, record.metrics_began_samples, record.metrics_ended_at) == (
        None,
        None,
        None,
    )
    later = old | {
        "metrics_began_at": 1.75,
        "metrics_began_samples": 64,
        "metrics_ended_at": 2.25,
        "of a newer one": 1,
    }
    RunFiles(folder, run.nodes[1], new_incoming(folder)).record(
        "ranks/rank-1.json", json.dumps(later).encode()
    )
    saved = read_rank_records(folder, run.nodes)["n-1"]
    assert [
        (record.metrics_began_at, record.metrics_began_samples, record.metrics_ended_at) for record in saved
    ] == [(1.75, 64.0, 2.25)]


@pytest.mark.parametrize("reason", ["hung", "stopped", "node_lost", "not_started"])
def test_rank_record_is_refused_for_a_reason_no_rank_gives(tmp_path: Path, reason: str) -> None:
    folder, run = folder_of_two(tmp_path)
    files = RunFiles(folder, run.nodes[1], new_incoming(folder))
    output = {
        "rank": 1,
        "local_rank": 0,
        "pid": 7,
        "started_at": 1.5,
        "exit_code": 127,
        "ended": {"reason": reason},
    }
    with pytest.raises(BadAnswer, match="n-1: a rank's record can't be read: "):
        files.record("ranks/rank-1.json", json.dumps(output).encode())
    whole = output | {"ended": {"reason": "not_started", "program": "x", "detail": "no"}}
    assert files.record("ranks/rank-1.json", json.dumps(whole).encode()).ended is not None


def merged(folder: RunFolder, run: Run, incoming: Path, *brought: Mapping[str, bytes]) -> dict[str, bytes]:
    """Merge the artifacts of each node (path → content); return the run's resulting artifacts."""
    for node, files in zip(run.nodes, brought, strict=True):
        intake = RunFiles(folder, node, incoming).intake
        for name, body in files.items():
            send(intake, f"artifacts/{name}", body)
    merge_artifacts(folder, run.nodes, incoming)
    existing = (path for path in folder.artifacts_path.rglob("*") if path.is_file())
    return {path.relative_to(folder.artifacts_path).as_posix(): path.read_bytes() for path in existing}


def test_merge_artifacts_keeps_files_of_both_nodes(tmp_path: Path) -> None:
    folder, run = folder_of_two(tmp_path)
    incoming = new_incoming(folder)
    result = merged(
        folder,
        run,
        incoming,
        {"same": b"s", "model.pt": b"0", "x": b"file"},
        {"same": b"s", "model.pt": b"1", "x/y": b"in"},
    )
    assert result == {"same": b"s", "model.pt": b"0", "x": b"file", "n-1/model.pt": b"1", "n-1/x/y": b"in"}
    assert not list(folder.path.glob("incoming-*"))


def test_merge_artifacts_replaces_no_file_that_has_a_nodes_name(tmp_path: Path) -> None:
    folder, run = folder_of_two(tmp_path)
    for first, second, then in (
        ({"f": b"0", "n-1/f": b"mine"}, {"f": b"1"}, {"f": b"0", "n-1/f": b"mine", "n-1-2/f": b"1"}),
        ({"g": b"0", "n-1": b"mine"}, {"g": b"1"}, {"g": b"0", "n-1": b"mine", "n-1-2/g": b"1"}),
    ):
        assert merged(folder, run, new_incoming(folder), first, second) == then
        (name,) = second
        merged(folder, run, new_incoming(folder), {}, {name: b"newer"})
        assert len(list(folder.artifacts_path.rglob("*"))) <= len(then) + 2, (
            "a node's newer file replaces its own"
        )
        shutil.rmtree(folder.artifacts_path)


def test_merge_artifacts_leaves_another_watch_of_this_process_alone(tmp_path: Path) -> None:
    folder, run = folder_of_two(tmp_path)
    ours, theirs = new_incoming(folder), new_incoming(folder)
    for incoming in (ours, theirs):
        send(RunFiles(folder, run.nodes[0], incoming).intake, "artifacts/a", b"a")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f"incoming-{ended.pid}", f"incoming-{ended.pid}-00ff", "incoming-somebody"):
        (folder.path / name).mkdir()
    merge_artifacts(folder, run.nodes, ours)
    left = {path.name for path in folder.path.glob("incoming-*")}
    assert left == {theirs.name, "incoming-somebody"}
    merge_artifacts(folder, run.nodes, theirs)
    assert [path.read_bytes() for path in folder.artifacts_path.rglob("*")] == [b"a"]
