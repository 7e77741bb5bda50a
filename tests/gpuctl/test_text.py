"""Numbers as people write them, and lines from elsewhere."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuctl import text
from gpuctl.scripts.arguments import typed_line
from inventories.text import plural
from remote.shared.bars import sparkline


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (math.inf, "-"),
        (0.0, "0 ms"),
        (0.0994, "99 ms"),
        (0.0996, "0.1 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (3599.6, "1 h 0 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_duration_formats_seconds(seconds: float | None, shown: str) -> None:
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("form", "value", "shown"),
    [
        (text.milliseconds, 0.853, "0.85 ms"),
        (text.milliseconds, 21.34, "21.3 ms"),
        (text.milliseconds, 1200, "1.20 s"),
        (text.milliseconds, None, "-"),
        (text.percent, 0.9722, "97.2 %"),
        (text.count, 12345.6, "12,346"),
        (text.count, 8.521, "8.52"),
        (text.dollars, 0.0, "free"),
        (text.dollars, 0.0042, "less than a cent"),
        (text.dollars, 0.01, "$0.01"),
        (text.dollars, 0.536, "$0.54"),
        (text.dollars, 1234.5, "$1,234.50"),
        (text.dollars, None, "-"),
        (text.spent, 0.0, "less than a cent"),
        (text.spent, 0.02, "$0.02"),
        (text.spent, None, "-"),
        (text.loss, 2.30259, "2.303"),
        (text.loss, 0.000042, "4.2e-05"),
        (text.loss, math.nan, "nan"),
    ],
)
def test_number_formats_match_their_kind(form, value: float | None, shown: str) -> None:
    assert form(value) == shown


def test_plural_adds_plural_ending() -> None:
    assert [plural(1, "node"), plural(2, "node"), plural(2, "process")] == [
        "1 node",
        "2 nodes",
        "2 processes",
    ]


def test_age_formats_time_since() -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert text.age("2026-11-21T11:57:00+00:00", now) == "3 min ago"
    assert text.age("2026-11-21T11:59:40+00:00", now) == "20 s ago"
    assert text.age("2026-11-21T09:57:00", now) == "2 h ago"
    assert text.age("2026-11-11T12:00:00+00:00", now) == "10 d ago"
    assert text.age("2026-11-22T12:00:00+00:00", now) == "now"
    assert text.age("yesterday", now) == "-"


@pytest.mark.parametrize(
    ("line", "cleaned"),
    [
        ("plain\ttext\n", "plain\ttext"),
        ("\x1b[31;1mred\x1b[0m \x1b[2J\x1b[Hgone", "red gone"),
        ("\x1b]0;title\x07shown\x1b]8;;http://x\x1b\\link", "shownlink"),
        (" 10%|# \r100%|##\r\n", "100%|##"),
        ("a\x00\x08\x7fb\u202ec\x9b31md", "abcd"),
        ("x" * 3000, "x" * 1999 + "…"),
    ],
)
def test_clean_removes_terminal_control_sequences(line: str, cleaned: str) -> None:
    assert text.clean(line) == cleaned


@given(st.text(st.sampled_from("\x1b[]0;?\x07\\m\x9b\r\na\t\u202e"), max_size=30))
def test_clean_leaves_no_control_character_in_any_line(line: str) -> None:
    assert set(text.clean(line)) <= set("[]0;?\\ma\t")


def test_bar_and_sparkline_draw_values() -> None:
    assert text.bar(0.5, 8) == "████░░░░"
    assert text.bar(7, 3) == "███"
    assert text.bar(-1, 3) == "░░░"
    assert sparkline([3, 2, math.nan, 1]) == "█▅ ▁"
    assert sparkline([1, 1]) == "▁▁"
    assert sparkline([math.nan]) == ""


def test_ascii_table_maps_symbols_to_ascii() -> None:
    assert "▁█▓░│→✓✗…".translate(text.ASCII).isascii()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (4608.0, "4,608"), (3e9, "3,000,000,000"), (11111.11, "11,111"), (12.3456, "12.35"), (0.87312, "0.8731"),
        (0.5, "0.5"), (4.2e-5, "4.2e-05"), (-2.0, "-2"), (1e300, "1e+300"), (math.inf, "inf"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_metric_of_the_user_has_four_digits_or_is_whole(value: float, shown: str) -> None:
    assert text.metric(value) == shown


def test_shorten_keeps_both_ends() -> None:
    assert text.shorten("abcdefgh", 8) == "abcdefgh"
    assert text.shorten("abcdefghi", 8) == "abcd…ghi"
    assert text.shorten("abc", 2) == "a…"


def test_command_quotes_arguments_and_removes_control_codes() -> None:
    assert typed_line("train.py", ["--lr", "0.1", "a b"]) == "train.py --lr 0.1 'a b'"
    assert typed_line("-m pkg", []) == "-m pkg"
    assert "\x1b" not in typed_line("t.py", ["\x1b[2J", "a\nb"])


def test_sparkline_leaves_gap_for_infinite_value() -> None:
    assert sparkline([1.0, float("inf"), 2.0]) == "▁ █"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("Add some: gpuctl up --count 4", "Add some: gpuctl up --cluster two --count 4"),
        ("`gpuctl status`; `gpuctl up`", "`gpuctl status --cluster two`; `gpuctl up --cluster two`"),
        ("Start one: gpuctl train", "Start one: gpuctl train --cluster two"),
        ("or: gpuctl down --cluster two", "or: gpuctl down --cluster two"),
        ("gpuctl logs -f 20260101-000000-abcd", "gpuctl logs -f 20260101-000000-abcd"),
        ("`gpuctl reap --dry-run` looks", "`gpuctl reap --dry-run` looks"),
        ("See `gpuctl up --help`.", "See `gpuctl up --help`."),
        ("gpuctl updates nothing", "gpuctl updates nothing"),
        ("run gpuctl doctor --cluster", "run gpuctl doctor --cluster two"),
        ("`gpuctl doctor --cluster one`", "`gpuctl doctor --cluster one`"),
    ],
)
def test_for_cluster_adds_cluster_option_to_advised_commands(message: str, shown: str) -> None:
    assert text.for_cluster(message, "two") == shown
    assert text.for_cluster(message, "default") == message
