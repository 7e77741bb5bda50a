"""Tables that fit the terminal: no word that a row is told by is ever cut; what says least is left out instead.

Imports rich: import this module where you print.
"""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from gpuctl.text import UNKNOWN

FOLDED_WIDTH = 10
"""A column that can be folded keeps this width; where there is less room, others are left out."""
GAP = 2
"""Blanks between two columns."""


class FittedTable:
    """A table in the style of all of them, without the columns of which nothing is known.

    It draws itself once the width is known. `folded`: columns whose cells may take several lines. `least`: columns
    that go where there is no room, in this order, and are then named below the table. `steady`: it keeps the
    columns of which nothing is known, as one does that is drawn again and again.
    """

    def __init__(
        self,
        titles: Iterable[str],
        rows: Iterable[Sequence[str | Text]],
        *,
        right: Sequence[str] = (),
        folded: Sequence[str] = (),
        least: Sequence[str] = (),
        gap: int = GAP,
        steady: bool = False,
    ) -> None:
        self.titles, self.rows = tuple(titles), [tuple(row) for row in rows]
        if not steady:
            self.titles, self.rows = _known(self.titles, self.rows)
        self.right, self.folded, self.least = right, folded, least
        self.gap = gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [
            (title, max(cell_len(str(cell)) for cell in (title, *column)))
            for title, *column in zip(self.titles, *self.rows, strict=True)
        ]
        room = [(title, min(n, FOLDED_WIDTH) if title in self.folded else n) for title, n in widths]
        left_out = no_room_for(room, self.least, options.max_width, self.gap)
        shown = [at for at, title in enumerate(self.titles) if title not in left_out]
        titles = [self.titles[at] for at in shown]
        narrow = _width([room[at][1] for at in shown], self.gap) > options.max_width
        table = table_of(*titles, right=self.right, flexible=titles if narrow else self.folded, gap=self.gap)
        for row in self.rows:
            table.add_row(*(row[at] for at in shown))
        yield table
        if left_out:
            yield Text(f"no room for {', '.join(left_out)}", "dim")


def _known(
    titles: Sequence[str], rows: Sequence[Sequence[str | Text]]
) -> tuple[tuple[str, ...], list[tuple[str | Text, ...]]]:
    """Without the columns that have nothing but what stands for unknown."""
    known = [at for at in range(len(titles)) if not rows or any(str(row[at]) != UNKNOWN for row in rows)]
    return tuple(titles[at] for at in known), [tuple(row[at] for at in known) for row in rows]


def no_room_for(
    widths: Sequence[tuple[str, int]], least: Sequence[str], width: int, gap: int = GAP
) -> list[str]:
    """The columns that are left out of a table so that it fits; all of `least` where that is not enough."""
    left_out: list[str] = []
    for title in least:
        kept = [cells for name, cells in widths if name not in left_out]
        if _width(kept, gap) <= width:
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
