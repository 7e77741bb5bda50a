"""The part of a run's table that tells which files it wrote into the project's folder, and where they are now."""

from collections.abc import Iterator

from gpuctl import text
from gpuctl.run_results.outputs import OutputGroup, groups_of, in_folder, pull_command
from inventories.outputs import OutputTotal
from inventories.run import Result
from remote.files.tree import human_bytes

NODES_SHOWN = 4
GROUPS_SHOWN = 5
PATH_WIDTH = 80


def output_lines(result: Result) -> Iterator[str]:
    """Lines on the files that a run wrote: each node's, then the commands that bring what is on it alone."""
    for total in result.output_totals[:NODES_SHOWN]:
        yield from _of_node(result, total)
    more = len(result.output_totals) - NODES_SHOWN
    if more > 0:
        yield f"and on {text.plural(more, 'more node')}: gpuctl results {result.run} --json has all"


def _of_node(result: Result, total: OutputTotal) -> Iterator[str]:
    files = [file for file in result.outputs if file.node == total.node]
    groups = groups_of(files)
    brought = sum(file.brought for file in files)
    line = f"{total.node}: {text.plural(total.files, 'file')}, {human_bytes(total.bytes)}"
    if not total.whole:
        line = f"{total.node}: more than {text.plural(total.files, 'file')}; not all could be looked at"
    if brought:
        share = "all" if brought == total.files and total.whole else str(brought)
        line += f"; {share} brought to {text.with_tilde(str(in_folder(result, total.node)))}"
    yield line
    for group in groups[:GROUPS_SHOWN]:
        yield f"  {_named(group)}"
        if group.brought < group.files:
            yield f"    on the node: {pull_command(result.cluster, total, group.path)}"
    rest = groups[GROUPS_SHOWN:]
    if rest or total.files > len(files):
        left = total.files - sum(group.files for group in groups[:GROUPS_SHOWN])
        line = f"  and {text.plural(left, 'more file')}"
        if any(group.brought < group.files for group in rest) or total.files > len(files):
            line += f"; all of the folder: {pull_command(result.cluster, total, '.')}"
        yield line


def _named(group: OutputGroup) -> str:
    path = text.shorten(text.clean(group.path, 10_000), PATH_WIDTH)
    what = [group.kind] if group.kind else []
    if group.files > 1:
        what.append(text.plural(group.files, "file"))
    return f"{path} {human_bytes(group.bytes)}" + (f" ({', '.join(what)})" if what else "")
