"""The output of `logs` if the local copy ends in the middle of a line."""

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support import a_run

from gpuctl.command_results.runs import LogLine
from gpuctl.global_options import Options
from gpuctl.output import Output
from gpuctl.text import clean
from gpuctl.workflow.runs.logs import Reader, ranks_of
from inventories.disk.store import RunFolder, Store
from inventories.runs.run import RunNode
from remote.runs.observer import Lines

RUN = a_run(nodes=(RunNode(name="gpu-0", rank=0, nproc=2, first_rank=0, run_dir="/home/me/run"),))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = Store(tmp_path).new_run(datetime(2026, 11, 21, tzinfo=UTC))
    folder.logs_path.mkdir(exist_ok=True)
    return folder


def printed(folder: RunFolder, *arriving: tuple[int, bytes], rank: int | None = 0, over: bool = False) -> str:
    """Return the printed lines after these pieces have arrived, following the content of the folder."""
    out: list[str] = []
    ranks = ranks_of(RUN, rank)

    def emit(line: LogLine) -> None:
        text = clean(line.text)
        out.append(f"[rank {line.rank}] {text}\n" if len(ranks) > 1 else f"{text}\n")

    reader = Reader(ranks, emit, Output(Options(), stdout=io.StringIO(), stderr=io.StringIO()))
    lines = Lines(reader, "gpu-0")
    with reader.going_on_from(folder, over=over):
        for number, piece in arriving:
            with (folder.logs_path / f"rank-{number}.log").open("ab") as file:
                file.write(piece)
            lines.feed(f"logs/rank-{number}.log", piece)
        lines.flush()
    return "".join(out)


@pytest.mark.parametrize(
    ("local", "pieces", "shown"),
    [
        (b"one\nabc", [b"def\n"], "one\nabcdef\n"),
        (b"abc", [b"d", b"e", b"f\nnext\n"], "abcdef\nnext\n"),
        (b"abc", [b"def"], "abcdef\n"),
        (b"abc", [b"\nabc", b"d\n"], "abc\nabcd\n"),
        (b"abc", [], "abc\n"),
        (b"abc\n", [b"def\n"], "abc\ndef\n"),
        (b"caf\xc3", [b"\xa9 au lait\n"], "café au lait\n"),
        (b"abc\r", [b"\n"], "abc\n"),
        (b" 10 %\r 20", [b" %\n"], " 20 %\n"),
        (b" 10 %", [b"\r 20 %\r 30 %\r", b" 40 %\n"], " 30 %\n 40 %\n"),
        (b"", [b"abc\n"], "abc\n"),
    ],
)
def test_logs_join_line_that_arrives_in_parts(
    folder: RunFolder, local: bytes, pieces: list[bytes], shown: str
) -> None:
    (folder.logs_path / "rank-0.log").write_bytes(local)
    assert printed(folder, *((0, piece) for piece in pieces)) == shown


def test_logs_join_partial_lines_per_rank(folder: RunFolder) -> None:
    (folder.logs_path / "rank-0.log").write_bytes(b"abc")
    (folder.logs_path / "rank-1.log").write_bytes(b"one\nuvw")
    output = printed(folder, (1, b"x\n"), (0, b"d\n"), rank=None)
    assert output == "[rank 1] one\n[rank 1] uvwx\n[rank 0] abcd\n"


def test_logs_of_ended_run_print_ranks_in_order(folder: RunFolder) -> None:
    (folder.logs_path / "rank-0.log").write_bytes(b"abc")
    (folder.logs_path / "rank-1.log").write_bytes(b"uvw\n")
    assert printed(folder, rank=None, over=True) == "[rank 0] abc\n[rank 1] uvw\n"
