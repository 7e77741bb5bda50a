"""The table of what `clean` found. Imports rich: import this module where you print."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gpuctl.command_results.upkeep import CleanItem
from gpuctl.tables.layout import FittedTable
from gpuctl.workflow.clusters.clean.choices import NAMES
from inventories.text import human_bytes


def clean_table(items: Sequence[CleanItem]) -> RenderableType:
    """Return a row per place and kind: items, items to remove, the reasons for the rest; below them the sum."""
    groups: dict[tuple[str | None, str | None, str], list[CleanItem]] = {}
    for item in items:
        cluster = None if item.where is None else item.cluster
        groups.setdefault((cluster, item.where, item.kind), []).append(item)
    rows: list[list[str | Text]] = []
    for (_, where, kind), group in groups.items():
        doomed = [item for item in group if item.removes]
        reasons = Counter(item.why for item in group if not item.removes)
        rows.append(
            [
                "here" if where is None else where,
                NAMES[kind],
                str(len(group)),
                _size(group),
                Text(str(len(doomed)), "yellow" if doomed else "dim"),
                _size(doomed) if doomed else "-",
                Text(", ".join(f"{count} {why}" for why, count in reasons.items()) or "-", "dim"),
            ]
        )
    table = FittedTable(
        ("where", "what", "there", "size", "goes", "frees", "stays"),
        rows,
        right=("there", "size", "goes", "frees"),
        folded=("stays",),
        optional=("there",),
    )
    doomed = [item for item in items if item.removes]
    return Group(table, "", Text(f"{_size(items)} in all, {_size(doomed)} to remove"))


def _size(items: Sequence[CleanItem]) -> str:
    """Return `1.2 GB`, or `> 1.2 GB` if measuring took too long."""
    prefix = "" if all(item.whole for item in items) else "> "
    return prefix + human_bytes(sum(item.bytes for item in items))
