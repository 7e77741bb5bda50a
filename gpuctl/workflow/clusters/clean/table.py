"""The table of what `clean` found. Imports rich: import this module where you print."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gpuctl.tables.layout import FittedTable
from gpuctl.workflow.clusters.clean.what_to_clean import NAMES, Choice
from inventories.text import human_bytes


def clean_table(choices: Sequence[Choice]) -> RenderableType:
    """Return a row per place and kind: items, items to remove, the reasons for the rest; below them the sum."""
    groups: dict[tuple[str | None, str | None, str], list[Choice]] = {}
    for choice in choices:
        cluster = None if choice.where is None else choice.cluster
        groups.setdefault((cluster, choice.where, choice.kind), []).append(choice)
    rows = [_row(where, kind, some) for (_, where, kind), some in groups.items()]
    table = FittedTable(
        ("where", "what", "there", "size", "goes", "frees", "stays"),
        rows,
        right=("there", "size", "goes", "frees"),
        folded=("stays",),
        optional=("there",),
    )
    return Group(table, "", Text(f"{_size(choices)} in all, {_size(_doomed(choices))} to remove"))


def _row(where: str | None, kind: str, choices: Sequence[Choice]) -> list[str | Text]:
    doomed = _doomed(choices)
    reasons = Counter(choice.why for choice in choices if not choice.removes)
    why = ", ".join(f"{count} {why}" for why, count in reasons.items())
    return [
        "here" if where is None else where,
        NAMES.get(kind, kind),
        str(len(choices)),
        _size(choices),
        Text(str(len(doomed)), "yellow" if doomed else "dim"),
        _size(doomed) if doomed else "-",
        Text(why or "-", "dim"),
    ]


def _doomed(choices: Sequence[Choice]) -> list[Choice]:
    return [choice for choice in choices if choice.removes]


def _size(choices: Sequence[Choice]) -> str:
    """`1.2 GB`, or `> 1.2 GB` where measuring took too long."""
    prefix = "" if all(choice.whole for choice in choices) else "> "
    return prefix + human_bytes(sum(choice.bytes for choice in choices))
