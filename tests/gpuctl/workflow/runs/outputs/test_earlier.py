"""Notes on an earlier run's files in the next run."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from node_here import NodeHere
from support import a_run

from gpuctl.errors import Usage
from gpuctl.global_options import Options
from gpuctl.library.keywords import TrainOptions
from gpuctl.library.options import train_request
from gpuctl.output import Output
from gpuctl.scripts.sources import read_sources
from gpuctl.tables.view import PlainView
from gpuctl.workflow.runs.outputs.earlier import (
    loadable,
    note_or_share,
    rewritten_sentence,
    share,
    uneven,
    uneven_sentence,
)
from gpuctl.workflow.runs.outputs.latest_files import latest, may_be_copies, outdated
from gpuctl.workflow.runs.prepare import Prepared
from inventories.disk.store import ClusterFolder, Store
from inventories.runs.outputs import OutputFile
from remote.errors import BadAnswer, NodeFailed
from remote.files.earlier import Aside, EarlierFiles
from remote.files.sync import sync
from remote.files.tree import Tree, tree_of
from remote.launchers.rank_command import Script
from remote.shared import frames

DEFAULT = ClusterFolder(Path("/g/clusters/default"))
ROOTS = {"gpu-0": "/home/me/.gpuctl-node/code/my-01", "gpu-1": "/root/.gpuctl-node/code/my-01"}


def left(*paths: str, whole: bool = True) -> EarlierFiles:
    return EarlierFiles(files=dict.fromkeys(paths, (10, 1)), whole=whole)


@pytest.mark.parametrize(
    ("first", "second", "lines"),
    [
        (left("snapshot.pt"), left(), ["snapshot.pt"]),
        (left("snapshot.pt"), left("snapshot.pt"), []),
        (left("snapshot.pt"), left(whole=False), []),
        (left("rank-0.bin"), left("rank-1.bin"), []),
        (left("train.log", "runs/events.out.tfevents.1", "wandb/run-1/x", "loss.png"), left(), []),
        (left("a.csv", "z.pt"), left(), ["z.pt", "a.csv"]),
        (left(), left("model.safetensors"), ["model.safetensors"]),
    ],
)
def test_files_are_told_that_one_node_has_and_another_lacks(
    first: EarlierFiles, second: EarlierFiles, lines: list[str]
) -> None:
    assert list(uneven({"gpu-0": first, "gpu-1": second})) == lines


def test_sentence_has_both_ways_on() -> None:
    sentence = uneven_sentence({"gpu-0": left("snapshot.pt"), "gpu-1": left()}, {})
    assert sentence == (
        "snapshot.pt is on gpu-0 alone, from an earlier run. If the script loads it at its start, add "
        "--share-outputs (all nodes get it) or --fresh (begin without it)"
    )
    sentence = uneven_sentence({"gpu-0": left(), "gpu-1": left("a.pt", "b.pt")}, {})
    assert sentence == (
        "a.pt, b.pt are on gpu-1 alone, from an earlier run. If the script loads them at its start, add "
        "--share-outputs (all nodes get them) or --fresh (begin without them)"
    )


@pytest.mark.parametrize(
    ("size", "digest", "noted"), [(11, "", True), (10, "a", False), (10, "b", True), (10, "", True)]
)
def test_weights_of_one_name_and_other_content_are_told(size: int, digest: str, noted: bool) -> None:
    both = {
        "gpu-0": EarlierFiles(files={"last.pt": (10, 1), "notes.csv": (10, 1)}),
        "gpu-1": EarlierFiles(files={"last.pt": (size, 2), "notes.csv": (11, 1)}),
    }
    assert may_be_copies(both, latest(both)) == (["last.pt"] if size == 10 else [])
    digests = {name: {"last.pt": text} for name, text in (("gpu-0", "a"), ("gpu-1", digest)) if text}
    sentence = (
        "last.pt of an earlier run differs from node to node, so ranks that load it may begin at different "
        "steps. If the script loads it at its start, add --share-outputs (all nodes get the latest) or --fresh "
        "(begin without it)"
    )
    assert uneven_sentence(both, digests) == (sentence if noted else "")


def prepared_with(
    earlier: dict[str, EarlierFiles], roots: dict[str, str], aside: Aside | None = None
) -> Prepared:
    return Prepared(facts={}, code={}, roots=roots, earlier=earlier, aside=aside or Aside(name="1"))


def in_parts(*names: str, run: str, needs: tuple[str, ...] = ()) -> EarlierFiles:
    return EarlierFiles(
        files={f"ckpt/{name}": (10, 1) for name in names},
        runs={f"ckpt/{name}": run for name in names},
        parts={"ckpt/.metadata": tuple(f"ckpt/{name}" for name in needs)} if needs else {},
    )


BOTH = ("__0_0.distcp", "__1_0.distcp")


def test_checkpoint_in_parts_is_told_as_one_thing() -> None:
    nodes = {
        "gpu-0": in_parts(".metadata", BOTH[0], run="2", needs=BOTH),
        "gpu-1": in_parts(BOTH[1], run="2"),
    }
    assert uneven_sentence(nodes, {}) == (
        "the checkpoint ckpt of an earlier run is in parts on gpu-0, gpu-1. If the script loads it at its start, add "
        "--share-outputs (all nodes get all parts) or --fresh (begin without it)"
    )


@pytest.mark.parametrize("second", [left(), in_parts(BOTH[1], run="1")])
def test_checkpoint_whose_parts_are_of_an_earlier_run_is_told_as_incomplete(second: EarlierFiles) -> None:
    nodes = {"gpu-0": in_parts(".metadata", BOTH[0], run="2", needs=BOTH), "gpu-1": second}
    assert uneven_sentence(nodes, {}) == (
        "the checkpoint ckpt of an earlier run is incomplete: no node has the parts of rank 1 (ckpt/__1_0.distcp); "
        "begin without it: --fresh"
    )


def test_weights_that_the_run_wrote_anew_on_one_node_are_told() -> None:
    wrote = [
        OutputFile(node="gpu-0", path=path, bytes=1, kind=None, brought=True)
        for path in ("best.pt", "new.pt", "ckpt/__0_0.distcp", "log.csv")
    ]
    earlier = {"gpu-0": left("best.pt", "ckpt/__0_0.distcp", "log.csv", "old.pt"), "gpu-1": left()}
    assert rewritten_sentence(wrote, ["gpu-0", "gpu-1"], earlier) == (
        "best.pt: gpu-0 wrote a new version in this run. The other nodes have the version that was shared before it; "
        "the next run with --share-outputs copies the new one."
    )
    assert rewritten_sentence(wrote, ["gpu-0"], earlier) == ""


def test_latest_version_is_that_of_the_latest_run_and_of_the_first_node() -> None:
    nodes = {
        "gpu-0": EarlierFiles(files=dict.fromkeys("abc", (1, 9)), runs={"a": "1", "b": "3", "c": "2"}),
        "gpu-1": EarlierFiles(files=dict.fromkeys("abd", (1, 5)), runs={"a": "2", "b": "3", "d": "1"}),
    }
    assert latest(nodes) == {"a": "gpu-1", "b": "gpu-0", "c": "gpu-0", "d": "gpu-1"}
    assert outdated(nodes, latest(nodes), {}) == {"gpu-0": ["a", "d"], "gpu-1": ["b", "c"]}
    same = {name: {"a": "x", "b": "y"} for name in nodes}
    assert outdated(nodes, latest(nodes), same) == {"gpu-0": ["d"], "gpu-1": ["c"]}


def test_nothing_is_told_where_all_nodes_have_the_same() -> None:
    assert uneven_sentence({"gpu-0": left("a.pt"), "gpu-1": left("a.pt")}, {}) == ""
    odd = uneven_sentence({"gpu-0": left("caf\udce9.pt"), "gpu-1": left()}, {})
    assert odd.encode().startswith(b"caf\\udce9.pt is on gpu-0 alone"), "it goes into a file of the run's"


def test_what_was_put_aside_is_told_with_the_command_that_brings_it() -> None:
    earlier = {
        "gpu-0": EarlierFiles(aside=5, aside_names=("a.pt", "b", "c", "d")),
        "gpu-1": EarlierFiles(),
    }
    prepared = prepared_with(earlier, ROOTS, Aside(name="1", everything=True))
    (line,) = prepared.aside_lines(ClusterFolder(Path("/g/clusters/default")))
    assert line == (
        "files of earlier runs (a.pt, b, c and 2 more) are kept on gpu-0: gpuctl pull --rank gpu-0 "
        ".gpuctl-node/code/my-01.aside-1 /g/pulled/aside-1/gpu-0"
    )
    both = {**earlier, "gpu-1": EarlierFiles(aside=1, aside_names=("a.pt",))}
    (line,) = prepared_with(both, ROOTS).aside_lines(ClusterFolder(Path("/g/clusters/c")))
    assert line == (
        "earlier versions of a.pt, b, c and 2 more are kept on gpu-0, gpu-1: gpuctl pull --cluster c "
        ".gpuctl-node/code/my-01.aside-1 /g/pulled/aside-1"
    )


def a_launchable(folder: Path, *args: str) -> Any:
    script = Script(kind="file", target="my.py", args=args)
    request = train_request(["my.py", *args], {})
    sources = read_sources(script, tree_of(folder, "*.py"), folder)
    return SimpleNamespace(request=request, script=script, sources=sources)


LOADS = 'import torch\ntorch.load("best.pt")\n'
LOADS_OPTION = (
    'parser.add_argument("--save-path", default="best.pt")\nif exists(args.save_path): load(args.save_path)\n'
    "torch.save(1, args.save_path)\n"
)
SAVES = (
    'import torch\nfrom torch.utils.data import DataLoader\ntorch.save(1, "best.pt")\nopen("a.csv", "w")\n'
)


@pytest.mark.parametrize(
    ("source", "args", "expected"),
    [
        (LOADS, (), ["own.pt", "best.pt"]),
        (SAVES, (), []),
        (SAVES + 'open("c.yaml")\n', (), ["own.pt"]),
        (SAVES + 'open("c.yaml")\n', ("--init", "best.pt"), ["own.pt", "best.pt"]),
        (LOADS_OPTION, (), ["own.pt", "best.pt"]),
        ("import lib\n", (), ["own.pt", "sets/part.pt"]),
        (LOADS, ("--from=sets",), ["own.pt", "best.pt", "sets/part.pt"]),
    ],
)
def test_script_may_load_files_of_its_own_runs_and_files_that_it_names(
    tmp_path: Path, source: str, args: tuple[str, ...], expected: list[str]
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my.py").write_text(source)
    (tmp_path / "code" / "lib.py").write_text('path = "sets/part.pt"\nif path.exists(): pass\n')
    store = Store(tmp_path / "store")
    runs = {script: store.new_run(datetime.now(UTC)) for script in ("my.py", "other.py")}
    for script, folder in runs.items():
        folder.save_run(a_run(run=folder.id, script=script))
    wrote = dict.fromkeys(("best.pt", "sets/part.pt", "of_other.pt"), runs["other.py"].id)
    wrote |= {"own.pt": runs["my.py"].id, "unknown.pt": ""}
    earlier = {"gpu-0": EarlierFiles(files=dict.fromkeys(wrote, (1, 1)), runs=wrote)}
    launchable = a_launchable(tmp_path / "code", *args)
    selection = loadable(launchable, earlier, runs["my.py"].path.parent)
    assert sorted(path for left in selection.values() for path in left.files) == sorted(expected)


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["my.py"], {"fresh": True, "share_outputs": True}, "leave one out"),
        ([], {"fresh": True}, "are for a script of yours"),
        (["--epochs", "1"], {"share_outputs": True}, "are for a script of yours"),
    ],
)
def test_options_that_contradict_themselves_are_refused(
    words: list[str], options: TrainOptions, message: str
) -> None:
    with pytest.raises(Usage, match=message):
        train_request(words, options)


class Scene:
    """Two nodes with a project's folder each, and the runs that wrote into it."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = Store(tmp_path).new_run(datetime.now(UTC))
        self.nodes: dict[str, NodeHere] = {}
        self.roots: dict[str, str] = {}
        for name in ("gpu-0", "gpu-1"):
            node = self.nodes[name] = NodeHere(tmp_path / name)
            node.machine = replace(node.machine, name=name)
            self.roots[name] = str(tmp_path / name / ".gpuctl-node" / "code" / "my-01")
            Path(self.roots[name]).mkdir(parents=True)

    def write(self, run: str, name: str, **files: str) -> None:
        """Have a run write such files on a node."""
        time.sleep(0.02)  # the kernel's clock of files moves in steps
        record = Path(self.roots[name]).parents[1] / "runs" / run / name / "code.json"
        record.parent.mkdir(parents=True)
        record.write_text(json.dumps({"root": self.roots[name], "folder": "."}))
        time.sleep(0.02)
        for file, content in files.items():
            (Path(self.roots[name]) / file).write_text(content)

    def share(self) -> list[str]:
        """Share the runs' files, and return the lines on them."""
        aside = Aside(name="1")
        earlier = {}
        for name, node in self.nodes.items():
            tree = Tree(root=Path(self.roots[name]), entries={})
            left = sync(node, tree, self.roots[name], follow_deletions=False, aside=aside).earlier
            assert left is not None
            earlier[name] = left
        with PlainView(Output(Options()), logs=False) as view:
            prepared = prepared_with(earlier, self.roots, aside)
            lines, incomplete = share(view, DEFAULT, self.nodes, prepared, self.folder)
        assert not incomplete
        assert not list(self.folder.path.glob("incoming-*")), "what came is not left here"
        return list(lines)

    def on(self, name: str) -> dict[str, str]:
        return {path.name: path.read_text() for path in Path(self.roots[name]).iterdir()}


def test_share_gives_every_node_what_the_latest_run_wrote_on_any(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write("1", "gpu-0", snapshot="of run 1", notes="of run 1")
    scene.write("2", "gpu-1", snapshot="of run 2", extra="of run 2")
    lines = scene.share()
    assert scene.on("gpu-0") == scene.on("gpu-1") == {
        "snapshot": "of run 2", "notes": "of run 1", "extra": "of run 2"
    }  # fmt: skip
    assert lines[:2] == [
        "shared with all nodes, from gpu-0 (run 1): notes, 8 B",
        "shared with all nodes, from gpu-1 (run 2): snapshot, extra, 16 B",
    ]
    assert lines[2].startswith("earlier versions of snapshot are kept on gpu-0: gpuctl pull --rank gpu-0 ")
    assert len(lines) == 3
    assert scene.share() == []


def test_share_tells_of_other_content_of_one_run_and_not_of_copies(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write("1", "gpu-0", last="step 30", same="alike")
    scene.write("1", "gpu-1", last="step 20", same="alike")
    lines = scene.share()
    assert scene.on("gpu-1")["last"] == "step 30"
    assert lines[:2] == [
        "shared with all nodes, from gpu-0 (run 1): last, 7 B",
        "last: one run wrote other content on each of gpu-0, gpu-1; all nodes get that of gpu-0, and the rest is "
        "kept on its node",
    ]


@pytest.mark.parametrize("path", ["gone.pt", "../gone.pt"])
def test_files_that_do_not_come_are_not_shared_in_part(tmp_path: Path, path: str) -> None:
    root = tmp_path / "home" / ".gpuctl-node" / "code" / "my-01"
    root.mkdir(parents=True)
    (root / "there.pt").write_text("weights")
    nodes = {name: NodeHere(tmp_path / "home") for name in ("gpu-0", "gpu-1")}
    roots = dict.fromkeys(nodes, str(root))
    folder = Store(tmp_path).new_run(datetime.now(UTC))
    earlier = {"gpu-0": left("there.pt", path), "gpu-1": left()}
    with PlainView(Output(Options()), logs=False) as view, pytest.raises(NodeFailed, match=re.escape(path)):
        share(view, DEFAULT, nodes, prepared_with(earlier, roots), folder)
    assert not list(folder.path.glob("incoming-*")), "what came is not left here"


class WithoutDigests(NodeHere):
    """A node whose digests can't be read."""

    @contextmanager
    def stream(self, *_: Any, **__: Any) -> Iterator[Any]:  # type: ignore[override]
        """Give an odd answer."""
        yield SimpleNamespace(frames=lambda: iter([({"t": frames.DIGESTS}, b"[]")]))


def test_node_that_fails_to_digest_fails_no_launch_but_for_sharing(tmp_path: Path) -> None:
    nodes = {"gpu-0": NodeHere(tmp_path), "gpu-1": WithoutDigests(tmp_path)}
    nodes["gpu-1"].machine = replace(nodes["gpu-1"].machine, name="gpu-1", rank=1)
    earlier = {name: EarlierFiles(files={"last.pt": (10, at)}) for at, name in enumerate(nodes)}
    roots = dict.fromkeys(nodes, str(tmp_path))
    prepared, folder = prepared_with(earlier, roots), Store(tmp_path).new_run(datetime.now(UTC))
    (tmp_path / "my.py").write_text('torch.load("last.pt")')
    launchable = a_launchable(tmp_path)
    with PlainView(Output(Options()), logs=False) as view:
        note = note_or_share(view, DEFAULT, nodes, prepared, launchable, folder)
        assert note.startswith("last.pt of an earlier run differs")
        with pytest.raises(BadAnswer, match="gpu-1 sent digests"):
            share(view, DEFAULT, nodes, prepared, folder)
