"""A node's outputs as they arrive here: whole, within their folder, whatever the node says."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import a_run

from inventories.disk.store import RunFolder, Store
from inventories.runs.outputs import NodeOutputs, WrittenFile
from inventories.runs.run import RunNode, RunOptions
from remote.errors import BadAnswer
from remote.runs.outputs import (
    NAMED_BYTES,
    SMALL_BYTES,
    gather_parts,
    keep_outputs,
    matched_nothing,
    max_output_bytes,
    read_outputs,
    wanted_outputs,
)
from remote.runs.run_files import RunFiles, new_incoming

NODE = RunNode(name="n-0", rank=0, nproc=1, first_rank=0, run_dir="/r")
HEADER = {"folder": ".gpuctl-node/code/p", "files": 1, "bytes": 3, "whole": True, "shared_with": []}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return Store(tmp_path).new_run(datetime.now(UTC))


def bring(folder: RunFolder, listed: object, *paths: str, body: bytes = b"new", **header: Any) -> RunFiles:
    """Receive a node's list of written files, and the files in `paths`."""
    files = RunFiles(folder, NODE, new_incoming(folder))
    files.written({**HEADER, **header}, json.dumps(listed).encode())
    for path in paths:
        files.intake.chunk(path, 0, body)
        files.intake.complete(path, len(body), hashlib.sha256(body).hexdigest(), 0o644)
    files.keep_outputs()
    return files


def saved(folder: RunFolder) -> NodeOutputs:
    (result,) = read_outputs(folder, [NODE])
    return result


def test_outputs_are_kept_and_told_with_what_has_come(folder: RunFolder) -> None:
    bring(folder, [["a/b.txt", 3, 7], ["big.pt", 10**12, 8]], "outputs/a/b.txt", files=2)
    assert [(item.path, item.bytes, item.brought) for item in saved(folder).listed] == [
        ("a/b.txt", 3, True),
        ("big.pt", 10**12, False),
    ]
    assert (folder.outputs_path / "n-0" / "a" / "b.txt").read_bytes() == b"new"


def test_outputs_brought_again_replace_the_earlier_ones(folder: RunFolder) -> None:
    bring(folder, [["a", 3, 7]], "outputs/a", body=b"old")
    bring(folder, [["a", 3, 7]], "outputs/a")
    assert (folder.outputs_path / "n-0" / "a").read_bytes() == b"new"
    bring(folder, [["a", 3, 7]])
    assert [item.brought for item in saved(folder).listed] == [True]


def test_outputs_that_do_not_come_again_stay(folder: RunFolder) -> None:
    listed = [["a/one", 3, 7], ["a/two", 3, 7], ["b", 3, 7]]
    bring(folder, listed, "outputs/a/one", "outputs/a/two", "outputs/b", body=b"old", files=3)
    bring(folder, listed, "outputs/a/one", "outputs/b/inner", files=3)
    local = folder.outputs_path / "n-0"
    assert [(local / "a" / name).read_bytes() for name in ("one", "two")] == [b"new", b"old"]
    assert [path.read_bytes() for path in local.glob("b.before-*")] == [b"old"], "a file that is a folder now"
    assert [item.brought for item in saved(folder).listed] == [True, True, False]


def test_run_that_wrote_nothing_leaves_no_trace(folder: RunFolder) -> None:
    bring(folder, [], files=0)
    assert not folder.outputs_path.exists()
    assert read_outputs(folder, [NODE]) == []


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "a/../../../evil"])
def test_hostile_names_are_listed_as_text_and_written_nowhere(
    folder: RunFolder, tmp_path: Path, name: str
) -> None:
    files = bring(folder, [[name, 3, 7], ["good", 3, 7]], f"outputs/{name}", "outputs/good", files=2)
    assert list(files.intake.refused) == [f"outputs/{name}"]
    assert [item.brought for item in saved(folder).listed] == [False, True]
    assert not list(tmp_path.rglob("*evil*"))
    assert not Path("/etc/evil").exists()


def test_names_that_are_no_text_are_kept_as_escapes(folder: RunFolder) -> None:
    bring(folder, [["caf\udce9", 3, 7], ["half\ud800", 3, 7]], "outputs/caf\udce9", files=2)
    assert [(item.path, item.brought) for item in saved(folder).listed] == [
        ("caf\\udce9", True),
        ("half\\ud800", False),
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"no json", b"{}", b"[1]", b'[["a", 1]]', b'[["a", "x", 1]]', b'[[5, 1, 1]]', b'[["a", NaN, 1]]',
        b'[["a", Infinity, 1]]', json.dumps([["a", 1, 1]] * 20_001).encode(), b"[" * 100_000,
    ],
)  # fmt: skip
def test_list_that_is_none_is_refused(folder: RunFolder, body: bytes) -> None:
    with pytest.raises((BadAnswer, TypeError, ValueError, OverflowError)):
        RunFiles(folder, NODE, new_incoming(folder)).written(HEADER, body)


@pytest.mark.parametrize(
    ("options", "patterns", "max_bytes", "maximum"),
    [
        (None, [], SMALL_BYTES, SMALL_BYTES),
        (RunOptions(), [], SMALL_BYTES, SMALL_BYTES),
        (RunOptions(bring=("none",)), [], 0, 0),
        (RunOptions(bring=("*.pt",)), ["*.pt"], SMALL_BYTES, SMALL_BYTES + NAMED_BYTES),
    ],
)
def test_what_a_node_is_asked_for_follows_bring(
    options: RunOptions | None, patterns: list[str], max_bytes: int, maximum: int
) -> None:
    assert wanted_outputs(options) == {"patterns": patterns, "max_bytes": max_bytes}
    assert max_output_bytes(options) == maximum


@pytest.mark.parametrize(
    ("patterns", "header", "unmatched"),
    [
        (("*.nix", "*.pt"), {"files": 2}, ("*.nix",)),
        (("*.pt", "out/*"), {"files": 2}, ()),
        (("none",), {"files": 2}, ()),
        (("*.nix",), {"files": 3}, ()),  # one is not listed
        (("*.nix",), {"files": 2, "whole": False}, ()),
    ],
)
def test_patterns_that_match_nothing_are_known_where_all_files_are(
    folder: RunFolder, patterns: tuple[str, ...], header: dict[str, Any], unmatched: tuple[str, ...]
) -> None:
    options = RunOptions(bring=patterns, project="/p/sub", root="/p")
    run = a_run(run="r", cluster="c", script="a.py", nodes=(NODE,), started_at="", options=options)
    assert matched_nothing(folder, run) == (), "the node has said nothing yet"
    bring(folder, [["a.pt", 3, 7], ["sub/out/b", 3, 7]], **header)
    assert matched_nothing(folder, run) == unmatched


def test_parts_of_a_checkpoint_that_two_nodes_brought_are_put_together(tmp_path: Path) -> None:
    folder = Store(tmp_path).new_run(datetime.now(UTC))
    nodes = [
        RunNode(name=f"gpu-{rank}", rank=rank, nproc=1, first_rank=rank, run_dir="/x") for rank in range(2)
    ]
    for node, names in zip(
        nodes, (["ckpt/.metadata", "ckpt/__0_0.distcp"], ["ckpt/__1_0.distcp", "a"]), strict=True
    ):
        listed = [WrittenFile(path=name, bytes=1, changed_ns=1, brought=False) for name in names]
        came = tmp_path / node.name
        for name in names:
            (came / name).parent.mkdir(parents=True, exist_ok=True)
            (came / name).write_text(node.name)
        listing = NodeOutputs(
            node=node.name, folder="x", files=2, bytes=2, whole=True, shared_with=(), listed=tuple(listed)
        )
        keep_outputs(folder, listing, came)
    gather_parts(folder, nodes)
    gather_parts(folder, nodes)
    together = folder.outputs_path / "gpu-0" / "ckpt"
    assert {path.name for path in together.iterdir()} == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    assert (folder.outputs_path / "gpu-1" / "ckpt" / "__1_0.distcp").exists()
    assert not (folder.outputs_path / "gpu-0" / "a").exists()
