"""Read the pages of the documentation for tests: code blocks in order, commands, and their shown output.

A page is a session. Its first line names the session's initial state: `<!-- session: cluster -->`. In a block of the
language `console`, a line that begins with `$ ` is a command. The lines after it are its output, where a line `…`
stands for omitted lines. A block with a title is a file of that name. A comment above a block marks an
exception:

    <!-- not run: REASON -->    the block is not run
    <!-- output: REASON -->     the output is shown, but not compared
    <!-- exit: 1 -->            the commands end with that status

A page of the session `program` is one Python program: a test of its own runs its blocks of the language `python`.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
SESSIONS = ("empty", "cluster", "ray", "hosts", "oci", "program")
"""Nothing; two local hosts that other pages use, too; the same with Ray; two machines in an inventory; an account; a
program of the library's, which `integration/test_library.py` runs."""

_FENCE = re.compile(r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?$')
_NOTE = re.compile(r"^<!-- (?P<name>not run|output|exit|session): (?P<value>.+) -->$")
_LEFT_OUT = "…"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of a block, and the lines of output that are shown with it."""

    text: str
    shown: tuple[str, ...]

    @property
    def line(self) -> str:
        """Return the command without its trailing remark."""
        return re.sub(r"\s+# .*$", "", self.text)

    def missing(self, output: str) -> list[str]:
        """Return the shown words that the output lacks. Numbers, bars and short words differ from day to day, so skip
        them.
        """
        existing = set(_words(output))
        return [
            word for line in self.shown if line != _LEFT_OUT for word in _words(line) if word not in existing
        ]


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of code."""

    line: int
    language: str
    title: str | None
    notes: Mapping[str, str]
    text: str
    program: bool
    """It is a part of the page's program."""

    @property
    def runs(self) -> bool:
        """Return whether its commands are run."""
        return self.language == "console" and "not run" not in self.notes

    @property
    def status(self) -> int:
        """Return the exit status of its commands."""
        return int(self.notes.get("exit", 0))

    def commands(self) -> list[Command]:
        """Return its commands in their order."""
        result: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                result.append((line[2:], []))
            elif result and line.strip():
                result[-1][1].append(line)
        return [Command(text=text, shown=tuple(shown)) for text, shown in result]


def session_of(page: Path) -> str:
    """Return the state that the page's session starts in."""
    note = _NOTE.match(page.read_text().split("\n", 1)[0])
    return note["value"] if note and note["name"] == "session" else "empty"


def blocks_of(page: Path) -> Iterator[Block]:
    """Return the page's blocks in their order."""
    notes: dict[str, str] = {}
    program = session_of(page) == "program"
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    for number, line in lines:
        if note := _NOTE.match(line):
            notes[note["name"]] = note["value"]
        elif fence := _FENCE.match(line):
            text = []
            for _, inner in lines:
                if inner == "```":
                    break
                text.append(inner)
            yield Block(
                line=number,
                language=fence["language"],
                title=fence["title"],
                notes=notes,
                text="\n".join(text) + "\n",
                program=program and fence["language"] == "python",
            )
            notes = {}
        elif line.strip():
            assert not line.startswith("<!--") or "make docs" in line, f"{page.name}:{number}: no such note"
            notes = {}


def gpuctl_words(command: Command) -> list[list[str]]:
    """Return the arguments of each gpuctl in a line, also behind a pipe."""
    words = shlex.split(command.line)
    ends = [at for at, word in enumerate(words) if word in ("&&", "||", "|", ";", ">")]
    parts = [
        words[begin:end] for begin, end in zip([0, *(at + 1 for at in ends)], [*ends, None], strict=True)
    ]
    return [part[1:] for part in parts if part[:1] == ["gpuctl"]]


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z_]{3,}", text)
