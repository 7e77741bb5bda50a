"""Choose the exception of a log that explains its end, and the words for it. Pure."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpuctl.run_results.failures.tracebacks import Chain, Link, Thrown
from gpuctl.text import clean, shorten
from inventories.text import plural

MAX_FIRST, MAX_FURTHER, MAX_TEXT = 300, 200, 800
"""Characters of a message's first line, of each other line, and of all."""
MAX_LINES = 6
NEAR_LINES = 60
"""What one process writes between two exceptions that belong together."""

ON_REQUEST = re.compile(r"^(KeyboardInterrupt|SystemExit|.*SignalException)\b")
_CARRIER = re.compile(
    r"^[\w.]*\b(CalledProcessError|ChildFailedError|ProcessExitedException|ProcessRaisedException|BrokenProcessPool"
    r"|TerminatedWorkerError|RemoteTraceback|_RemoteTraceback|Empty|CancelledError|BrokenBarrierError)\b"
    r"|DataLoader worker \(pid(\(s\))? [\d, ]+\) exited unexpectedly"
)
"""An exception that only reports the end of another process or thread."""
_NOISE = re.compile(
    r"^\s*(For further information visit|Set TORCHDYNAMO_VERBOSE|You can suppress|Compile with `TORCH_USE"
    r"|For debugging|CUDA kernel errors might|Developer debug context|For more details about this|from user code"
    r"|File \"|time +:|host +:|error_file: |traceback : To enable|Failures:|<NO_OTHER_FAILURES>|\[\d+\]:$"
    r"|actor_id: [0-9a-f]+$|namespace: [0-9a-f-]{36}$|[=~^─-]{3,}|$)"
)
"""Lines of a message that explain nothing."""
_ROOT_CAUSE = "Root Cause (first observed failure):"
"""Where torchrun's list of failures comes to the first one."""


@dataclass(frozen=True, kw_only=True)
class RootCause:
    """The exception that explains a log's end."""

    thrown: Thrown
    outer: Thrown | None = None
    """The exception that was raised in the end, where that is another one."""
    link: Link | None = None
    """How that follows from it."""
    deliberate: bool = False
    """Whether the function that caught the first exception raised the outer one itself."""

    @property
    def heads(self) -> list[str]:
        """The first lines of both messages, the outer one first."""
        return [thrown.head for thrown in (self.outer, self.thrown) if thrown is not None and thrown.head]

    @property
    def words(self) -> str:
        """The telling lines of both messages: `RuntimeError: no data, because of KeyError: 'x'`."""
        words = message(self.thrown.lines)
        if members := list(dict.fromkeys(message(member.lines) for member in self.thrown.members)):
            more = f"; and {len(members) - 3} more" if len(members) > 3 else ""
            words = f"{'; '.join(members[:3])}{more} (of {message(self.thrown.lines[:1])})"
        if self.thrown.thread:
            words = f"{words}, in {clean(self.thrown.thread, 60)}" if self.outer is not None else words
        if self.outer is None or not self.outer.lines or self.outer.lines == self.thrown.lines:
            return words
        link = self.link or Link.CONTEXT
        return f"{message(self.outer.lines).rstrip('.')}, {link} {words}"


def root_cause(raised: Sequence[Chain], follows: Callable[[str], bool]) -> RootCause | None:
    """Return the exception that explains a log's end; `None`: the log has no exception that ended anything.

    `follows`: whether a message only reports that another rank is gone.
    """
    ended = [chain for chain in raised if not chain[-1].ignored]
    raised = [chain for chain in ended if not ON_REQUEST.match(chain[-1].head)]
    if not raised:
        return RootCause(thrown=ended[-1][-1]) if ended else None
    number = len(raised) - 1
    while raised[number][-1].thread and number and not raised[number - 1][-1].thread:
        if not _near(raised[number - 1], raised[number]):
            break
        number -= 1  # errors of threads after the main thread had failed
    last = _of_chain(raised[number], follows)
    if not carries(last.thrown):
        before = raised[number - 1][-1] if number else None
        if before is None or not before.thread or not _near(raised[number - 1], raised[number]):
            return last
        if follows(before.head) or last.outer is not None or raised[number][-1].thread:
            return last
        inner = _of_chain(raised[number - 1], follows)
        return RootCause(thrown=inner.thrown, outer=last.thrown, link=Link.CONTEXT)
    # The first exception above this one that explains it: of a program, or a thread, that the script started.
    begin = number
    while begin and _near(raised[begin - 1], raised[begin]):
        begin -= 1
    causes = [_of_chain(chain, follows) for chain in raised[begin:number]]
    inner_causes = [cause for cause in causes if not carries(cause.thrown)]
    first = next((cause for cause in inner_causes if not follows(cause.thrown.head)), None)
    return first or next(iter(inner_causes or causes), last)


def _near(before: Chain, after: Chain) -> bool:
    return after[0].begin - before[-1].end <= NEAR_LINES


def carries(thrown: Thrown) -> bool:
    """Return whether an exception only reports the end of another process or thread."""
    return not thrown.members and bool(_CARRIER.search(thrown.head))


def _of_chain(chain: Chain, follows: Callable[[str], bool]) -> RootCause:
    """The exception with which a chain began, and the last one.

    Of causes that were named by `raise … from`, the first; else the exception during whose handling it began.
    """
    last = chain[-1]
    if len(chain) == 1 or last.members:
        return RootCause(thrown=last)
    number = len(chain) - 1
    while number and chain[number].link is Link.CAUSE:
        number -= 1
    link = Link.CAUSE if number < len(chain) - 1 else Link.CONTEXT
    first = chain[number] if link is Link.CAUSE else chain[0]
    if not first.lines or ON_REQUEST.match(first.head):
        return RootCause(thrown=last)
    # One exception, as a pool's process and its parent print it.
    same = first.lines[:1] == last.lines[:1] and not first.members
    if follows(first.head) or follows(last.head) or carries(last) or same:
        return RootCause(thrown=replace(first, frames=first.frames + last.frames))
    if carries(first):
        return RootCause(thrown=last)
    caught, raised = first.frames[-1:], last.frames[:1]
    # The function that caught the first exception raised the last one itself.
    deliberate = bool(caught and raised) and (caught[0].file, caught[0].function) == (
        raised[0].file,
        raised[0].function,
    )
    return RootCause(thrown=first, outer=last, link=link, deliberate=deliberate)


def message(lines: Sequence[str]) -> str:
    """Return the telling lines of an exception's message as one."""
    if _ROOT_CAUSE in lines:
        lines = [lines[0], *lines[list(lines).index(_ROOT_CAUSE) + 1 :]]
    further = [line.strip() for line in lines[1:] if not _NOISE.match(line)]
    words = clean(lines[0], MAX_FIRST if further else MAX_TEXT) if lines else ""
    for number, line in enumerate(further):
        part = shorten(clean(line), MAX_FURTHER)
        if number == MAX_LINES - 1 or len(words) + len(part) >= MAX_TEXT:
            return f"{words} … ({plural(len(further) - number, 'more line')})"
        words = f"{words.rstrip()} {part}"
    return words
