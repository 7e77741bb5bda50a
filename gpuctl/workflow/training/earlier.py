"""The second run of a script: what earlier ones left in the project's folder on the nodes."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from gpuctl import text
from gpuctl.errors import Usage
from gpuctl.run_results.outputs import kind_of, pull_command
from gpuctl.view import View
from gpuctl.workflow.training.request import TrainRequest
from inventories.disk.store import RunFolder
from remote.files.earlier import Aside, EarlierFiles
from remote.shared.constants import NODE_FOLDER

if TYPE_CHECKING:
    from gpuctl.workflow.training.prepare import Prepared
    from remote.sessions.session import Node

ONLY_READ = (
    ".log", ".out", ".err", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".html", ".mp4", ".prof", ".trace",
)  # fmt: skip
"""Ends of names of files that people look at, and no script goes on from."""
WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".pkl", ".npz", ".h5")
NAMES_SHOWN = 3
MAX_SHARED_BYTES = 100 * 1000**3


def check_earlier(request: TrainRequest) -> None:
    """Raises Usage where what earlier runs wrote can't become what is asked for."""
    if request.fresh and request.share_outputs:
        raise Usage(
            "--fresh puts aside what earlier runs wrote, and --share-outputs puts it on all nodes: leave one out."
        )
    if request.built_in and (request.fresh or request.share_outputs):
        raise Usage(
            "--fresh and --share-outputs are for a script of yours; the built-in job writes no such files."
        )


def aside_of(request: TrainRequest, now: datetime, *, first: bool) -> Aside | None:
    """Where the nodes put what a sync would lose; `first`: the run is the job's first. None: there is no such."""
    if request.built_in:
        return None
    return Aside(name=f"{now:%Y%m%d-%H%M%S}", everything=request.fresh and first)


def aside_lines(
    cluster: str, aside: Aside | None, roots: Mapping[str, str], earlier: Mapping[str, EarlierFiles]
) -> Sequence[str]:
    """Return a line for each node with a backup of files, with the command that downloads it.

    `roots`: the project's folder on each node.
    """
    if aside is None:
        return []
    if aside.everything:
        change = "files of earlier runs were moved to a backup folder on the node"
    else:
        change = "files changed by earlier runs were replaced; their old versions are in a backup folder on the node"
    return [
        f"{name}: {change} ({_some(found.aside_names, found.aside)}). Download them: "
        + pull_command(cluster, name, _from_home(aside.folder(roots[name])), f"aside/{name}")
        for name, found in earlier.items()
        if found.aside
    ]


def tell_or_share(
    view: View,
    cluster: str,
    nodes: "Mapping[str, Node]",
    prepared: "Prepared",
    request: TrainRequest,
    aside: Aside,
    folder: RunFolder,
) -> str:
    """Tell of what an earlier run left on some of the nodes alone, or put it on all of them, as was asked for.

    Returns the sentence that was told; empty where there is nothing such.
    """
    by_rank = sorted(prepared.roots, key=lambda name: nodes[name].machine.rank)
    roots = {name: prepared.roots[name] for name in by_rank}
    if request.share_outputs:
        for line in share(view, cluster, nodes, roots, prepared.earlier, aside, folder):
            view.note(line)
        return ""
    said = (uneven_sentence(cluster, roots, prepared.earlier), differing(prepared.earlier))
    if sentence := "; ".join(filter(None, said)):
        view.note(sentence)
    return sentence


def uneven(earlier: Mapping[str, EarlierFiles]) -> dict[str, list[str]]:
    """Files that some nodes have and others lack → the nodes that have them; the likeliest checkpoints first.

    Not those that people look at, nor one of which each node has its own, told apart by a number.
    """
    alike = {name: {_numberless(path) for path in found.files} for name, found in earlier.items()}
    sizes = {path: size for found in earlier.values() for path, (size, _) in found.files.items()}
    holders = {
        path: [name for name, found in earlier.items() if path in found.files]
        for path in sizes
        if not path.endswith(ONLY_READ) and kind_of(path)[0] is None
    }
    lacked = [
        path
        for path, having in holders.items()
        if any(
            found.whole and _numberless(path) not in alike[name]
            for name, found in earlier.items()
            if name not in having
        )
    ]
    lacked.sort(key=lambda path: (not path.endswith(WEIGHTS), -sizes[path], path))
    return {path: holders[path] for path in lacked}


def uneven_sentence(cluster: str, roots: Mapping[str, str], earlier: Mapping[str, EarlierFiles]) -> str:
    """The sentence on what an earlier run left on some of the nodes alone; empty where there is nothing such.

    `roots`: the project's folder on each node, that of rank 0 first.
    """
    first, found = next(iter(roots)), uneven(earlier)
    shared = [path for path, having in found.items() if first in having]
    named = shared or list(found)
    if not named:
        return ""
    nodes = ", ".join(found[named[0]])
    one, verb = ("it", "is") if len(named) == 1 else ("them", "are")
    fresh = f"--fresh (begin without {one})"
    if shared:
        ways = f"add --share-outputs (all nodes get {one}) or {fresh}"
    else:
        holder = found[named[0]][0]
        brought = "it" if len(named) == 1 else "the first"
        pull = pull_command(cluster, holder, _from_home(f"{roots[holder]}/{named[0]}"))
        ways = f"add {fresh}, or bring {brought} here: {pull}"
    some = _some(named, len(named))
    return f"{some} {verb} on {nodes} alone, from an earlier run: if the script loads {one}, {ways}"


def differing(earlier: Mapping[str, EarlierFiles]) -> str:
    """The sentence on weights that nodes have under one name and in several sizes; empty where there are none."""
    sizes: dict[str, set[int]] = {}
    for found in earlier.values():
        for path, (size, _) in found.files.items():
            if path.endswith(WEIGHTS):
                sizes.setdefault(path, set()).add(size)
    named = sorted(path for path, several in sizes.items() if len(several) > 1)
    if not named:
        return ""
    differ = "differs" if len(named) == 1 else "differ"
    return (
        f"{_some(named, len(named))} of an earlier run {differ} from node to node: ranks that resume from such may "
        "begin at different steps; --share-outputs gives all nodes what rank 0's has"
    )


def share(
    view: View,
    cluster: str,
    nodes: "Mapping[str, Node]",
    roots: Mapping[str, str],
    earlier: Mapping[str, EarlierFiles],
    aside: Aside,
    folder: RunFolder,
) -> Sequence[str]:
    """Put what earlier runs left on rank 0's node, which `roots` has first, on all others; return what is to be told.

    It passes through this computer. What others have under these names is put aside. Raises NodeFailed where not all
    of it can be brought.
    """
    from remote.errors import NodeFailed
    from remote.files.pull import take_in
    from remote.files.receive import FileReceiver
    from remote.files.sync import sync
    from remote.files.tree import human_bytes, tree_of
    from remote.runs.run_files import new_incoming
    from remote.sessions.fanout import fan_out, values

    first = next(iter(roots))
    whole, has = earlier[first].whole, earlier[first].files
    others = {name: node for name, node in nodes.items() if name != first}
    lacking = [
        path for path, is_ in has.items() if any(earlier[name].files.get(path) != is_ for name in others)
    ]
    if not lacking:
        return ()
    passing = new_incoming(folder)
    try:
        intake = FileReceiver(passing, max_bytes=MAX_SHARED_BYTES)
        refused = take_in(nodes[first], "send_earlier", {"root": roots[first], "paths": lacking}, intake)
        came = {path.relative_to(passing).as_posix() for path in passing.rglob("*") if path.is_file()}
        if refused or came != set(lacking):
            missed = refused or sorted(set(lacking) ^ came)
            raise NodeFailed(f"{first}: not all of its files could be shared: {_some(missed, len(missed))}")
        for path in came:
            os.utime(passing / path, ns=(has[path][1], has[path][1]))
        tree = tree_of(passing, "**/*")
        for name, why in tree.skipped.items():
            view.note(f"{text.clean(name)} is not shared: {why}")

        def one(node: "Node") -> EarlierFiles | None:
            return sync(
                node,
                tree,
                roots[node.name],
                follow_deletions=False,
                aside=aside,
                say=lambda line: view.node(node.name, line),
            ).earlier

        done = values(fan_out(one, others))
    finally:
        shutil.rmtree(passing, ignore_errors=True)
    told = {name: found for name, found in done.items() if found is not None}
    return (
        f"shared with all nodes, from {first}: {_some(lacking, len(lacking))}, {human_bytes(intake.bytes)}",
        *aside_lines(cluster, aside, roots, told),
        *([f"{first} has more files of earlier runs than are looked at: not all are shared"] * (not whole)),
    )


def _some(names: Sequence[str], count: int) -> str:
    """`a.pt, b.pt and 4 more files`."""
    shown = [text.shorten(text.clean(name), 60) for name in names[:NAMES_SHOWN]]
    more = count - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _from_home(path: str) -> str:
    """A path in gpuctl's folder on a node, as seen from the home folder."""
    return NODE_FOLDER + path.partition(NODE_FOLDER)[2]


def _numberless(path: str) -> str:
    return re.sub(r"\d+", "0", path)
