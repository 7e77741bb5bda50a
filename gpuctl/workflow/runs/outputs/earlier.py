"""Files that earlier runs of a script left in the project's folder on the nodes."""

import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from gpuctl import text
from gpuctl.run_results.outputs import kind_of
from gpuctl.scripts.sources import names_in, only_writes, reads_files
from gpuctl.tables.view import View
from gpuctl.workflow.runs.outputs.latest_files import (
    WEIGHTS,
    Digests,
    PartedCheckpoint,
    differing,
    latest,
    may_be_copies,
    outdated,
    parted_checkpoints,
)
from gpuctl.workflow.runs.prepare import Prepared, some_files
from gpuctl.workflow.runs.request.launchable import Launchable
from inventories.disk.store import ClusterFolder, RunFolder
from inventories.errors import InventoryError
from inventories.runs.outputs import OutputFile
from remote.files.earlier import EarlierFiles
from remote.shared.checkpoint_sets import ranks_of, sets_in

if TYPE_CHECKING:
    from remote.fanout import Outcome
    from remote.sessions.session import Node

ONLY_READ = (
    ".log", ".out", ".err", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".html", ".mp4", ".prof", ".trace",
)  # fmt: skip
"""Suffixes of files for people, which no script loads."""
MAX_SHARED_BYTES = 100 * 1000**3
MAX_DIGESTED_BYTES = 1000**3
"""Weights of which a run that shares nothing compares the contents."""


def note_or_share(
    view: View,
    cluster: ClusterFolder,
    nodes: "Mapping[str, Node]",
    prepared: Prepared,
    launchable: Launchable,
    folder: RunFolder,
) -> str:
    """Note the files that the script may load and that only some nodes have, or put all files on all nodes.

    Returns the note; empty: the nodes have the same, or the script loads no such file.
    """
    by_rank = sorted(prepared.roots, key=lambda name: nodes[name].machine.rank)
    prepared = replace(
        prepared,
        roots={name: prepared.roots[name] for name in by_rank},
        earlier={name: prepared.earlier[name] for name in by_rank if name in prepared.earlier},
    )
    if launchable.request.share_outputs:
        lines, incomplete = share(view, cluster, nodes, prepared, folder)
        for line in lines:
            view.note(line)
        return incomplete
    earlier = loadable(launchable, prepared.earlier, folder.path.parent)
    source = latest(earlier)
    copies = [path for path in may_be_copies(earlier, source) if path.endswith(WEIGHTS)]
    if sum(earlier[source[path]].files[path][0] for path in copies) > MAX_DIGESTED_BYTES:
        copies = []
    outcomes = _digests(nodes, prepared.roots, copies)  # of a node that fails, sizes and times are compared
    digests = {outcome.node: outcome.value for outcome in outcomes if outcome.value is not None}
    if sentence := uneven_sentence(earlier, digests):
        view.note(sentence)
    return sentence


def loadable(
    launchable: Launchable, earlier: Mapping[str, EarlierFiles], runs: Path
) -> dict[str, EarlierFiles]:
    """Return the files of earlier runs that a script may load; empty if its sources load no files.

    `runs`: the folder of the runs' records.
    """
    script, sources = launchable.script, launchable.sources.texts
    if sources and not any(map(reads_files, sources)):
        return {}
    ids = {run for left in earlier.values() for run in left.runs.values()}
    own_runs = {run for run in ids if run and _script_of(runs / run) == script.title}
    typed = names_in((), script.args)
    written = {
        path
        for left in earlier.values()
        for path in left.files
        if (name := PurePosixPath(path).name) not in typed and only_writes(sources, name)
    }
    return selected(earlier, own_runs, launchable.sources.names, written)


def selected(
    earlier: Mapping[str, EarlierFiles],
    own_runs: Collection[str],
    names: Collection[str],
    written: Collection[str] = (),
) -> dict[str, EarlierFiles]:
    """Return the files that these runs wrote, or of whose paths a part is among the names, without the `written`.

    A checkpoint in parts is selected whole.
    """
    chosen = {
        path
        for left in earlier.values()
        for path in left.files
        if left.runs.get(path) in own_runs or not set(path.split("/")).isdisjoint(names)
    }.difference(written)
    paths = {path for left in earlier.values() for path in left.files}
    for members in sets_in(paths).values():
        if not chosen.isdisjoint(members):
            chosen.update(members)
    return {
        node: replace(left, files={path: entry for path, entry in left.files.items() if path in chosen})
        for node, left in earlier.items()
    }


def _script_of(run: Path) -> str | None:
    with suppress(InventoryError, OSError):
        return RunFolder(run).load_run().script
    return None


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
        clauses.append(f"{some_files(list(alone))} {verb} on {', '.join(first)} alone, from an earlier run")
    if differ:
        verb, loaded = ("differs", "it") if len(differ) == 1 else ("differ", "them")
        clauses.append(
            f"{some_files(list(differ))} of an earlier run {verb} from node to node, so ranks that load "
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
        f"{some_files(written)}: {', '.join(writers[written[0]])} wrote a new version in this run. The "
        "other nodes have the version that was shared before it; the next run with --share-outputs copies the new "
        "one."
    )


def _lacks_sentence(checkpoint: PartedCheckpoint) -> str:
    """Return the clause on a checkpoint in parts of which no node has some."""
    ranks = ", ".join(map(str, ranks_of(checkpoint.lacks)))
    parts = f"the parts of rank {ranks}" if ranks else "parts"
    return (
        f"the checkpoint {_name(checkpoint)} of an earlier run is incomplete: no node has {parts} "
        f"({some_files(checkpoint.lacks)}); begin without it: --fresh"
    )


def share(
    view: View,
    cluster: ClusterFolder,
    nodes: "Mapping[str, Node]",
    prepared: Prepared,
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

    roots, earlier = prepared.roots, prepared.earlier
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
                raise NodeFailed(f"{origin}: not all of its files could be shared: {some_files(missed)}")
            for path in paths:
                at = earlier[origin].files[path][1]
                os.utime(passing / path, ns=(at, at))
            size = human_bytes(intake.bytes - before)
            lines.append(
                f"shared with all nodes, from {_origin(earlier, origin, paths)}: {some_files(paths)}, {size}"
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
                aside=prepared.aside,
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
        *replace(prepared, earlier=moved).aside_lines(cluster),
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


def _numberless(path: str) -> str:
    return re.sub(r"\d+", "0", path)
