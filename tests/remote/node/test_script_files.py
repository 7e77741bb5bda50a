"""Test how files of a script's libraries are sent while it runs."""

import io
import json
import struct
from pathlib import Path

import pytest

from remote.node.runs import script_files
from remote.node.storage import outputs
from remote.shared import frames


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run whose project is in `code`, with a file that the sync brought."""
    monkeypatch.setattr(script_files, "EVERY_S", 0.0)
    monkeypatch.setattr(script_files, "IDLE_TIMES", 0)
    root, folder = tmp_path / "code", tmp_path / "run"
    root.mkdir()
    folder.mkdir()
    (root / "metrics.csv").write_text("step,loss\n1,9\n")
    status = (root / "metrics.csv").stat()
    manifest = {"metrics.csv": [status.st_size, status.st_mtime_ns, 0o644]}
    Path(f"{root}.manifest.json").write_text(json.dumps(manifest))
    outputs.begin(folder, {"root": str(root), "folder": "."})
    return folder


def news(files: script_files.ScriptFiles) -> list[tuple[str, bool, bytes]]:
    output = io.BytesIO()
    files.send(output)
    output.seek(0)
    return [
        (header["path"], header["begins"], body)
        for header, body in frames.decode(output.readline, output.read)
    ]


def record(body: bytes) -> bytes:
    return struct.pack("<Q", len(body)) + b"head" + body + b"tail"


def test_events_are_sent_once_whole_and_without_pictures(run_dir: Path) -> None:
    files, path = (
        script_files.ScriptFiles(run_dir),
        run_dir.parent / "code" / "runs" / "events.out.tfevents.1.host",
    )
    assert news(files) == []
    path.parent.mkdir()
    path.write_bytes(record(b"one") + record(b"x" * 100_000) + record(b"two") + record(b"three")[:-1])
    name = "runs/events.out.tfevents.1.host"
    assert news(files) == [(name, True, record(b"one") + record(b"two"))]
    assert news(files) == []
    with path.open("ab") as file:
        file.write(b"l" + record(b"four"))
    assert news(files) == [(name, False, record(b"three") + record(b"four"))]
    path.write_bytes(record(b"new"))
    assert news(files) == [(name, True, record(b"new"))]


def test_rows_come_with_their_names_and_anew_with_another_column(run_dir: Path) -> None:
    files, path = script_files.ScriptFiles(run_dir), run_dir.parent / "code" / "logs" / "metrics.csv"
    path.parent.mkdir()
    path.write_text("step,loss")
    assert news(files) == []
    path.write_text("step,loss\n1,0.5\n2,0.")
    assert news(files) == [("logs/metrics.csv", True, b"step,loss\n1,0.5\n")]
    path.write_text("step,loss\n1,0.5\n2,0.25\n")
    assert news(files) == [("logs/metrics.csv", False, b"2,0.25\n")]
    path.write_text("step,loss,lr\n1,0.5,\n")
    assert news(files) == [("logs/metrics.csv", True, b"step,loss,lr\n1,0.5,\n")]


def test_only_the_newest_of_much_is_sent(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_files, "MAX_SENT_BYTES", 25)
    path = run_dir / "artifacts-of-mine" / "metrics.csv"
    path.parent.mkdir()
    path.write_text("step,loss\n" + "".join(f"{n},0.5\n" for n in range(100)))
    files = script_files.ScriptFiles(run_dir)
    assert news(files) == [
        ("GPUCTL_RUN_DIR/artifacts-of-mine/metrics.csv", True, b"step,loss\n97,0.5\n98,0.5\n99,0.5\n")
    ]


def test_state_of_the_trainer_is_sent_whole_when_it_changes(run_dir: Path) -> None:
    files, path = (
        script_files.ScriptFiles(run_dir),
        run_dir.parent / "code" / "checkpoint-2" / "trainer_state.json",
    )
    path.parent.mkdir()
    path.write_text("{}")
    assert news(files) == [("checkpoint-2/trainer_state.json", True, b"{}")]
    assert news(files) == []
    path.write_text('{"max_steps": 4}')
    assert news(files) == [("checkpoint-2/trainer_state.json", True, b'{"max_steps": 4}')]


def test_next_look_waits_and_a_run_without_a_project_has_none(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert news(script_files.ScriptFiles(tmp_path / "other")) == []
    monkeypatch.setattr(script_files, "EVERY_S", 60.0)
    files = script_files.ScriptFiles(run_dir)
    assert news(files) == []
    (run_dir.parent / "code" / "trainer_state.json").write_text("{}")
    assert news(files) == []
