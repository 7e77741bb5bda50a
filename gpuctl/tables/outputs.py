"""The part of a run's table that tells which files it wrote into the project's folder, and where they are now.

Imports rich: import this module where you print.
"""

from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gpuctl import text
from gpuctl.run_results.outputs import (
    IN_PARTS,
    OutputGroup,
    checkpoints_in_parts,
    groups_of,
    in_folder,
    path_on_node,
    pull_command,
)
from gpuctl.run_results.run_facts import LABEL_WIDTH
from inventories.outputs import OutputTotal
from inventories.run import Result
from remote.files.tree import human_bytes

NODES_SHOWN = 4
GROUPS_SHOWN = 5
COMMANDS_SHOWN = 3
"""Of a node of which more is not here, one command brings the whole folder."""
OUTSIDE_SHOWN = 4
OUTSIDE_WIDTH = 40
PATH_WIDTH = 90


class OutputLines:
    """A node's outputs below the other's. A line is never cut: it may be a command to be copied."""

    def __init__(self, result: Result) -> None:
        self.result = result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        label = "outputs"
        for line in output_lines(self.result):
            start = (label.ljust(LABEL_WIDTH + 2), "dim")
            yield Text.assemble(start, line, no_wrap=True, overflow="ignore")
            label = ""


def output_lines(result: Result) -> Iterator[str]:
    """Lines on the files that a run wrote: by node, each file or folder, and what brings those that are not here."""
    in_parts = checkpoints_in_parts(result.outputs)
    for total in result.output_totals[:NODES_SHOWN]:
        yield from _of_node(result, total, in_parts)
    for folder, files in in_parts.items():
        nodes = len({file.node for file in files})
        if all(file.brought for file in files):
            place = text.with_tilde(str(in_folder(result, files[0].node) / folder))
            yield f"the parts of {text.clean(folder)} of {nodes} nodes together: {place}"
    more = len(result.output_totals) - NODES_SHOWN
    if more > 0:
        yield f"and on {text.plural(more, 'more node')}: gpuctl results {result.run} --json"
    if result.outside:
        yield "outside the project, not brought:"
        yield from _outside_lines(result)


def _outside_lines(result: Result) -> Iterator[str]:
    """Yield lines on the first paths outside the project on each node, with the command that brings each."""
    more = 0
    for node in dict.fromkeys(place.node for place in result.outside):
        places = [place for place in result.outside if place.node == node]
        more += len(places[OUTSIDE_SHOWN:])
        for place in places[:OUTSIDE_SHOWN]:
            count = "" if place.files == 1 else f"{text.plural(place.files, 'file')}, "
            path = text.clean(place.path, 10_000)
            shown = path if len(path) <= OUTSIDE_WIDTH else f"…/{PurePosixPath(path).name}"
            name = (
                PurePosixPath(path).name if path.endswith("/") else ""
            )  # a folder's content comes without it
            command = pull_command(result.cluster, node, place.path.rstrip("/"), name)
            yield f"  {node}: {shown} {count}{human_bytes(place.bytes)}: {command}"
    if more:
        yield f"  and {more} more: gpuctl results {result.run} --json"


def _of_node(result: Result, total: OutputTotal, in_parts: Collection[str]) -> Iterator[str]:
    files = [file for file in result.outputs if file.node == total.node]
    groups = groups_of(files, in_parts)
    yield _head(result, total, sum(file.brought for file in files))
    away = [group for group in groups if group.brought < group.files]
    one_by_one = len(away) <= COMMANDS_SHOWN and total.files == len(files)
    for group in groups[:GROUPS_SHOWN]:
        yield f"  {_named(group)}"
        if one_by_one and group in away:
            yield f"    {_bring_group(result, total, group)}"
    rest = total.files - sum(group.files for group in groups[:GROUPS_SHOWN])
    if rest:
        yield f"  and {text.plural(rest, 'more file')}"
    if not one_by_one:
        yield f"  on the node, the whole folder: {_bring(result, total, '')}"


def _bring_group(result: Result, total: OutputTotal, group: OutputGroup) -> str:
    """Return where a group is, and the command that brings it: of a checkpoint in parts, the parts of all nodes."""
    if group.kind != IN_PARTS:
        return f"on the node: {_bring(result, total, group.path)}"
    name, place = PurePosixPath(group.path).name, path_on_node(result.run, total, group.path)
    return f"on the nodes, all parts: {pull_command(result.cluster, None, place, name)}"


def _bring(result: Result, total: OutputTotal, path: str) -> str:
    return pull_command(result.cluster, total.node, path_on_node(result.run, total, path))


def _head(result: Result, total: OutputTotal, brought: int) -> str:
    line = f"{total.node}: {text.plural(total.files, 'file')}, {human_bytes(total.bytes)}"
    if not total.whole:
        line = f"{total.node}: at least {text.plural(total.files, 'file')}; there was too much to look at all of it"
    if not brought:
        return line
    share = "all" if brought == total.files and total.whole else str(brought)
    return f"{line}; {share} brought to {text.with_tilde(str(in_folder(result, total.node)))}"


def _named(group: OutputGroup) -> str:
    path = text.shorten(text.clean(group.path, 10_000), PATH_WIDTH)
    what = [group.kind] if group.kind else []
    if group.files > 1:
        what.append(text.plural(group.files, "file"))
    return f"{path} {human_bytes(group.bytes)}" + (f" ({', '.join(what)})" if what else "")
