"""What the end of a rank's log says: the one place that reads the English of Python, torch, gloo, NCCL, CUDA and Ray.

None of it is gpuctl's own. A library that changes its words makes a rank's end less well known, never wrong.
"""

import re
from dataclasses import dataclass

from gpuctl.text import clean
from inventories.end_reasons import Reason

MOST_SAID = 300

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\s*$")
_RANK_PREFIX = re.compile(r"^(\[[\w.:-]+\]:\s?)+")
"""`[rank1]: ` and `[default1]:`, as torch and torchrun put them before a line."""
_PEER_GONE = re.compile(
    r"gloo.*(closed by peer|reset by peer|broken pipe|timed out|remote worker)"
    r"|ncclRemoteError|remote process exit|DistNetworkError|Connection closed by remote peer"
    r"|Application timeout caused pair closure|while waiting for send/recv from rank"
    r"|ray\.exceptions\.(Actor(Died|Unavailable)|NodeDied|LocalRayletDied|OwnerDied|WorkerCrashed)Error",
    re.IGNORECASE,
)
"""What a rank says that only noticed that another one is gone."""
_GAVE_UP = re.compile(
    r"Timed out waiting \d+ ?ms for (send|recv) operation"  # gloo
    r"|Watchdog caught collective operation timeout.*|NCCL communicator was aborted on rank \d+"
    r"|wait timeout after \d+ ?ms, keys|Timed out after \d+ seconds waiting for clients"  # torch's store
    r"|failed to pass monitoredBarrier in \d+ ms",
)
"""What a rank says whose time was over while it waited for others."""
_NAMED = re.compile(r"Ranks? (\d+(?:, ?\d+)*) failed to pass monitoredBarrier")
"""Where it names them."""
_MEMORY = re.compile(r"OutOfMemoryError|CUDA(?: error:)? out of memory|^MemoryError\b|can't allocate memory")
_NO_FILE = re.compile(
    r"No such file or directory: b?(?P<quote>['\"])(?P<quoted>.+?)(?P=quote)"  # Python
    r"|unable to open file: name = '(?P<hdf5>[^']+)', errno = 2\b"  # HDF5
    r"|(?:cannot|can't|[Ff]ailed to) open(?: file)?:? (?P<mark>['\"])(?P<named>.+?)(?P=mark)"
    r"|(?P<before>[^\s:'\"]+): No such file or directory"  # C
)
"""A file that is not there, and its name."""
_LIBRARY = "cannot open shared object file"
"""What the dynamic linker says: the system's file, not the script's."""
_NO_MODULE = re.compile(r"\bModuleNotFoundError\b")
_FROM_A_TASK = re.compile(r"^ray\.exceptions\.RayTaskError\(")
"""What Ray puts before the traceback of a task, whose own end is on the next line that is not indented."""
_THREAD_AT_EXIT = "terminate called without an active exception"
"""What C++ says of a thread that is taken down while it works, as Python does with those that want it at its end."""
_ON_REQUEST = re.compile(r"^(KeyboardInterrupt|SystemExit|.*SignalException)\b")


@dataclass(frozen=True, kw_only=True)
class LogEnd:
    """How a log ends."""

    words: str
    """The line that tells most."""
    reason: Reason | None
    """What the rank ended of, where the libraries' words tell it."""
    ranks: tuple[int, ...] = ()
    """The ranks that it waited for, where it names them."""
    traceback: bool
    """Whether it tells of an exception of its own."""


def read(tail: str, *, aborted: bool = False) -> LogEnd:
    """How a log ends, of its last kilobytes.

    `aborted`: the rank got SIGABRT, as by NCCL's watchdog: what that says stands before stacks.
    """
    words = last_words(tail)
    gave_up = _GAVE_UP.search(words)
    if aborted and (before := _GAVE_UP.search(tail)):
        gave_up, words = before, clean(before.group(), MOST_SAID)
    if gave_up:
        named = tuple(int(rank) for found in _NAMED.finditer(words) for rank in re.findall(r"\d+", found[1]))
        return LogEnd(words=words, reason=Reason.TIMED_OUT, ranks=named, traceback=False)
    reason = _reason_of(words)
    traced = any(_TRACEBACK.search(line) for line in tail.split("\n"))
    own = traced and reason is not Reason.LOST_PEER and not _ON_REQUEST.match(words)
    return LogEnd(words=words, reason=reason, traceback=own)


def _reason_of(words: str) -> Reason | None:
    if _PEER_GONE.search(words):
        return Reason.LOST_PEER
    if _MEMORY.search(words):
        return Reason.OUT_OF_MEMORY
    if _NO_MODULE.search(words):
        return Reason.MODULE_NOT_FOUND
    if path_not_found(words):
        return Reason.FILE_NOT_FOUND
    return Reason.THREAD_AT_EXIT if words == _THREAD_AT_EXIT else None


def path_not_found(words: str) -> str:
    """The path that was looked for in vain, where the words name one; else empty."""
    found = None if _LIBRARY in words else _NO_FILE.search(words)
    if found is None:
        return ""
    return next(found[name] for name in ("quoted", "hdf5", "named", "before") if found[name])


def last_words(tail: str) -> str:
    """The line of a log's end that tells most: what the last traceback ended with, else the last line."""
    lines = [_RANK_PREFIX.sub("", clean(line).rstrip()) for line in tail.split("\n")]
    headers = [at for at, line in enumerate(lines) if _TRACEBACK.search(line)]
    if headers:
        ends = [line for line in lines[headers[-1] + 1 :] if line and not line[0].isspace()]
        if ends:
            return ends[1] if len(ends) > 1 and _FROM_A_TASK.match(ends[0]) else ends[0]
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
