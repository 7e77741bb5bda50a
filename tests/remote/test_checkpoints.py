"""Which files of a run count as checkpoints, and how a node places them for the next run."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remote.node import frames
from remote.node.checkpoints import describe, files_in, send_if_small

ROOT = Path(__file__).parents[2]
RUN = "20261121-054625-3fa9"


def checkpoint(folder: Path, at: int, **other: object) -> None:
    """A whole one, as the built-in job writes it, but for what is said otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"step-{at:06d}"
    (folder / f"{name}.pt").write_bytes(b"x" * 100)
    document = {"file": f"{name}.pt", "bytes": 100, "sha256": "0" * 64, "step": at, **other}
    (folder / f"{name}.json").write_text(json.dumps(document))


def test_of_the_built_in_job_only_whole_ones_count(tmp_path: Path) -> None:
    checkpoint(tmp_path, 90)
    checkpoint(tmp_path, 1_000_000)
    whole = ["step-000090.pt", "step-000090.json", "step-1000000.pt", "step-1000000.json"]
    checkpoint(tmp_path, 2_000_000, bytes=101)
    checkpoint(tmp_path, 2_000_001, file="../step-000090.pt")
    checkpoint(tmp_path, 2_000_002, file="gone.pt")
    checkpoint(tmp_path, 2_000_003, file="")
    checkpoint(tmp_path, 2_000_004, step=None)
    (tmp_path / "step-2000005.pt").write_bytes(b"no document yet")
    (tmp_path / "step-2000006.json").write_text('{"file": "step-00')
    (tmp_path / "step-2000007.json").write_text("[]")
    assert [name for name, _ in files_in(tmp_path, whole=True)] == whole
    found = describe(tmp_path, whole=True)
    sizes = [(tmp_path / name).stat().st_size for name in whole]
    assert found == {"files": 4, "bytes": sum(sizes), "newest": "step-1000000.pt"}


def test_a_link_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoint(tmp_path / "outside", 1)
    folder = tmp_path / "checkpoints"
    checkpoint(folder, 1)
    (folder / "step-000001.pt").unlink()
    (folder / "step-000001.pt").symlink_to(tmp_path / "outside" / "step-000001.pt")
    assert files_in(folder, whole=True) == []
    assert files_in(folder, whole=False) == [
        ("step-000001.json", (folder / "step-000001.json").stat().st_size)
    ]


def test_of_a_script_every_file_counts_the_newest_by_its_time(tmp_path: Path) -> None:
    for at, name in enumerate(("b/shard-0", "a/shard-1", ".meta", "last")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"12")
        os.utime(path, (1000 - at, 1000 - at))
    assert files_in(tmp_path, whole=False) == [("last", 2), (".meta", 2), ("a/shard-1", 2), ("b/shard-0", 2)]
    assert describe(tmp_path, whole=False) == {"files": 4, "bytes": 8, "newest": "b/shard-0"}


@pytest.mark.parametrize("whole", [True, False])
def test_no_folder_and_an_empty_one_have_none(tmp_path: Path, whole: bool) -> None:
    assert describe(tmp_path / "none", whole) is None
    assert describe(tmp_path, whole) is None


def on_node(home: Path, command: str, request: dict[str, Any]) -> dict[str, Any]:
    """Ask the node's part, as a process with a home of its own."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from remote.node.__main__ import run; run([{command!r}])"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        input=json.dumps(request) + "\n",
        env={"HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("whole", [True, False])
def test_a_node_places_them_and_leaves_the_earlier_run_as_it_was(tmp_path: Path, whole: bool) -> None:
    runs = tmp_path / ".gpuctl-node" / "runs"
    old = runs / RUN / "gpu-0" / "checkpoints"
    checkpoint(old, 7)
    (old / "step-000008.pt").write_bytes(b"torn")
    run_dir = runs / "20261121-060000-0000" / "gpu-0"
    answer = on_node(tmp_path, "place", {"source": [RUN, "gpu-0", whole], "run_dir": str(run_dir)})
    assert answer == {"t": "placed"}
    placed = run_dir.with_name("gpu-0.checkpoints")
    names = {"step-000007.pt", "step-000007.json"} | (set() if whole else {"step-000008.pt"})
    assert {path.name for path in placed.iterdir()} == names
    assert not run_dir.exists(), "only the launch makes the run's folder"
    linked = (placed / "step-000007.pt").stat().st_ino == (old / "step-000007.pt").stat().st_ino
    assert linked == whole, "what a script may write into is a copy"
    assert (placed / "step-000007.pt").stat().st_mtime_ns == (old / "step-000007.pt").stat().st_mtime_ns


@pytest.mark.parametrize(
    ("max_bytes", "failed", "sent"),
    [
        (10**6, True, ["chunk", "complete", "chunk", "complete"]),
        (10**6, False, ["chunk", "complete", "chunk", "complete"]),
        (99, True, ["skipped"]),
        (99, False, []),
    ],
)
def test_small_ones_come_back_and_of_large_ones_it_is_told_where_a_run_failed(
    tmp_path: Path, max_bytes: int, failed: bool, sent: list[str]
) -> None:
    checkpoint(tmp_path / "checkpoints", 7)
    output = io.BytesIO()
    send_if_small(tmp_path, output, whole=True, max_bytes=max_bytes, failed=failed)
    output.seek(0)
    told = [header for header, _ in frames.decode(output.readline, output.read)]
    assert [header["t"] for header in told] == sent
    if sent == ["skipped"]:
        assert "stay on the node" in told[0]["reason"]
    else:
        assert [header["path"] for header in told[1::2]] == [
            f"checkpoints/step-000007.{kind}" for kind in ("pt", "json")[: len(sent) // 2]
        ]


def test_what_was_placed_for_a_run_that_never_began_can_be_taken_back(tmp_path: Path) -> None:
    run_dir = tmp_path / ".gpuctl-node" / "runs" / RUN / "gpu-0"
    placed = run_dir.with_name("gpu-0.checkpoints")
    checkpoint(placed, 7)
    assert on_node(tmp_path, "discard", {"run_dir": str(run_dir)}) == {"t": "discarded"}
    assert not placed.exists()


def test_a_node_tells_what_it_has_of_each_run(tmp_path: Path) -> None:
    checkpoint(tmp_path / ".gpuctl-node" / "runs" / RUN / "gpu-0" / "checkpoints", 7)
    asked = [[RUN, "gpu-0", True], [RUN, "gpu-1", True], ["20261121-060000-0000", "gpu-0", False]]
    found = on_node(tmp_path, "checkpoints", {"runs": asked})["found"]
    assert [one and one["newest"] for one in found] == ["step-000007.pt", None, None]
