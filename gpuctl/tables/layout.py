"""Tables that fit the terminal: identifying columns are never cut; optional columns are left out.

Imports rich: import this module where you print.
"""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from gpuctl.text import UNKNOWN
from inventories.runs.result import Share

FOLDED_WIDTH = 10
"""Usual minimum width of a folded column; with less room, optional columns are left out."""
GAP = 2
"""Blanks between two columns."""
STEP_PARTS = (("compute", "█", "green"), ("communication", "▓", "yellow"), ("data", "░", "cyan"))
"""(part of a step's time, its character, its style), …"""


class FittedTable:
    """A table in the common style, without columns of unknown values.

    Drawn once the width is known. `folded`: columns whose cells may take several lines. `optional`: columns to leave
    out in this order if the width is short, and to name below the table. `steady`: keep columns of unknown values, as
    in a table that is drawn repeatedly.
    """

    def __init__(
        self,
        titles: Iterable[str],
        rows: Iterable[Sequence[str | Text]],
        *,
        right: Sequence[str] = (),
        folded: Sequence[str] = (),
        folded_width: int = FOLDED_WIDTH,
        optional: Sequence[str] = (),
        gap: int = GAP,
        steady: bool = False,
    ) -> None:
        self.titles, self.rows = tuple(titles), [tuple(row) for row in rows]
        if not steady:  # without the columns that have nothing but what stands for unknown
            cells = [[str(row[at]) for row in self.rows] for at in range(len(self.titles))]
            known = [at for at, column in enumerate(cells) if not column or {*column} != {UNKNOWN}]
            self.titles = tuple(self.titles[at] for at in known)
            self.rows = [tuple(row[at] for at in known) for row in self.rows]
        self.right, self.folded, self.optional = right, folded, optional
        self.folded_width, self.gap = folded_width, gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [
            (title, max(cell_len(str(cell)) for cell in (title, *column)))
            for title, *column in zip(self.titles, *self.rows, strict=True)
        ]
        room = [(title, min(n, self.folded_width) if title in self.folded else n) for title, n in widths]
        left_out = no_room_for(room, self.optional, options.max_width, self.gap)
        shown = [at for at, title in enumerate(self.titles) if title not in left_out]
        titles = [self.titles[at] for at in shown]
        narrow = _width([room[at][1] for at in shown], self.gap) > options.max_width
        table = table_of(*titles, right=self.right, flexible=titles if narrow else self.folded, gap=self.gap)
        for row in self.rows:
            table.add_row(*(row[at] for at in shown))
        yield table
        if left_out:
            yield Text(f"no room for {', '.join(left_out)}", "dim")


def no_room_for(
    widths: Sequence[tuple[str, int]], optional: Sequence[str], width: int, gap: int = GAP
) -> list[str]:
    """The columns that are left out of a table so that it fits; all optional columns if that is not enough."""
    left_out: list[str] = []
    for title in optional:
        widths_left = [cells for name, cells in widths if name not in left_out]
        if _width(widths_left, gap) <= width:
            break
        left_out += [title] * any(name == title for name, _ in widths)
    return left_out


def _width(columns: Sequence[int], gap: int) -> int:
    return sum(columns) + gap * max(len(columns) - 1, 0)


def table_of(*columns: str, right: Sequence[str] = (), flexible: Sequence[str] = (), gap: int = GAP) -> Table:
    """An empty table in the style of all of them: no lines, a dim head. Only `flexible` columns are folded."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, gap, 0, 0))
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in right else "left",
            overflow="fold" if column in flexible else "ellipsis",
            no_wrap=column not in flexible,
        )
    return table


def bar_of(share: Share, width: int) -> list[tuple[str, str, int]]:
    """(character, style, how many) of each part of a step's time in a bar."""
    drawn, so_far, parts = 0, 0.0, []
    for name, character, style in STEP_PARTS:
        so_far += max(getattr(share, name) or 0.0, 0.0)
        upto = min(round(so_far * width), width)
        parts.append((character, style, upto - drawn))
        drawn = upto
    return parts
