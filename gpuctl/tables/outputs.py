"""The part of a run's table on files that it wrote into the project's folder, and their copies here.

Imports rich: import this module where you print.
"""

from collections.abc import Collection, Iterator, Sequence
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
    pull_outputs_command,
)
from gpuctl.tables.run_facts import LABEL_WIDTH
from inventories.runs.outputs import OutputTotal, OutsidePath
from inventories.runs.result import Result
from inventories.text import human_bytes, plural

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
    """Yield lines on a run's files: by node, each file or folder, and the command that copies missing files here."""
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
        yield f"and on {plural(more, 'more node')}: gpuctl results {result.run} --json"
    if result.outside:
        local = all(place.on_this_computer for place in result.outside)
        yield f"outside the project{'' if local else ', not brought'}:"
        yield from _outside_lines(result)


def _outside_lines(result: Result) -> Iterator[str]:
    """Yield lines on the first paths outside the project on each node, with the command that copies each."""
    by_path: dict[str, list[OutsidePath]] = {}
    for place in result.outside:
        by_path.setdefault(place.path, []).append(place)
    lines: dict[str, list[str]] = {}
    for path, places in by_path.items():
        if places[0].on_this_computer:
            lines.setdefault("", []).append(
                f"{_outside_name(places)}: on this computer, whose disk local hosts use"
            )
        elif len(places) == result.nnodes > 1:
            lines.setdefault("", []).append(f"{_outside_name(places)}: {_pull_outside(result, None, path)}")
        else:
            for place in places:
                line = f"{_outside_name([place])}: {_pull_outside(result, place.node, path)}"
                lines.setdefault(f"{place.node}: ", []).append(line)
    for label, of_label in lines.items():
        yield from (f"  {label}{line}" for line in of_label[:OUTSIDE_SHOWN])
    if more := sum(len(of_label[OUTSIDE_SHOWN:]) for of_label in lines.values()):
        yield f"  and {more} more: gpuctl results {result.run} --json"


def _outside_name(places: Sequence[OutsidePath]) -> str:
    """Return the path, shortened, with the size and nodes of several."""
    files = sum(place.files for place in places)
    count = "" if files == 1 else f"{plural(files, 'file')}, "
    path = text.clean(places[0].path, 10_000)
    shown = path if len(path) <= OUTSIDE_WIDTH else f"…/{PurePosixPath(path).name}"
    nodes = f" on {len(places)} nodes" if len(places) > 1 else ""
    return f"{shown} {count}{human_bytes(sum(place.bytes for place in places))}{nodes}"


def _pull_outside(result: Result, node: str | None, path: str) -> str:
    """Return the command that copies a file, or the content of a folder, into a folder of its name."""
    folder = path.rstrip("/") if path.endswith("/") else str(PurePosixPath(path).parent)
    return pull_outputs_command(result, node, path.rstrip("/"), folder)


def _of_node(result: Result, total: OutputTotal, in_parts: Collection[str]) -> Iterator[str]:
    files = [file for file in result.outputs if file.node == total.node]
    groups = groups_of(files, in_parts)
    head = f"{total.node}: {plural(total.files, 'file')}, {human_bytes(total.bytes)}"
    if not total.whole:
        head = (
            f"{total.node}: at least {plural(total.files, 'file')}; there was too much to look at all of it"
        )
    if brought := sum(file.brought for file in files):
        share = "all" if brought == total.files and total.whole else str(brought)
        head += f"; {share} brought to {text.with_tilde(str(in_folder(result, total.node)))}"
    yield head
    away = [group for group in groups if group.brought < group.files]
    one_by_one = len(away) <= COMMANDS_SHOWN and total.files == len(files)
    for group in groups[:GROUPS_SHOWN]:
        path = text.shorten(text.clean(group.path, 10_000), PATH_WIDTH)
        facts = [group.kind] if group.kind else []
        facts += [plural(group.files, "file")] if group.files > 1 else []
        yield f"  {path} {human_bytes(group.bytes)}" + (f" ({', '.join(facts)})" if facts else "")
        if one_by_one and group in away:
            yield f"    {_bring_group(result, total, group)}"
    rest = total.files - sum(group.files for group in groups[:GROUPS_SHOWN])
    if rest:
        yield f"  and {plural(rest, 'more file')}"
    if not one_by_one:
        yield f"  on the node, the whole folder: {pull_outputs_command(result, total.node, total.folder, '')}"


def _bring_group(result: Result, total: OutputTotal, group: OutputGroup) -> str:
    """Return where a group is, and the command that copies it: of a path that all nodes have, from all of them."""
    parts = group.kind == IN_PARTS
    is_folder = parts or group.files > 1
    path = group.path if is_folder else str(PurePosixPath(group.path).parent)
    nodes = {
        file.node
        for file in result.outputs
        if not file.brought and (file.path == group.path or file.path.startswith(f"{group.path}/"))
    }
    totals = (each for each in result.output_totals if each.node in nodes)
    places = {path_on_node(result.run, each, group.path) for each in totals}
    # Each of several nodes has this path in the same place, and not on this computer.
    shared = len(nodes) == result.nnodes > 1 == len(places)
    where = "on the nodes, all parts" if parts else "on the nodes" if shared else "on the node"
    node = None if parts or shared else total.node
    return f"{where}: {pull_outputs_command(result, node, path_on_node(result.run, total, group.path), path)}"
