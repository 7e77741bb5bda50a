"""Test tables on terminals of any width: a row's key is shown whole, and omitted columns are named."""

import io

import pytest
from rich.console import RenderableType

from gpuctl.global_options import Options
from gpuctl.output import Output
from gpuctl.tables.layout import FOLDED_WIDTH, FittedTable, no_room_for


def drawn(table: RenderableType, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    Output(Options(), stdout=out).table(table)
    return out.getvalue().splitlines()


def test_fitted_drops_columns_only_when_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    table = FittedTable(["key", "more"], [["a" * 10, "b" * 10]], optional=("more",))
    assert drawn(table, 22, monkeypatch) == ["key         more", f"{'a' * 10}  {'b' * 10}"]
    assert drawn(table, 21, monkeypatch) == ["key", "a" * 10, "no room for more"]
    assert drawn(table, 6, monkeypatch)[:3] == ["key", "aaaaaa", "aaaa"]


def test_fitted_folds_columns_before_dropping_others(monkeypatch: pytest.MonkeyPatch) -> None:
    table = FittedTable(["key", "why", "more"], [["a", "b" * 30, "c"]], folded=("why",), optional=("more",))
    assert drawn(table, 3 + 2 + FOLDED_WIDTH + 2 + 4, monkeypatch)[1] == f"a    {'b' * FOLDED_WIDTH}  c"
    assert no_room_for([("a", 5), ("b", 5), ("b", 5)], ["b"], 16) == ["b"]
    assert no_room_for([("a", 5), ("b", 5)], ["gone", "b"], 4) == ["b"]
