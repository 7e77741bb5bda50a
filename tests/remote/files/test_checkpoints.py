"""Test the choice of a run's checkpoint files, and how a node places them for the next run."""

import hashlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from node_here import ROOT, NodeHere, node_part
from support import a_run

from inventories.disk.store import Store
from inventories.runs.run import RunNode
from remote.errors import BadAnswer, NodeFailed, SyncRefused
from remote.files import checkpoints
from remote.files.receive import FileReceiver
from remote.node import process
from remote.node.__main__ import FAILED
from remote.node.storage.checkpoints import describe, describe_script, files_in, send_if_small
from remote.runs.run_files import RunFiles, keep_checkpoints, mirrored_path, new_incoming
from remote.shared import frames
from remote.shared.files import write_json

RUN = "20261121-054625-3fa9"


def checkpoint(folder: Path, at: int, **other: object) -> None:
    """Write a complete checkpoint as the built-in job does, with changed fields in `other`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"step-{at:06d}"
    (folder / f"{name}.pt").write_bytes(b"x" * 100)
    document = {"file": f"{name}.pt", "bytes": 100, "sha256": "0" * 64, "step": at, **other}
    (folder / f"{name}.json").write_text(json.dumps(document))


def test_files_in_lists_only_complete_built_in_checkpoints(tmp_path: Path) -> None:
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
    result = describe(tmp_path)
    sizes = [(tmp_path / name).stat().st_size for name in whole]
    written_ns = (tmp_path / "step-1000000.pt").stat().st_mtime_ns
    assert result == {
        "files": 4,
        "bytes": sum(sizes),
        "newest": "step-1000000.pt",
        "written_ns": written_ns,
        "lacks": [],
    }


def test_files_in_ignores_links_out_of_the_folder(tmp_path: Path) -> None:
    checkpoint(tmp_path / "outside", 1)
    folder = tmp_path / "checkpoints"
    checkpoint(folder, 1)
    (folder / "step-000001.pt").unlink()
    (folder / "step-000001.pt").symlink_to(tmp_path / "outside" / "step-000001.pt")
    assert files_in(folder, whole=True) == []
    assert files_in(folder, whole=False) == [
        ("step-000001.json", (folder / "step-000001.json").stat().st_size)
    ]


def test_files_in_lists_all_script_files_newest_last(tmp_path: Path) -> None:
    for at, name in enumerate(("b/shard-0", "a/shard-1", ".meta", "last")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"12")
        os.utime(path, (1000 - at, 1000 - at))
    names = ["last", ".meta", "a/shard-1", "b/shard-0"]
    assert files_in(tmp_path, whole=False) == [(name, 2) for name in names]
    assert describe_script(dict.fromkeys(names, tmp_path), (), 1) == {
        "files": 4,
        "bytes": 8,
        "newest": "b/shard-0",
        "written_ns": 1000 * 10**9,
        "lacks": [],
    }


def test_files_in_follows_links_within_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "e2.pt").write_bytes(b"two")
    (tmp_path / "secret").write_bytes(b"of somebody")
    for name, target in (("last.pt", "e2.pt"), ("out", "../secret"), ("gone", "nothing"), ("dir", ".")):
        (folder / name).symlink_to(target)
    assert files_in(folder, whole=False) == [("e2.pt", 3), ("last.pt", 3)]
    output = io.BytesIO()
    send_if_small(tmp_path, output, whole=False, max_bytes=100, failed=False)
    output.seek(0)
    answers = frames.decode(output.readline, output.read)
    sent = {header["path"]: body for header, body in answers if header["t"] == "chunk"}
    assert sent == {"checkpoints/e2.pt": b"two", "checkpoints/last.pt": b"two"}


def test_checkpoints_describe_is_none_for_a_missing_or_empty_folder(tmp_path: Path) -> None:
    assert describe(tmp_path / "none") is describe(tmp_path) is describe_script({}, (), 1) is None


def on_node(home: Path, command: str, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the node's part."""
    with node_part(home, command) as part:
        out, err = part.communicate(json.dumps(request).encode() + b"\n", timeout=30)
    assert part.returncode == 0, err
    return json.loads(out)


@pytest.mark.parametrize("whole", [True, False])
def test_checkpoint_staging_keeps_the_earlier_run_unchanged(tmp_path: Path, whole: bool) -> None:
    runs = tmp_path / ".gpuctl-node" / "runs"
    old = runs / RUN / "gpu-0" / "checkpoints"
    checkpoint(old, 7)
    (old / "step-000008.pt").write_bytes(b"torn")
    run_dir = runs / "20261121-060000-0000" / "gpu-0"
    answer = on_node(tmp_path, "place", {"source": [RUN, "gpu-0", whole, 3], "run_dir": str(run_dir)})
    assert answer == {"t": "placed"}
    placed = run_dir.with_name("gpu-0.checkpoints")
    names = {"step-000007.pt", "step-000007.json"} | (set() if whole else {"step-000008.pt"})
    assert {path.name for path in placed.iterdir()} == names
    assert not run_dir.exists(), "only the launch makes the run's folder"
    linked = (placed / "step-000007.pt").stat().st_ino == (old / "step-000007.pt").stat().st_ino
    assert linked == whole, "what a script may write into is a copy"
    assert (placed / "step-000007.pt").stat().st_mtime_ns == (old / "step-000007.pt").stat().st_mtime_ns


def in_parts(folder: Path, at: int, ranks: Sequence[int], document: bool = True) -> None:
    """Write a checkpoint of three ranks as one node has it: only the parts of `ranks`."""
    name = f"step-{at:06d}"
    (folder / name).mkdir(parents=True)
    for rank in ranks:
        (folder / name / f"__{rank}_0.distcp").write_bytes(b"x" * 100)
    files = {f"__{rank}_0.distcp": {"bytes": 100, "sha256": "0" * 64} for rank in range(3)}
    if document:
        report = {"folder": name, "files": files, "bytes": 300, "step": at}
        (folder / f"{name}.json").write_text(json.dumps(report))


def test_files_in_lists_the_parts_that_are_there(tmp_path: Path) -> None:
    in_parts(tmp_path, 7, [0, 1])
    in_parts(tmp_path, 8, [0, 1, 2])
    (tmp_path / "step-000008" / "__1_0.distcp").write_bytes(b"torn")
    in_parts(tmp_path, 9, [0, 1, 2], document=False)
    (tmp_path / "step-000010.json").write_text(
        '{"folder": "../away", "files": {"a": {"bytes": 1}}, "step": 10}'
    )
    names = ["step-000007/__0_0.distcp", "step-000007/__1_0.distcp", "step-000007.json"]
    assert [name for name, _ in files_in(tmp_path, whole=True)] == names
    result = describe(tmp_path)
    size = (tmp_path / "step-000007.json").stat().st_size
    assert (result["newest"], result["bytes"], result["lacks"]) == (
        "step-000007",
        300 + size,
        ["step-000007/__2_0.distcp"],
    )


def test_node_places_and_tells_the_parts_of_all_nodes_that_share_its_home(tmp_path: Path) -> None:
    runs = tmp_path / ".gpuctl-node" / "runs"
    in_parts(runs / RUN / "gpu-0" / "checkpoints", 7, [0, 1])
    in_parts(runs / RUN / "gpu-1" / "checkpoints", 7, [2], document=False)
    answer = on_node(tmp_path, "checkpoints", {"runs": [[RUN, "gpu-0", True, 3]]})
    assert answer["found"][0]["lacks"] == ["step-000007/__2_0.distcp"]
    assert answer["parts"] == [{f"step-000007/__{rank}_0.distcp": 100 for rank in range(3)}]
    run_dir = runs / "20261121-060000-0000" / "gpu-0"
    assert on_node(tmp_path, "place", {"source": [RUN, "gpu-0", True, 3], "run_dir": str(run_dir)}) == {
        "t": "placed"
    }
    result = describe(run_dir.with_name("gpu-0.checkpoints"))
    assert (result["files"], result["lacks"]) == (4, [])


def test_bring_together_takes_parts_of_all_nodes_and_refuses_a_part(tmp_path: Path) -> None:
    homes = [tmp_path / str(number) for number in range(2)]
    folders = [
        home / ".gpuctl-node" / "runs" / RUN / f"gpu-{number}" / "checkpoints"
        for number, home in enumerate(homes)
    ]
    in_parts(folders[0], 6, [0])
    in_parts(folders[0], 7, [0])
    in_parts(folders[1], 7, [1, 2], document=False)
    run = replace(SCRIPTS, script="built-in")
    local = tmp_path / "here"
    checkpoints.bring_together([NodeHere(home) for home in homes], run, FileReceiver(local))
    result = checkpoints.in_folder(local, run)
    assert (result.newest, result.lacks) == ("step-000007", ())
    assert not (local / "step-000006.json").exists(), "it is not whole"
    with pytest.raises(
        NodeFailed, match=r"step-000007, is not whole: no machine .*/__1_0.*remove step-000007\.json"
    ):
        checkpoints.bring_together([NodeHere(homes[0])], run, FileReceiver(tmp_path / "part"))


@pytest.mark.parametrize("first_comes_last", [True, False])
def test_parts_of_several_nodes_end_up_together(tmp_path: Path, first_comes_last: bool) -> None:
    folder = Store(tmp_path).new_run(datetime.now(UTC))
    other = replace(SCRIPTS.nodes[0], name="gpu-1", rank=1)
    first, second = (RunFiles(folder, node, new_incoming(folder)) for node in (SCRIPTS.nodes[0], other))
    in_parts(folder.checkpoints_path, 6, [0, 1, 2])  # of the mirror
    in_parts(first.intake.root / "checkpoints", 7, [0, 1])
    in_parts(second.intake.root / "checkpoints", 7, [2], document=False)
    for files in (second, first) if first_comes_last else (first, second):
        files.keep_checkpoints()
    result = checkpoints.in_folder(folder.checkpoints_path, replace(SCRIPTS, script="built-in"))
    assert (result.newest, result.files, result.lacks) == ("step-000007", 4, ())


@pytest.mark.parametrize(
    ("max_bytes", "failed", "sent"),
    [
        (10**6, True, ["chunk", "complete", "chunk", "complete"]),
        (10**6, False, ["chunk", "complete", "chunk", "complete"]),
        (99, True, ["skipped"]),
        (99, False, []),
    ],
)
def test_send_if_small_sends_small_and_reports_large_checkpoints(
    tmp_path: Path, max_bytes: int, failed: bool, sent: list[str]
) -> None:
    checkpoint(tmp_path / "checkpoints", 7)
    output = io.BytesIO()
    send_if_small(tmp_path, output, whole=True, max_bytes=max_bytes, failed=failed)
    output.seek(0)
    report = [header for header, _ in frames.decode(output.readline, output.read)]
    assert [header["t"] for header in report] == sent
    if sent == ["skipped"]:
        assert "stay on the node" in report[0]["reason"]
    else:
        assert [header["path"] for header in report[1::2]] == [
            f"checkpoints/step-000007.{kind}" for kind in ("pt", "json")[: len(sent) // 2]
        ]


def test_discard_removes_staged_checkpoints(tmp_path: Path) -> None:
    run_dir = tmp_path / ".gpuctl-node" / "runs" / RUN / "gpu-0"
    placed = run_dir.with_name("gpu-0.checkpoints")
    checkpoint(placed, 7)
    assert on_node(tmp_path, "discard", {"run_dir": str(run_dir)}) == {"t": "discarded"}
    assert not placed.exists()


def test_checkpoints_command_reports_each_requested_run(tmp_path: Path) -> None:
    checkpoint(tmp_path / ".gpuctl-node" / "runs" / RUN / "gpu-0" / "checkpoints", 7)
    requests = [[RUN, "gpu-0", True, 3], [RUN, "gpu-1", True, 3], ["20261121-060000-0000", "gpu-0", False, 3]]
    result = on_node(tmp_path, "checkpoints", {"runs": requests})["found"]
    assert [item and item["newest"] for item in result] == ["step-000007.pt", None, None]


SCRIPTS = a_run(
    run=RUN,
    started_at="",
    nodes=(RunNode(name="gpu-0", rank=0, nproc=1, first_rank=0, run_dir="/home/me/run"),),
)


def test_bring_refuses_a_part_of_script_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / ".gpuctl-node" / "runs" / RUN / "gpu-0" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "shard-0").write_bytes(b"0")
    checkpoints.bring(NodeHere(tmp_path), SCRIPTS, FileReceiver(tmp_path / "here"))
    assert (tmp_path / "here" / "shard-0").read_bytes() == b"0"
    refused = folder.joinpath(*["deep"] * 40)
    refused.mkdir(parents=True)
    (refused / "shard-1").write_bytes(b"1")
    with pytest.raises(NodeFailed, match=r"^gpu-0: not all checkpoints of run .*/shard-1.*Mend or remove"):
        checkpoints.bring(NodeHere(tmp_path), SCRIPTS, FileReceiver(tmp_path / "again"))


def test_send_refuses_a_part_of_script_checkpoints(tmp_path: Path) -> None:
    for name in ("shard-0", ".aws/shard-1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(SyncRefused, match=r"can be sent to gpu-0, and a part is not: \.aws\. "):
        checkpoints.send(NodeHere(tmp_path), tmp_path, SCRIPTS.nodes[0], say=print)


@pytest.mark.parametrize(
    ("refused", "retained"),
    [(None, b"new"), ("artifacts/a", b"new"), ("checkpoints/shard-1", b"old")],
)
def test_keep_checkpoints_keeps_old_files_after_a_refused_one(
    tmp_path: Path, refused: str | None, retained: bytes
) -> None:
    folder = Store(tmp_path).new_run(datetime.now(UTC))
    folder.checkpoints_path.mkdir()
    (folder.checkpoints_path / "shard-0").write_bytes(b"old")
    files = RunFiles(folder, SCRIPTS.nodes[0], new_incoming(folder))
    files.intake.chunk("checkpoints/shard-0", 0, b"new")
    files.intake.complete("checkpoints/shard-0", 3, hashlib.sha256(b"new").hexdigest(), 0o644)
    if refused:
        files.intake.complete(refused, 3, "0" * 64, 0o644)
    mirrored_path(folder).touch()
    files.keep_checkpoints()
    assert (folder.checkpoints_path / "shard-0").read_bytes() == retained
    assert mirrored_path(folder).exists() == (retained == b"old")
    assert [path.name for path in files.intake.root.glob(".*")] == []


@pytest.mark.parametrize("whole", [True, False])
def test_checkpoint_staging_is_undone_when_the_caller_is_gone(tmp_path: Path, whole: bool) -> None:
    runs = tmp_path / ".gpuctl-node" / "runs"
    checkpoint(runs / RUN / "gpu-0" / "checkpoints", 7)
    run_dir = runs / "20261121-060000-0000" / "gpu-0"
    with node_part(tmp_path, "place") as part:
        part.stdout.close()
        request = {"source": [RUN, "gpu-0", whole, 3], "run_dir": str(run_dir)}
        part.stdin.write(json.dumps(request).encode() + b"\n")
        part.stdin.close()
        assert part.wait(30) == FAILED
    assert list(run_dir.parent.iterdir()) == []


def other_run(run_dir: Path) -> None:
    """Create another active run, with this process as its runner."""
    folder = run_dir.parents[1] / RUN / "gpu-0"
    folder.mkdir(parents=True)
    birth = process.birth(os.getpid())
    write_json(folder / "runner.json", {"pid": os.getpid(), "birth": birth, "boot_id": process.boot_id()})


def stop_came_first(run_dir: Path) -> None:
    run_dir.mkdir()
    (run_dir / "stop").touch()


@pytest.mark.parametrize(
    ("in_the_way", "status", "message"),
    [(other_run, FAILED, f"the run {RUN} is going on here\n"), (stop_came_first, 0, "")],
)
def test_launch_that_starts_nothing_removes_staged_checkpoints(
    tmp_path: Path, in_the_way: Callable[[Path], None], status: int, message: str
) -> None:
    run_dir = tmp_path / ".gpuctl-node" / "runs" / "20261121-060000-0000" / "gpu-0"
    placed = run_dir.with_name("gpu-0.checkpoints")
    checkpoint(placed, 7)
    in_the_way(run_dir)
    spec = {"run_dir": str(run_dir), "node": "gpu-0", "argv": ["false"], "env": {}}
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from remote.node.runs import supervisor\n"
        "try: supervisor.launch(eval(sys.stdin.read()))\n"
        f"except OSError as error: print(error, file=sys.stderr); sys.exit({FAILED})"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], input=repr(spec), env={"HOME": str(tmp_path)}, capture_output=True,
        text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (status, message)
    assert not placed.exists()


def parts_of_script(home: Path, node: str, placed: Sequence[str], written: Sequence[str]) -> Path:
    """Create the files of a script's run on a node: placed before its start, or written by its ranks."""
    folder = home / ".gpuctl-node" / "runs" / RUN / node / "checkpoints" / "dcp"
    folder.mkdir(parents=True)
    for name in placed:
        (folder / name).write_text("placed")
    time.sleep(0.02)  # the kernel's clock of files moves in steps
    (folder.parents[1] / "code.json").write_text("{}")
    time.sleep(0.02)
    for name in written:
        (folder / name).write_text(f"{node}: __0_0.distcp __1_0.distcp")
    return folder


TWO = replace(SCRIPTS, nodes=(*SCRIPTS.nodes, replace(SCRIPTS.nodes[0], name="gpu-1", rank=1, first_rank=1)))
ALL = [".metadata", "__0_0.distcp", "__1_0.distcp"]


def nodes_with_parts(tmp_path: Path, *nodes: tuple[Sequence[str], Sequence[str]]) -> list[NodeHere]:
    result = []
    for number, (placed, written) in enumerate(nodes):
        home = tmp_path / str(number)
        parts_of_script(home, f"gpu-{number}", placed, written)
        node = NodeHere(home)
        node.machine = replace(node.machine, name=f"gpu-{number}")
        result.append(node)
    return result


@pytest.mark.parametrize("placed", [ALL, []])
def test_parts_that_each_node_wrote_replace_the_placed_ones(tmp_path: Path, placed: list[str]) -> None:
    nodes = nodes_with_parts(tmp_path, (placed, ALL[:2]), (placed, ALL[2:]))
    held = {node.name: checkpoints.on_node(node, [TWO])[0] for node in nodes}
    first = checkpoints.as_one_set(TWO, held)["gpu-0"].found
    assert (first.newest, first.lacks) == ("dcp", ("dcp/__1_0.distcp",))
    local = tmp_path / "here"
    checkpoints.bring_together(nodes, TWO, FileReceiver(local))
    writers = {path.name: path.read_text().partition(":")[0] for path in (local / "dcp").iterdir()}
    assert writers == {".metadata": "gpu-0", "__0_0.distcp": "gpu-0", "__1_0.distcp": "gpu-1"}


def test_name_that_several_nodes_wrote_is_the_first_nodes(tmp_path: Path) -> None:
    nodes = nodes_with_parts(tmp_path, ([], ["last.pt"]), ([], ["last.pt"]))
    held = {node.name: checkpoints.on_node(node, [TWO])[0] for node in nodes}
    item = checkpoints.as_one_set(TWO, held)
    assert [existing.found and existing.found.lacks for existing in item.values()] == [(), ("dcp/last.pt",)]
    checkpoints.bring_together(nodes, TWO, FileReceiver(tmp_path / "here"))
    assert (tmp_path / "here" / "dcp" / "last.pt").read_text().startswith("gpu-0")


@pytest.mark.parametrize("placed", [ALL, []])
def test_set_that_lacks_parts_is_refused_with_the_missing_ranks(tmp_path: Path, placed: list[str]) -> None:
    nodes = nodes_with_parts(tmp_path, (placed, ALL[:2]))
    with pytest.raises(
        NodeFailed, match=r"dcp of run .* incomplete: parts of rank 1 \(gpu-1\) are missing.*/__1_0"
    ):
        checkpoints.bring_together(nodes, TWO, FileReceiver(tmp_path / "here"))
    held = {"gpu-0": checkpoints.on_node(nodes[0], [TWO])[0]}
    result = checkpoints.as_one_set(TWO, held, ["own/state-1"])["gpu-0"].found
    assert result.lacks == ("dcp/__1_0.distcp", "own/state-1"), (
        "the run's end listed it, and its node does not answer"
    )


STEPS = [(rank, step) for rank in (0, 1, 2) for step in ("list", "files")]
ORDERS = [
    order
    for order in permutations(STEPS)
    if all(order.index((rank, "list")) < order.index((rank, "files")) for rank in (0, 1, 2))
]
"""Each order in which three nodes can list their files and have brought them."""


@pytest.mark.parametrize("contents", ["aaa", "aab", "abb", "abc"])
def test_other_content_of_one_name_is_told_and_the_first_nodes_kept(tmp_path: Path, contents: str) -> None:
    for number, order in enumerate(ORDERS if contents in {"abc", "aab"} else ORDERS[::10]):
        folder = Store(tmp_path / str(number)).new_run(datetime.now(UTC))
        nodes = tuple(
            RunNode(name=f"gpu-{r}", rank=r, nproc=1, first_rank=r, run_dir="/r") for r in (0, 1, 2)
        )
        run = replace(TWO, run=folder.id, nodes=nodes)
        folder.save_run(run)
        files = [RunFiles(folder, node, new_incoming(folder)) for node in nodes]
        differ: set[str] = set()
        for rank, step in order:
            if step == "list":
                files[rank].wrote_parts(b'["last.pt"]')
                continue
            came = files[rank].intake.root / "checkpoints" / "last.pt"
            came.parent.mkdir(parents=True)
            came.write_text(contents[rank])
            differ |= set(files[rank].keep_checkpoints())
        assert differ == (set() if contents == "aaa" else {"last.pt"}), order
        assert (folder.checkpoints_path / "last.pt").read_text() == contents[0], order


@pytest.mark.parametrize("steps", ["lLfF", "lLFf", "LlfF", "LlFf", "lfLF", "LFlf"])
def test_file_that_the_first_node_lists_and_does_not_bring_is_another_nodes(
    tmp_path: Path, steps: str
) -> None:
    folder = Store(tmp_path).new_run(datetime.now(UTC))
    run = replace(TWO, run=folder.id)
    folder.save_run(run)
    files = [RunFiles(folder, node, new_incoming(folder)) for node in run.nodes]
    for step in steps:  # l: the first node lists its files, f: it brings them; L and F: the second
        at = int(step.isupper())
        if step in "lL":
            files[at].wrote_parts(b'["last.pt"]')
            continue
        brought = files[at].intake.root / "checkpoints"
        brought.mkdir(parents=True)
        (brought / ["other.pt", "last.pt"][at]).write_text(f"gpu-{at}")
        assert files[at].keep_checkpoints() == []
    assert (folder.checkpoints_path / "last.pt").read_text() == "gpu-1"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_scripts_parts_of_several_nodes_end_up_together_here(tmp_path: Path, order: tuple[int, int]) -> None:
    folder = Store(tmp_path).new_run(datetime.now(UTC))
    run = replace(TWO, run=folder.id)
    folder.save_run(run)
    for at in order:
        files = RunFiles(folder, run.nodes[at], new_incoming(folder))
        brought = files.intake.root / "checkpoints" / "dcp"
        brought.mkdir(parents=True)
        names = [ALL[:2], ALL[2:]][at]
        for name in ALL if at == 0 else names:  # the first node also sends the placed files
            (brought / name).write_text(f"gpu-{at} __0_0.distcp __1_0.distcp")
        files.wrote_parts(json.dumps([f"dcp/{name}" for name in names]).encode())
        files.keep_checkpoints()
        result = checkpoints.in_folder(folder.checkpoints_path, run)
    assert (result.newest, result.lacks) == ("dcp", ())
    assert (folder.checkpoints_path / "dcp" / ALL[2]).read_text().startswith("gpu-1")
    (folder.checkpoints_path / "dcp" / ALL[2]).unlink()
    result = checkpoints.in_folder(folder.checkpoints_path, run)
    assert result.lacks == ("dcp/__1_0.distcp",)
    with pytest.raises(BadAnswer, match="not a plain relative path"):
        files.wrote_parts(b'["../run.json"]')


def test_parts_of_a_node_that_has_ended_outlive_a_mirrored_set(tmp_path: Path) -> None:
    folder = Store(tmp_path).new_run(datetime.now(UTC))
    run = replace(TWO, run=folder.id)
    folder.save_run(run)
    first, second = (RunFiles(folder, node, new_incoming(folder)) for node in run.nodes)

    def brings(files: RunFiles, name: str) -> Path:
        brought = files.intake.root / "checkpoints"
        brought.mkdir(parents=True)
        (brought / name).write_text(name)
        return brought

    brings(second, "rng_1.bin")
    second.wrote_parts(b'["rng_1.bin"]')
    second.keep_checkpoints()
    keep_checkpoints(folder, brings(first, "rng_0.bin"), final=False)  # of the mirror, which began before
    brings(first, "rng_0.bin")
    first.wrote_parts(b'["rng_0.bin"]')
    assert first.keep_checkpoints() == []
    assert sorted(path.name for path in folder.checkpoints_path.iterdir()) == ["rng_0.bin", "rng_1.bin"]
