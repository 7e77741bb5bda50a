"""Test the destinations of output: stdout, stderr, colours, the one document, the question."""

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import ROOT, Terminal, python

from gpuctl.errors import Usage
from gpuctl.global_options import Options
from gpuctl.output import Output
from inventories.runs.result import StepMs

SAY = """
import sys
from gpuctl.command_line.options import Options
from gpuctl.output import Output
from rich.text import Text
output = Output(Options(no_color="--no-color" in sys.argv, json="--json" in sys.argv))
output.say("to people", "green")
output.error("wrong")
output.table(Text("a table", "bold red"))
"""
ASK = """
import sys
from gpuctl.command_line.options import Options
from gpuctl.output import Output
print("ANSWER", Output(Options()).confirm("Really?"))
"""
SILENT = SAY + "output.text('more')\nsys.exit(5)"


class Streams(io.StringIO):
    """A stream with a chosen encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


def output(options: Options | None = None, encoding: str = "utf-8") -> tuple[Output, Streams, Streams]:
    out, err = Streams(encoding), Streams(encoding)
    return Output(options or Options(), stdin=io.StringIO(), stdout=out, stderr=err), out, err


def test_json_writes_ascii_json_of_any_values() -> None:
    printer, out, err = output(Options(json=True))
    printer.json({"path": Path("/a"), "step": StepMs(p50=1.5), "loss": (0.5, math.nan), "name": "Zo\udc80ë"})
    assert json.loads(out.getvalue()) == {
        "path": "/a",
        "step": {"p50": 1.5, "p95": None},
        "loss": [0.5, None],
        "name": "Zo\udc80ë",
    }
    assert out.getvalue().isascii()
    assert err.getvalue() == ""


def test_json_refuses_second_document() -> None:
    printer, _, _ = output(Options(json=True))
    printer.json({})
    with pytest.raises(AssertionError):
        printer.json({})


def test_say_writes_to_stderr_and_table_to_stdout() -> None:
    printer, out, err = output()
    printer.say("hello")
    printer.detail("not said")
    printer.table("[not] :markup:")
    assert (out.getvalue(), err.getvalue()) == ("[not] :markup:\n", "hello\n")


def test_table_wraps_without_terminal_only_if_columns_is_set() -> None:
    code = SAY.replace("a table", "word " * 50 + "end")
    line = "word " * 50 + "end"
    assert line in python(code, FORCE_COLOR="1", TERM="dumb").stdout
    assert max(map(len, python(code, COLUMNS="60").stdout.splitlines())) <= 60


def test_table_is_written_to_stderr_with_json() -> None:
    printer, out, err = output(Options(json=True, verbose=True))
    printer.detail("said")
    printer.table("a table")
    printer.json([])
    assert (out.getvalue(), err.getvalue()) == ("[]\n", "said\na table\n")


def test_text_replaces_characters_missing_in_encoding() -> None:
    printer, out, _ = output(encoding="ascii")
    printer.text("█░ ✓ café → 日本")
    assert out.getvalue() == "#. ok caf\\xe9 -> \\u65e5\\u672c\n"


def test_confirm_with_yes_option_does_not_ask() -> None:
    assert output(Options(yes=True))[0].confirm("Really?")


def test_confirm_without_terminal_requires_yes_option() -> None:
    with pytest.raises(Usage, match=r"Create 2 machines\?.*--yes"):
        output()[0].confirm("Create 2 machines?")


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("y\n", True),
        ("YES\n", True),
        ("\n", False),
        ("no\n", False),
        ("\x04", False),
        ("what\ny\n", True),
        ("a\nb\nc\n", False),
    ],
)
def test_confirm_reads_answer_on_terminal(typed: str, answer: bool) -> None:
    with Terminal(ASK) as terminal:
        terminal.wait_for("Really? [y/N] ")
        terminal.type(typed)
        terminal.wait_for(f"ANSWER {answer}")
        assert terminal.wait() == 0


def test_confirm_interrupted_exits_130() -> None:
    code = """
import click, sys
from gpuctl.command_line import cli
from gpuctl.command_line.options import common_options
@click.command()
@common_options
def down(app):
    app.output.confirm("Really?")
cli.group.get_command = lambda context, name: down
sys.exit(cli.main(["down"]))
"""
    with Terminal(code) as terminal:
        terminal.wait_for("Really? [y/N] ")
        terminal.process.send_signal(2)
        assert terminal.wait() == 130
        assert "error: Interrupted." in terminal.seen.replace("\x1b[1;31m", "").replace("\x1b[0m", "")


def test_confirm_asks_when_stdout_is_redirected(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+") as file, Terminal(ASK, stdout=file.fileno()) as terminal:
        terminal.wait_for("Really? [y/N] ")
        terminal.type("y\n")
        assert terminal.wait() == 0
        file.seek(0)
        assert file.read() == "ANSWER True\n"


@pytest.mark.parametrize(
    ("words", "environment", "colored"),
    [
        ([], {}, True),
        (["--no-color"], {}, False),
        ([], {"NO_COLOR": "1"}, False),
        ([], {"NO_COLOR": ""}, True),
        ([], {"TERM": "dumb"}, False),
    ],
)
def test_output_is_coloured_on_terminal_unless_disabled(
    words: list[str], environment: dict[str, str], colored: bool
) -> None:
    with Terminal(SAY, *words, **environment) as terminal:
        assert terminal.wait() == 0
    for part in ("32mto people", "31merror", "1;31ma table"):
        assert (f"{part}" in terminal.seen) is colored, terminal.seen
    assert ("\x1b" in terminal.seen) is colored


def test_output_has_no_colour_without_terminal() -> None:
    done = python(SAY, FORCE_COLOR="1", COLORTERM="truecolor")
    assert (done.stdout, done.stderr) == ("a table\n", "to people\nerror: wrong\n")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_continues_after_reader_closes_pipe(stream: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {stream: writer}
    try:
        done = subprocess.run(
            [sys.executable, "-c", SILENT], env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60, **streams
        )
    finally:
        os.close(writer)
    assert done.returncode == 5
    if stream == "stdout":
        assert done.stderr == b"to people\nerror: wrong\n"
    else:
        assert done.stdout == b"a table\nmore\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_output_tolerates_closed_streams(closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, SILENT],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 5, done.stderr


def test_output_strips_terminal_control_sequences() -> None:
    printer, _, err = output()
    printer.say("name\x1b[2J\x07\nsecond\r\n")
    printer.error("it's \x1b]0;title\x07here")
    assert err.getvalue() == "name\nsecond\n\nerror: it's here\n"
