"""Output on stdout and stderr, and the one question that gpuctl asks.

stdout is for results: a table for people, or with --json one JSON document and nothing else. Everything else for
people goes to stderr. Colour is only for terminals, and NO_COLOR and --no-color are honoured. A reader that closes
the pipe (`gpuctl runs
head -1`) never stops the work.
"""

import io
import os
import sys
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Literal, TextIO

from gpuctl.errors import Usage
from gpuctl.global_options import Options
from gpuctl.text import ASCII, clean, clean_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
"""The styles that `say` knows → their codes on a terminal."""
UNFOLDED = 100_000
"""Columns of a stream that is not a terminal: more than any line has, so that each stays one line for `grep`."""
MOST_LOGGED = 60
"""Lines that a person need not scroll for."""


class Output:
    """The output of one command."""

    def __init__(
        self,
        options: Options,
        *,
        stdin: TextIO | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.options = options
        # Python has `None` in place of a stream that was closed when the process started.
        self.stdin = stdin or sys.stdin or io.StringIO()
        self.stdout = stdout or sys.stdout or io.StringIO()
        self.stderr = stderr or sys.stderr or io.StringIO()
        self.above: Callable[[str], None] | None = None
        """Where a live view is open: prints a line above it."""
        self.logged: deque[str] = deque(maxlen=MOST_LOGGED)
        """The last lines of ranks' logs that were printed on stderr."""
        self.printed_document = False
        """True: stdout has its JSON document, and must get no second one."""

    def json(self, document: object) -> None:
        """Print the command's one JSON document: dataclasses, mappings, lists, tuples, paths and plain values.

        NaN and infinities, which JSON does not have, become null.
        """
        import json

        from inventories.codec import plain

        assert not self.printed_document, "a command prints one JSON document"
        self.printed_document = True
        text = json.dumps(plain(document), indent=2, allow_nan=False)
        self._write(self.stdout, text + "\n")

    def table(self, table: "RenderableType", *, aside: bool = False) -> None:
        """Print a table, or any text, on stdout; with --json on stderr, where people read.

        `aside`: it is no result, and goes to stderr in any case.
        """
        stream = self.stderr if aside or self.options.json else self.stdout
        console = self.console(stream)
        with console.capture() as captured:
            # What fits no line, such as a command to be copied, is left to the terminal to fold.
            console.print(table, markup=False, highlight=False, crop=False)
        # rich fills cells with blanks up to the end of the line.
        self._write(stream, "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))

    def text(self, text: str) -> None:
        """Print a result that is text already, on stdout, as it is."""
        self._write(self.stdout, text if text.endswith("\n") else text + "\n")

    def say(self, text: str, style: str = "") -> None:
        """Print lines for people on stderr. `style` is one of `STYLES`, or empty.

        Nothing in the text can steer the terminal: it may hold names of files and words of other computers.
        """
        text = clean_lines(text)
        if self.above:
            self.above(text)
            return
        if style and self.colored(self.stderr):
            text = f"\x1b[{STYLES[style]}m{text}\x1b[0m"
        self._write(self.stderr, text + "\n")

    def detail(self, text: str) -> None:
        """Print a line on stderr with --verbose, else nothing."""
        if self.options.verbose:
            self.say(text, "dim")

    def error(self, message: str) -> None:
        """Print `error: message` on stderr."""
        label = "\x1b[1;31merror:\x1b[0m" if self.colored(self.stderr) else "error:"
        self._write(self.stderr, f"{label} {clean_lines(message)}\n")

    @property
    def asks(self) -> bool:
        """True: `confirm` asks a user, as stdin is a terminal and --yes was not given."""
        return not self.options.yes and self.stdin.isatty() and self.stderr.isatty()

    @property
    def owns_process(self) -> bool:
        """True: all that the process prints is the command's."""
        return True

    @property
    def offers(self) -> bool:
        """True: somebody may be asked about what nobody called for, such as to remove files."""
        return self.asks

    def confirm(self, question: str, *, paid: bool = False) -> bool:  # noqa: ARG002 - a person is asked either way
        """Ask a user, on a terminal; the default is no, also at the end of the input.

        `paid`: a yes costs money. --yes answers it. Raises Usage without a terminal to ask on.
        """
        if self.options.yes:
            return True
        if not self.asks:
            raise Usage(f"{question} There is no terminal to answer on: it needs --yes.")
        for _ in range(3):
            self.stderr.write(f"{question} [y/N] ")
            self.stderr.flush()
            answer = self.stdin.readline()
            if not answer:  # Ctrl-D leaves the cursor behind the question
                self.say("")
            match answer.strip().lower():
                case "y" | "yes":
                    return True
                case "" | "n" | "no":
                    return False
            self.say("Please answer yes or no.")
        return False

    def ask_secret(self, name: str, *, twice: bool) -> str:
        """Return a secret that a user types on a terminal, unseen. Raises Usage without a terminal."""
        import click

        if not (self.stdin.isatty() and self.stderr.isatty()):
            raise Usage(
                f"{name}: no terminal to type it on. Name a file that has it: --passphrase-file FILE."
            )
        typed: str = click.prompt(name, hide_input=True, confirmation_prompt=twice, err=True)
        return typed

    def colored(self, stream: TextIO) -> bool:
        """True: colours may be written to this stream."""
        allowed = not self.options.no_color and not os.environ.get("NO_COLOR")
        return allowed and os.environ.get("TERM") != "dumb" and stream.isatty()

    @property
    def just_seen(self) -> frozenset[str]:
        """Lines of ranks' logs that a reader of stdout has just seen: both streams are one terminal, file or pipe."""
        try:
            same_file = os.path.sameopenfile(self.stdout.fileno(), self.stderr.fileno())
        except (OSError, ValueError):  # no files
            same_file = False
        return frozenset(self.logged) if same_file else frozenset()

    @property
    def live(self) -> bool:
        """True: stderr is a terminal on which lines can be kept up to date."""
        return self.stderr.isatty() and os.environ.get("TERM") != "dumb" and _unicode(self.stderr)

    def console(self, stream: TextIO) -> "Console":
        """A rich console that writes to this stream by the same rules.

        Its width: the terminal's; elsewhere that of COLUMNS, or `UNFOLDED`.
        """
        from rich.console import Console, ConsoleDimensions

        colors: Literal["auto"] | None = (
            "auto" if self.colored(stream) else None
        )  # `None` switches bold off, too
        console = Console(file=stream, color_system=colors, highlight=False, markup=False, emoji=False)
        if not stream.isatty():
            columns = os.environ.get("COLUMNS", "")
            # With FORCE_COLOR rich takes a file for a terminal, so it is not left to guess.
            console.size = ConsoleDimensions(int(columns) if columns.isdecimal() else UNFOLDED, 25)
        return console

    def _write(self, stream: TextIO, text: str) -> None:
        """Write and flush; where nobody reads any more, go on silently."""
        encoding = stream.encoding or "utf-8"
        if not _unicode(stream):
            # Characters of other alphabets are written as escapes: a file's name must not end the command.
            text = text.translate(ASCII)
        try:
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()
        except BrokenPipeError:
            silence(stream)


def silence(stream: TextIO) -> None:
    """Redirect a stream to /dev/null: its reader is gone."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, stream.fileno())
    finally:
        os.close(null)


def _unicode(stream: TextIO) -> bool:
    """True: every character can be written to the stream."""
    return (stream.encoding or "utf-8").lower().startswith("utf")


class NodeLines:
    """Prints the lines of nodes as they come, after the node's name if nodes are several. For several threads."""

    def __init__(self, output: Output, *, several: bool) -> None:
        self.output = output
        self._several = several
        self._lock = Lock()

    def show(self, node: str, stream: str, line: str) -> None:
        """Print a line of a node's `stdout` or `stderr`."""
        text = line.rstrip("\r")
        # Text for a file or another program is a result, and kept as it is.
        if stream == "stderr" or self.output.stdout.isatty():
            text = clean(text, sys.maxsize)
        with self._lock:
            (self.output.text if stream == "stdout" else self.output.say)(self.prefix(node) + text)

    def prefix(self, node: str) -> str:
        """Return the beginning of a node's lines."""
        return f"{node}: " if self._several else ""
