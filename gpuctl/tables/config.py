"""The table of the user's configuration. Imports rich: import this module where you print."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from gpuctl import text
from gpuctl.tables.layout import table_of


def config_table(rows: Sequence[tuple[str, str, str]]) -> RenderableType:
    """Return the keys of the user's configuration with value and meaning."""
    table = table_of("key", "value", "meaning", flexible=("value", "meaning"))
    for key, value, meaning in rows:
        table.add_row(Text(key, "bold"), text.clean(value) or text.UNKNOWN, meaning)
    return table
