"""Which files of an earlier run the next one is told of, and in which words."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from node_here import NodeHere

from gpuctl.errors import Usage
from gpuctl.library.options import TrainOptions, train_request
from gpuctl.options import Options
from gpuctl.output import Output
from gpuctl.view import PlainView
from gpuctl.workflow.training.earlier import aside_lines, aside_of, differing, share, uneven, uneven_sentence
from inventories.disk.store import Store
from remote.errors import NodeFailed
from remote.files.earlier import Aside, EarlierFiles

ROOTS = {"gpu-0": "/home/me/.gpuctl-node/code/my-01", "gpu-1": "/root/.gpuctl-node/code/my-01"}


def left(*paths: str, whole: bool = True) -> EarlierFiles:
    return EarlierFiles(files=dict.fromkeys(paths, (10, 1)), whole=whole)


@pytest.mark.parametrize(
    ("first", "second", "told"),
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
    first: EarlierFiles, second: EarlierFiles, told: list[str]
) -> None:
    assert list(uneven({"gpu-0": first, "gpu-1": second})) == told


def test_sentence_has_both_ways_on() -> None:
    sentence = uneven_sentence("default", ROOTS, {"gpu-0": left("snapshot.pt"), "gpu-1": left()})
    assert sentence == (
        "snapshot.pt is on gpu-0 alone, from an earlier run: if the script loads it, add --share-outputs (all nodes "
        "get it) or --fresh (begin without it)"
    )


def test_sentence_on_what_rank_0_lacks_has_the_command_that_brings_it() -> None:
    sentence = uneven_sentence("four", ROOTS, {"gpu-0": left(), "gpu-1": left("a.pt", "b.pt")})
    assert sentence == (
        "a.pt, b.pt are on gpu-1 alone, from an earlier run: if the script loads them, add --fresh (begin without "
        "them), or bring the first here: gpuctl pull --cluster four --rank gpu-1 .gpuctl-node/code/my-01/a.pt"
    )


def test_weights_of_one_name_that_differ_from_node_to_node_are_told() -> None:
    other = EarlierFiles(files={"last.pt": (11, 1), "notes.csv": (11, 1), "own.pt": (10, 1)})
    assert differing({"gpu-0": left("last.pt", "notes.csv"), "gpu-1": other}) == (
        "last.pt of an earlier run differs from node to node: ranks that resume from such may begin at different "
        "steps; --share-outputs gives all nodes what rank 0's has"
    )
    assert differing({"gpu-0": left("last.pt"), "gpu-1": left("last.pt")}) == ""


def test_nothing_is_told_where_all_nodes_have_the_same() -> None:
    assert uneven_sentence("default", ROOTS, {"gpu-0": left("a.pt"), "gpu-1": left("a.pt")}) == ""
    odd = uneven_sentence("default", ROOTS, {"gpu-0": left("caf\udce9.pt"), "gpu-1": left()})
    assert odd.encode().startswith(b"caf\\udce9.pt is on gpu-0 alone"), "it goes into a file of the run's"


def test_what_was_put_aside_is_told_with_the_command_that_brings_it() -> None:
    found = {
        "gpu-0": EarlierFiles(aside=5, aside_names=("a.pt", "b", "c", "d")),
        "gpu-1": EarlierFiles(),
    }
    (line,) = aside_lines("default", Aside(name="1", everything=True), ROOTS, found)
    assert line == (
        "gpu-0: files of earlier runs were moved to a backup folder on the node (a.pt, b, c and 2 more). "
        "Download them: gpuctl pull --rank gpu-0 "
        ".gpuctl-node/code/my-01.aside-1 aside/gpu-0"
    )


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        (["my.py"], {"fresh": True, "share_outputs": True}, "leave one out"),
        ([], {"fresh": True}, "are for a script of yours"),
        (["--epochs", "1"], {"share_outputs": True}, "are for a script of yours"),
    ],
)
def test_options_that_contradict_themselves_are_refused(
    words: list[str], options: TrainOptions, said: str
) -> None:
    with pytest.raises(Usage, match=said):
        train_request(words, options)


def test_only_the_first_run_of_a_job_begins_afresh() -> None:
    request, now = train_request(["my.py"], {"fresh": True}), datetime(2026, 11, 21, 6, tzinfo=UTC)
    assert aside_of(request, now, first=True) == Aside(name="20261121-060000", everything=True)
    assert aside_of(request, now, first=False) == Aside(name="20261121-060000", everything=False)
    assert aside_of(train_request([], {}), now, first=True) is None


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
        share(view, "default", nodes, roots, earlier, Aside(name="1"), folder)
    assert not list(folder.path.glob("incoming-*")), "what came is not left here"
