"""The exceptions in a log, as Python, exception groups, rich and loguru write them, and how they follow. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from gpuctl.run_results.failures.stacks import Frame
from gpuctl.text import clean

MAX_LINES = 40
"""Of an exception's message."""
END_WITHIN = 5
"""Lines of other processes may stand before an exception's message."""

_HEADER = re.compile(r"^(?P<before>.*)Traceback \(most recent call last\)(:\s*|(?P<box> [─-]+[╮+]))$")
_GROUP = re.compile(r"^\s*\+ Exception Group Traceback \(most recent call last\):\s*$")
_MARGIN = re.compile(r"^\s*(\| ?|(?P<next>\+[+-]*-{4,}))")
_GROUP_ITSELF = re.compile(r"^[\w.]*: .*\(\d+ sub-exceptions?\)$")
_PREFIX = re.compile(r"^(\[[\w.:-]+\]:\s?)+")
"""`[rank1]: ` and `[default1]:`, as torch and torchrun put them before a line."""
_FRAME = re.compile(r'^[>\s]\s*File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
"""A line of a traceback, or the place that Python could not read."""
_BOXED_FRAME = re.compile(r"^(?P<file>/.+):(?P<line>\d+)(?: in (?P<function>.+))?$")
_BOXED_SOURCE = re.compile(r"^\s*(❱|\d+ |[╭│╰|+])")
_SYNTAX = re.compile(r"(SyntaxError|IndentationError|TabError): ")
"""Python ends so without a traceback where it can't read the script itself."""
_MESSAGE = re.compile(r"^[A-Za-z_][\w.]*(\(\w+\))?(: |:?$)")
"""How an exception's message begins."""
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"
_THREAD = re.compile(
    r"^(?:Exception in (?:thread|process) (?P<thread>.+)|Process (?P<process>\S+)"
    r"|(?P<task>Task exception) was never retrieved|Exception in (?P<callback>callback) .*):?\s*$"
)
"""The line before a traceback that did not end the main thread."""
_IGNORED = re.compile(r"^(Exception ignored (in|on)\b|Error in atexit\._run_exitfuncs|--- Logging error ---)")
_FOREIGN = re.compile(
    r'[\[(]|\d+[-/:]\d|"""|Exception (ignored|in)\b|Process \S+:$|During handling|The above exception'
    r"|(\S+\.py:\d+: )?\w*Warning\b|[A-Z]{4,}\b|[EWIF]\d{4} |wandb:|Current thread |Thread 0x|Stack \(most recent"
    r"|Fatal Python error|Extension modules:|terminate called|Error in (atexit|sys)|Task exception was never"
    r"|.*Traceback \(most recent call last\)|^\s*\+ Exception Group"
)
"""How lines begin that others write after an exception."""
_BAR = re.compile(r"^.*?(?:\d+%\|[^|]*\|\s*\S*|\b\d+\w*it)\s+\[[\d:]+[^\]]*\]")
"""A progress bar of tqdm's."""


class Link(StrEnum):
    """The relation of an exception to the previous one."""

    CAUSE = "because of"
    CONTEXT = "after"


@dataclass(frozen=True, kw_only=True)
class Thrown:
    """An exception in a log."""

    lines: tuple[str, ...]
    """Its message; empty where that is cut off. Further lines keep their indentation."""
    frames: list[Frame]
    """The innermost first. One whose function is empty is the place that Python could not read."""
    begin: int
    end: int
    """The numbers of its first line, and of the line after its last."""
    link: Link | None = None
    """How it follows from the exception before it. `None`: it does not."""
    thread: str = ""
    """The thread or process that raised it, where that is not the main thread: `Thread-1 (load)`."""
    ignored: bool = False
    """True: Python continued after it."""
    members: tuple["Thrown", ...] = ()
    """Of a group: the exceptions in it that are no groups."""

    @property
    def head(self) -> str:
        """Its message's first line."""
        return self.lines[0] if self.lines else ""


Chain = tuple[Thrown, ...]
"""Exceptions of which each followed from the one before."""


def plain_lines(tail: str) -> list[str]:
    """Return a log's lines without colours, and without a progress bar where other text is in its line."""
    plain: list[str] = []
    for line in tail.split("\n"):
        states = [clean(state).rstrip() for state in line.split("\r")] if "\r" in line else []
        rests = [rest for state in states if _BAR.match(state) and (rest := _BAR.sub("", state)).strip()]
        plain += rests or [clean(line).rstrip()]
    return plain


def unprefixed(line: str) -> str:
    """Return a line without torchrun's prefix."""
    return _PREFIX.sub("", line)


def chains(lines: Sequence[str]) -> list[Chain]:
    """Return the exceptions in a log's lines, in the order in which they begin."""
    streams: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(lines):
        prefix = _PREFIX.match(line)
        name = prefix.group().strip() if prefix else ""
        streams.setdefault(name, []).append((number, line[prefix.end() :] if prefix else line))
    unsorted = [chain for stream in streams.values() for chain in _chains(stream)]
    return sorted(unsorted, key=lambda chain: chain[0].begin)


def _chains(stream: Sequence[tuple[int, str]]) -> Iterator[Chain]:
    """The chains of the lines that one process wrote."""
    numbers, lines = [number for number, _ in stream], [line for _, line in stream]
    chain: list[Thrown] = []
    for thrown in _thrown(lines):
        if chain and thrown.link is None:
            yield tuple(chain)
            chain = []
        end = numbers[thrown.end] if thrown.end < len(numbers) else numbers[-1] + 1
        chain.append(replace(thrown, begin=numbers[thrown.begin], end=end))
    if chain:
        yield tuple(chain)


def _thrown(lines: Sequence[str]) -> Iterator[Thrown]:
    """The exceptions of one process's lines, numbered within these lines."""
    number, before = 0, 0
    first = True
    while number < len(lines):
        thrown = None
        if _GROUP.match(lines[number]):
            thrown = _group(lines, number)
        elif header := _HEADER.match(lines[number]):
            thrown = _boxed(lines, number) if header["box"] else _traceback(lines, number)
        if thrown is None:
            number += 1
            continue
        between = [line.strip() for line in lines[before:number] if line.strip()]
        link = Link.CAUSE if _CAUSE in between else Link.CONTEXT if _CONTEXT in between else None
        last = next(reversed(between), "")
        named = _THREAD.match(last) or (_THREAD.match(between[-2]) if len(between) > 1 else None)
        yield replace(
            thrown,
            link=None if first else link,
            thread=next(filter(None, named.groups()), "").rstrip(":") if named else "",
            ignored=any(map(_IGNORED.match, between[-2:])),
        )
        first = False
        before = number = max(thrown.end, number + 1)
    if first and (thrown := _syntax(lines)):
        yield thrown


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _traceback(lines: Sequence[str], begin: int) -> Thrown:
    """The exception below a header of Python's, or of loguru's."""
    inner = [number for number in range(begin + 1, len(lines)) if lines[number].strip()]
    left = _indent(lines[begin]) if lines[begin].lstrip().startswith("Traceback") else 0
    first = lines[inner[0]].replace("> ", "  ", 1) if inner else ""
    margin = max(_indent(first), left + 1)
    ends = [
        number
        for number in inner
        if _indent(lines[number]) < margin
        and not (_FRAME.match(lines[number]) and lines[number].startswith(">"))
    ]
    end = next((number for number in ends[:END_WITHIN] if _MESSAGE.match(lines[number].lstrip())), None)
    end = end if end is not None else ends[0] if ends else len(lines)
    if lines[end : end + 1] and lines[end].startswith("ray.exceptions.RayTaskError("):
        # The traceback of a task: its own end is on the next line that is not indented.
        end = next((number for number in ends if number > end), end)
    frames = [frame for line in lines[begin + 1 : end] if (frame := _frame(_FRAME.match(line)))]
    message, length = _message(lines[end : end + MAX_LINES])
    return Thrown(lines=message, frames=frames[::-1], begin=begin, end=end + length)


def _frame(match: re.Match[str] | None) -> Frame | None:
    if match is None:
        return None
    return Frame(file=match["file"], line=int(match["line"]), function=match["function"] or "")


def _syntax(lines: Sequence[str]) -> Thrown | None:
    """The place that Python could not read, where it says no more than that."""
    end = next((number for number in reversed(range(len(lines))) if _SYNTAX.match(lines[number])), None)
    if end is None:
        return None
    begin = max((number for number in range(end) if _FRAME.match(lines[number])), default=None)
    if begin is None:
        return None
    frame = _frame(_FRAME.match(lines[begin]))
    message, length = _message(lines[end : end + MAX_LINES])
    return Thrown(lines=message, frames=[frame] if frame else [], begin=begin, end=end + length)


def _message(lines: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """The lines of an exception's message, of the lines that begin with it, and the number of lines that it takes.

    A blank line ends it, unless what follows is indented, or announces something: `On instance['lr']:`.
    """
    left = _indent(lines[0]) if lines else 0
    message = [lines[0].strip()] if lines else []
    length, blank = len(message), False
    for number, line in enumerate(lines[1:], 2):
        text = line[left:] if not line[:left].strip() else line
        if not text.strip():
            blank = True
            continue
        inner = text.startswith((" ", "\t"))
        if _FOREIGN.match(text):
            break
        if blank and not inner and not text.endswith(":"):
            break
        message += [""] * blank
        message.append(text)
        length, blank = number, False
    return tuple(message), length


def _group(lines: Sequence[str], begin: int) -> Thrown:
    """An exception group, and the exceptions in it."""
    end = begin + 1
    while end < len(lines) and (_MARGIN.match(lines[end]) or not lines[end].strip()):
        end += 1
    sections: list[list[str]] = [[]]
    for line in lines[begin + 1 : end]:
        margin = _MARGIN.match(line)
        if margin and margin["next"]:
            sections.append([])
        elif margin:
            sections[-1].append(line[margin.end() :])
    head = _traceback(["Traceback (most recent call last):", *sections[0]], 0)
    members: list[Thrown] = []
    for section in filter(None, sections[1:]):
        chain = list(_thrown(section))
        if chain and not _GROUP_ITSELF.match(chain[-1].head):
            members.append(chain[-1])
        elif not chain and not _GROUP_ITSELF.match(section[0]):
            members.append(Thrown(lines=_message(section)[0], frames=[], begin=begin, end=end))
    return replace(head, begin=begin, end=end, members=tuple(members))


def _boxed(lines: Sequence[str], begin: int) -> Thrown:
    """The exception below a traceback that rich has drawn."""
    width = len(lines[begin])
    end = begin + 1
    while end < len(lines) and lines[end].startswith(("│", "|")):
        end += 1
    inner = [line.strip("│| ").rstrip() for line in lines[begin + 1 : end]]
    frames: list[Frame] = []
    path = ""
    for line in inner:
        path = path + line if path or line.startswith("/") else ""
        frame = _frame(_BOXED_FRAME.match(path))
        frames += [frame] if frame else []
        path = "" if frame or not line or _BOXED_SOURCE.match(line) else path
    message, length = _message(lines[end + 1 : end + 1 + MAX_LINES])
    folded = [""]
    for line, following in pairwise([*message, ""]):
        folded[-1] += line
        if following and (
            len(line) < width or " " in line.strip()
        ):  # rich cuts only words longer than a line
            folded[-1] += " "
    return Thrown(
        lines=tuple(filter(None, map(str.strip, folded))),
        frames=frames[::-1],
        begin=begin,
        end=end + 1 + length,
    )
