"""Files that earlier runs of a script left in the project's folder on the nodes."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpuctl import text
from gpuctl.errors import Usage
from gpuctl.run_results.outputs import kind_of, pull_command, pulled_folder
from gpuctl.tables.view import View
from gpuctl.workflow.runs.outputs.earlier_use import loadable
from gpuctl.workflow.runs.outputs.latest_files import (
    Digests,
    PartedCheckpoint,
    differing,
    latest,
    may_be_copies,
    outdated,
    parted_checkpoints,
)
from gpuctl.workflow.runs.request.project import Project
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.disk.store import RunFolder
from inventories.runs.outputs import OutputFile
from remote.files.earlier import Aside, EarlierFiles
from remote.shared.checkpoint_sets import ranks_of, sets_in
from remote.shared.constants import NODE_FOLDER

if TYPE_CHECKING:
    from gpuctl.workflow.runs.prepared import Prepared
    from remote.fanout import Outcome
    from remote.sessions.session import Node

ONLY_READ = (
    ".log", ".out", ".err", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".html", ".mp4", ".prof", ".trace",
)  # fmt: skip
"""Suffixes of files for people, which no script loads."""
WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".pkl", ".npz", ".h5")
NAMES_SHOWN = 3
MAX_SHARED_BYTES = 100 * 1000**3
MAX_DIGESTED_BYTES = 1000**3
"""Weights of which a run that shares nothing compares the contents."""


def check_earlier(request: TrainRequest) -> None:
    """Raise Usage for options on files of earlier runs that exclude each other."""
    if request.fresh and request.share_outputs:
        raise Usage(
            "--fresh puts aside what earlier runs wrote, and --share-outputs puts it on all nodes: leave one out."
        )
    if request.built_in and (request.fresh or request.share_outputs):
        raise Usage(
            "--fresh and --share-outputs are for a script of yours; the built-in job writes no such files."
        )


def aside_of(request: TrainRequest, now: datetime, *, first: bool) -> Aside | None:
    """Return the backup folder for files that a sync would remove. `None`: the built-in job.

    `first`: the run is the job's first.
    """
    if request.built_in:
        return None
    return Aside(name=f"{now:%Y%m%d-%H%M%S}", everything=request.fresh and first)


def aside_lines(
    cluster: str,
    home: Path,
    aside: Aside | None,
    roots: Mapping[str, str],
    earlier: Mapping[str, EarlierFiles],
) -> Sequence[str]:
    """Return a line on the files that were moved to a backup folder, with the command that downloads them.

    `home`: gpuctl's on this computer. `roots`: the project's folder on each node. If only some nodes moved files,
    each of them has a line.
    """
    moved = {name: left for name, left in earlier.items() if left.aside}
    if aside is None or not moved:
        return []
    if 1 < len(roots) == len(moved):
        return [_aside_line(cluster, home, aside, roots, moved, None)]
    return [_aside_line(cluster, home, aside, roots, {name: left}, name) for name, left in moved.items()]


def _aside_line(
    cluster: str,
    home: Path,
    aside: Aside,
    roots: Mapping[str, str],
    moved: Mapping[str, EarlierFiles],
    node: str | None,
) -> str:
    """Return the line on these nodes' backups. `node`: the one of the command; `None`: it is for all nodes."""
    names = list(dict.fromkeys(path for left in moved.values() for path in left.aside_names))
    unnamed = max(left.aside - len(left.aside_names) for left in moved.values())
    files = _some(names, len(names) + unnamed)
    subject = f"files of earlier runs ({files})" if aside.everything else f"earlier versions of {files}"
    place = NODE_FOLDER + aside.folder(roots[next(iter(moved))]).partition(NODE_FOLDER)[2]  # relative to ~
    target = pulled_folder(home, f"aside-{aside.name}", *([node] if node else []))
    return f"{subject} are kept on {', '.join(moved)}: {pull_command(cluster, node, place, target)}"


def note_or_share(
    view: View,
    cluster: str,
    nodes: "Mapping[str, Node]",
    prepared: "Prepared",
    request: TrainRequest,
    aside: Aside,
    folder: RunFolder,
    project: Project,
) -> str:
    """Note the files that the script may load and that only some nodes have, or put all files on all nodes.

    Returns the note; empty: the nodes have the same, or the script loads no such file.
    """
    by_rank = sorted(prepared.roots, key=lambda name: nodes[name].machine.rank)
    roots = {name: prepared.roots[name] for name in by_rank}
    earlier = {name: prepared.earlier[name] for name in by_rank if name in prepared.earlier}
    if request.share_outputs:
        lines, incomplete = share(view, cluster, nodes, roots, earlier, aside, folder)
        for line in lines:
            view.note(line)
        return incomplete
    earlier = loadable(project, earlier, folder.path.parent)
    source = latest(earlier)
    copies = [path for path in may_be_copies(earlier, source) if path.endswith(WEIGHTS)]
    if sum(earlier[source[path]].files[path][0] for path in copies) > MAX_DIGESTED_BYTES:
        copies = []
    outcomes = _digests(nodes, roots, copies)  # of a node that fails, sizes and times are compared
    digests = {outcome.node: outcome.value for outcome in outcomes if outcome.value is not None}
    if sentence := uneven_sentence(earlier, digests):
        view.note(sentence)
    return sentence


def uneven(earlier: Mapping[str, EarlierFiles]) -> dict[str, list[str]]:
    """Return files that some nodes have and others lack → the nodes that have them; likely checkpoints first.

    Files that people read, and files that each node has under another number, are left out.
    """
    alike = {name: {_numberless(path) for path in left.files} for name, left in earlier.items()}
    sizes = {path: size for left in earlier.values() for path, (size, _) in left.files.items()}
    holders = {
        path: [name for name, left in earlier.items() if path in left.files]
        for path in sizes
        if not path.endswith(ONLY_READ) and kind_of(path)[0] is None
    }
    lacked = [
        path
        for path, having in holders.items()
        if any(
            left.whole and _numberless(path) not in alike[name]
            for name, left in earlier.items()
            if name not in having
        )
    ]
    lacked.sort(key=lambda path: (not path.endswith(WEIGHTS), -sizes[path], path))
    return {path: holders[path] for path in lacked}


def uneven_sentence(earlier: Mapping[str, EarlierFiles], digests: Digests) -> str:
    """Return the sentence on files of earlier runs that are not the same on all nodes; empty: all are.

    `earlier`: by the nodes' ranks. A checkpoint in parts is named as one thing, never one of its files.
    """
    source = latest(earlier)
    checkpoints = parted_checkpoints(earlier, source)
    in_parts = {path for checkpoint in checkpoints for path in checkpoint.files}
    alone = {path: having for path, having in uneven(earlier).items() if path not in in_parts}
    differ = {
        path: having
        for path, having in differing(earlier, source, digests).items()
        if path.endswith(WEIGHTS) and path not in in_parts
    }
    whole = [checkpoint for checkpoint in checkpoints if not checkpoint.lacks]
    clauses = [
        *map(_lacks_sentence, (checkpoint for checkpoint in checkpoints if checkpoint.lacks)),
        *(
            f"the checkpoint {_name(checkpoint)} of an earlier run is {_place(checkpoint)}"
            for checkpoint in whole
        ),
    ]
    if alone:
        verb = "is" if len(alone) == 1 else "are"
        first = next(iter(alone.values()))
        clauses.append(
            f"{_some(list(alone), len(alone))} {verb} on {', '.join(first)} alone, from an earlier run"
        )
    if differ:
        verb, loaded = ("differs", "it") if len(differ) == 1 else ("differ", "them")
        clauses.append(
            f"{_some(list(differ), len(differ))} of an earlier run {verb} from node to node, so ranks that load "
            f"{loaded} may begin at different steps"
        )
    if not whole and not alone and not differ:
        return "; ".join(clauses)
    pronoun = "it" if len(whole) + len(alone) + len(differ) == 1 else "them"
    shared = "the latest" if differ else pronoun if alone else "all parts"
    return (
        f"{'; '.join(clauses)}. If the script loads {pronoun} at its start, add --share-outputs (all nodes get "
        f"{shared}) or --fresh (begin without {pronoun})"
    )


def _name(checkpoint: PartedCheckpoint) -> str:
    return text.shorten(text.clean(checkpoint.folder), 60)


def _place(checkpoint: PartedCheckpoint) -> str:
    several = len(checkpoint.nodes) > 1
    return f"in parts on {', '.join(checkpoint.nodes)}" if several else f"on {checkpoint.nodes[0]} alone"


def rewritten_sentence(
    outputs: Sequence[OutputFile], nodes: Sequence[str], earlier: Mapping[str, EarlierFiles]
) -> str:
    """Return the sentence on shared weights that a run rewrote on some nodes only.

    Empty: it rewrote no shared weights. `nodes`: the run's nodes. `earlier`: the files of earlier runs.
    """
    shared = {path for left in earlier.values() for path in left.files if path.endswith(WEIGHTS)}
    shared = shared.difference(*sets_in(shared).values())
    writers: dict[str, list[str]] = {}
    for file in outputs:
        if file.path in shared:
            writers.setdefault(file.path, []).append(file.node)
    written = [path for path, having in writers.items() if len(having) < len(nodes)]
    if not written:
        return ""
    return (
        f"{_some(written, len(written))}: {', '.join(writers[written[0]])} wrote a new version in this run. The "
        "other nodes have the version that was shared before it; the next run with --share-outputs copies the new "
        "one."
    )


def _lacks_sentence(checkpoint: PartedCheckpoint) -> str:
    """Return the clause on a checkpoint in parts of which no node has some."""
    ranks = ", ".join(map(str, ranks_of(checkpoint.lacks)))
    parts = f"the parts of rank {ranks}" if ranks else "parts"
    return (
        f"the checkpoint {_name(checkpoint)} of an earlier run is incomplete: no node has {parts} "
        f"({_some(checkpoint.lacks, len(checkpoint.lacks))}); begin without it: --fresh"
    )


def share(
    view: View,
    cluster: str,
    nodes: "Mapping[str, Node]",
    roots: Mapping[str, str],
    earlier: Mapping[str, EarlierFiles],
    aside: Aside,
    folder: RunFolder,
) -> tuple[Sequence[str], str]:
    """Put the latest version of each file that earlier runs left on every node; return the lines on that.

    The files pass through this computer. Other versions are put aside on their nodes. Also returns the sentence on
    checkpoints that lack parts, which are left as they are. Raises NodeFailed where not all files can be brought.
    """
    from inventories.text import human_bytes
    from remote.errors import NodeFailed
    from remote.fanout import fan_out, values
    from remote.files.pull import take_in
    from remote.files.receive import FileReceiver
    from remote.files.sync import sync
    from remote.files.tree import Tree, tree_of
    from remote.runs.run_files import new_incoming

    source = latest(earlier)
    incomplete = [checkpoint for checkpoint in parted_checkpoints(earlier, source) if checkpoint.lacks]
    for path in (path for checkpoint in incomplete for path in checkpoint.files):
        del source[path]
    digests = values(_digests(nodes, roots, may_be_copies(earlier, source)))
    lacking = outdated(earlier, source, digests)
    behind = {path for paths in lacking.values() for path in paths}
    passing, lines = new_incoming(folder), []
    try:
        intake = FileReceiver(passing, max_bytes=MAX_SHARED_BYTES)
        for origin in roots:
            paths = [path for path in source if path in behind and source[path] == origin]
            if not paths:
                continue
            before = intake.bytes
            refused = take_in(nodes[origin], "send_earlier", {"root": roots[origin], "paths": paths}, intake)
            if refused or (missed := [path for path in paths if not (passing / path).is_file()]):
                missed = refused or missed
                raise NodeFailed(
                    f"{origin}: not all of its files could be shared: {_some(missed, len(missed))}"
                )
            for path in paths:
                at = earlier[origin].files[path][1]
                os.utime(passing / path, ns=(at, at))
            size = human_bytes(intake.bytes - before)
            lines.append(
                f"shared with all nodes, from {_origin(earlier, origin, paths)}: {_some(paths, len(paths))}, {size}"
            )
        if not behind:
            return (), "; ".join(map(_lacks_sentence, incomplete))
        tree = tree_of(passing, "**/*")
        for name, why in tree.skipped.items():
            view.note(f"{text.clean(name)} is not shared: {why}")

        def receive(node: "Node") -> EarlierFiles | None:
            entries = {path: tree.entries[path] for path in lacking[node.name] if path in tree.entries}
            return sync(
                node,
                Tree(root=passing, entries=entries),
                roots[node.name],
                follow_deletions=False,
                aside=aside,
                say=lambda line: view.node(node.name, line),
            ).earlier

        done = values(fan_out(receive, {name: nodes[name] for name, paths in lacking.items() if paths}))
    finally:
        shutil.rmtree(passing, ignore_errors=True)
    moved = {name: left for name, left in done.items() if left is not None}
    cut = [name for name, left in earlier.items() if not left.whole]
    return (
        *lines,
        *_several_writers(earlier, source, digests),
        *aside_lines(cluster, folder.path.parents[1], aside, roots, moved),
        *(f"{name} has more files of earlier runs than are looked at: not all are shared" for name in cut),
    ), "; ".join(map(_lacks_sentence, incomplete))


def _origin(earlier: Mapping[str, EarlierFiles], node: str, paths: Sequence[str]) -> str:
    """Return `gpu-0 (run 20261127-142604-0947)`."""
    runs = sorted({run for path in paths if (run := earlier[node].runs.get(path))})
    return f"{node} (run {', '.join(runs)})" if runs else node


def _several_writers(
    earlier: Mapping[str, EarlierFiles], source: Mapping[str, str], digests: Digests
) -> Iterator[str]:
    """Return the sentence on files that the same run wrote with other content on several nodes."""
    for path, having in differing(earlier, source, digests).items():
        run = earlier[source[path]].runs.get(path, "")
        if same_run := [node for node in having if earlier[node].runs.get(path, "") == run]:
            nodes = ", ".join([source[path], *same_run])
            yield (
                f"{text.clean(path)}: one run wrote other content on each of {nodes}; all nodes get that of "
                f"{source[path]}, and the rest is kept on its node"
            )


def _digests(
    nodes: "Mapping[str, Node]", roots: Mapping[str, str], paths: Sequence[str]
) -> "list[Outcome[dict[str, str]]]":
    """Return the digests of these files by node."""
    from remote.fanout import fan_out
    from remote.files.earlier import digests

    if not paths:
        return []
    return fan_out(lambda node: digests(node, roots[node.name], paths), {name: nodes[name] for name in roots})


def _some(names: Sequence[str], count: int) -> str:
    """`a.pt, b.pt and 4 more files`."""
    shown = [text.shorten(text.clean(name), 60) for name in names[:NAMES_SHOWN]]
    more = count - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _numberless(path: str) -> str:
    return re.sub(r"\d+", "0", path)
