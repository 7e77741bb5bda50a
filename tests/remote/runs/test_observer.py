"""Chunks of a node's files, cut into the lines that are shown."""

from collections.abc import Mapping
from typing import Any

from remote.runs.observer import Lines, Observer


class Seen(Observer):
    def __init__(self) -> None:
        self.logs: list[tuple[int | None, str]] = []
        self.metrics: list[tuple[int, Mapping[str, Any]]] = []

    def log(self, rank: int | None, node: str, line: str) -> None:
        self.logs.append((rank, line))

    def metric(self, rank: int, line: Mapping[str, Any]) -> None:
        self.metrics.append((rank, line))


def test_log_lines_are_assembled_from_chunks() -> None:
    calls = Seen()
    lines = Lines(calls, "n-0")
    for chunk in (b"first li", b"ne\nsec", b"ond\r\nthi", b"rd"):
        lines.feed("logs/rank-3.log", chunk)
    lines.feed("logs/n-0.log", b"launcher\n")
    lines.feed("metrics/rank-3.jsonl", b'{"step": 1}\nnot json\n{"st')
    lines.flush()
    assert calls.logs == [(3, "first line"), (3, "second"), (None, "launcher"), (3, "third")]
    assert calls.metrics == [(3, {"step": 1})]


def test_log_lines_show_the_last_state_of_a_progress_bar() -> None:
    calls = Seen()
    lines = Lines(calls, "n-0")
    lines.feed("logs/rank-0.log", b"\r10%\r20%\r30%")
    lines.feed("logs/rank-0.log", b"\r40%\r50%")
    lines.feed("logs/rank-0.log", b"\r100%\n")
    assert calls.logs == [(0, "20%"), (0, "100%")], "at once, then once a second, and its end"
