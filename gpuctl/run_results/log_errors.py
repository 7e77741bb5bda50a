"""What the end of a rank's log says: the one place that reads the English of Python, torch, gloo, NCCL, CUDA and Ray.

None of it is gpuctl's own. A library that changes its words makes a rank's end less well known, never wrong.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from gpuctl.hangs.stacks import Frame, collective
from gpuctl.text import clean
from inventories.end_reasons import Cause, Reason
from remote.shared.constants import CODE, NODE_FOLDER

MOST_SAID = 300
MOST_LINES = 4
"""Of an exception's message."""

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\s*$")
_RANK_PREFIX = re.compile(r"^(\[[\w.:-]+\]:\s?)+")
"""`[rank1]: ` and `[default1]:`, as torch and torchrun put them before a line."""
_FRAME = re.compile(r'^\s+File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
"""A line of a traceback, or the place that Python could not read."""
_SENT = re.compile(rf".*/{re.escape(NODE_FOLDER)}/{CODE}/[^/]+/(?P<inner>.+)$")
"""A file of the project, on a node."""
_SYNTAX = re.compile(r"(SyntaxError|IndentationError|TabError): ")
"""Python ends so without a traceback where it can't read the script itself."""
_NOT_OF_A_MESSAGE = re.compile(
    r"[\[(]|\d+[-/:]\d|Exception ignored|During handling|The above exception|\S*Warning|[A-Z]{4,}\b|wandb:"
)
"""How lines begin that others write after an exception."""
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
_MEMORY = re.compile(
    r"OutOfMemoryError|^MemoryError\b|can't allocate memory|Cannot allocate memory|std::bad_alloc"
)
_GPU_MEMORY = re.compile(
    r"(CUDA|HIP)(?: error:| failure)? '?out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
_SHARED_MEMORY = re.compile(
    r"out of shared memory|insufficient shared memory"
    r"|shared memory ?(\(shm\)|object|segment)[^\n]*(No space left|\(28\))"
    r"|unable to (write to|allocate|resize|mmap)[^\n]*(/torch_|shm)|No space left on device: '/dev/shm/"
)
"""What torch's DataLoader workers say, and NCCL, where /dev/shm is full."""
NO_SPACE = "No space left on device"
_CHILD_KILLED = re.compile(
    r"DataLoader worker.*(killed by signal: Killed|exited unexpectedly)|Signals\.SIGKILL|BrokenProcessPool"
)
"""What a rank says of which a process was killed."""
_CUDA = re.compile(
    r"\bCUDA\b|\bcuda\b|cuDNN|CUBLAS_STATUS|CUDNN_STATUS|NVIDIA|AcceleratorError|device-side assert"
)
_CUDA_CAUSES: Mapping[Cause, re.Pattern[str]] = {
    Cause.DEVICE_ASSERT: re.compile(r"device-side assert"),
    Cause.ILLEGAL_ACCESS: re.compile(
        r"illegal memory access|misaligned address|illegal instruction|illegal address|unspecified launch failure"
    ),
    Cause.NO_KERNEL_IMAGE: re.compile(r"no kernel image is available"),
    Cause.DRIVER_TOO_OLD: re.compile(
        r"driver on your system is too old|driver version is insufficient|unsupported toolchain"
        r"|system has unsupported display driver"
    ),
    Cause.NO_DRIVER: re.compile(r"Found no NVIDIA driver"),
    Cause.CPU_BUILD: re.compile(r"not compiled with CUDA|Torch not built with CUDA"),
    Cause.NO_SUCH_GPU: re.compile(
        r"invalid device ordinal|No CUDA GPUs are available|no CUDA-capable device"
    ),
    Cause.GPU_BUSY: re.compile(r"busy or unavailable"),
    Cause.FABRIC_MANAGER: re.compile(r"system not yet initialized"),
    Cause.GPU_BROKEN: re.compile(r"uncorrectable (NVLink|ECC)|ECC error|GPU is lost|hardware stack error"),
}
"""What CUDA and torch say of a GPU that can't be used, by its likely cause."""
_ASSERTION = re.compile(r"Assertion `[^`']*[`'] failed")
"""What a kernel's check writes before CUDA only says that there was one."""
_NCCL = re.compile(
    r"\bNCCL error\b|\bnccl[A-Z]\w*(Error|Usage|Argument)\b|NCCL (WARN|failure)|ProcessGroupNCCL"
)
_NCCL_LAST = "Last error:"
"""The line before the one in which NCCL itself says what failed."""
_SAME_GPU = "Duplicate GPU detected"
_ERROR_LIKE = re.compile(
    r"error|exception|fail|fatal|abort|terminate|assert|cannot|can't|can not|could not|unable|denied|refused|killed"
    r"|invalid|illegal|unknown|unrecognized|not found|no such|missing|required|usage|signal|core dumped",
    re.IGNORECASE,
)
"""A line without a traceback that may tell what went wrong."""
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
_CRASH = re.compile(
    r"Fatal Python error: (Segmentation fault|Aborted|Bus error|Floating.point exception|Illegal instruction)$"
)
"""How faulthandler begins."""
_OF_A_CRASH = re.compile(r"\(most recent call first\):$|^Extension modules: ")
_ON_REQUEST = re.compile(r"^(KeyboardInterrupt|SystemExit|.*SignalException)\b")


_SOURCE = re.compile(r"\[[^\]\s]*/[^\]\s]*:\d+\]:?\s*")
"""Where in torch's sources its message was made."""
_MORE_SENTENCES = re.compile(r"[.!] +[A-Z].*")


@dataclass(frozen=True, kw_only=True)
class LogEnd:
    """How a log ends."""

    words: str
    """The line that tells most, or an exception's first lines as one."""
    reason: Reason | None
    """What the rank ended of, where the libraries' words tell it."""
    cause: Cause | None = None
    ranks: tuple[int, ...] = ()
    """The ranks that it waited for, where it names them."""
    traceback: bool
    """Whether it tells of an exception of its own."""
    place: str = ""
    """Where in the project: `data.py:41`, `all_reduce, train.py:28`; empty where it is not known."""


@dataclass(frozen=True, kw_only=True)
class _Exception:
    """The last one of a log."""

    lines: tuple[str, ...]
    """Its message's."""
    frames: list[Frame]
    """The innermost first. One whose function is empty is the place that Python could not read."""

    @property
    def place(self) -> str:
        for frame in self.frames:
            inner = _SENT.match(frame.file)
            if inner and not frame.function:
                return f"{inner['inner']}, line {frame.line}"
            if inner:
                return f"{inner['inner']}:{frame.line}"
        return ""

    @property
    def waits_at(self) -> str:
        return ", ".join(filter(None, [collective(self.frames), self.place]))


def without_crash(tail: str) -> tuple[str, str]:
    """A log's end without what faulthandler wrote of a crash in C code, and that: the rank's own words tell more."""
    said: list[str] = []
    crash: list[str] = []
    inside = False
    for line in tail.split("\n"):
        if _CRASH.match(line):
            inside, crash = True, [line]
        elif inside and (not line or line.startswith("  ") or _OF_A_CRASH.search(line)):
            crash.append(line)
        else:
            inside = False
            said.append(line)
    own = any(map(str.strip, said))
    return "\n".join(said if own else crash[:1]), "\n".join(crash)


def read(tail: str, *, aborted: bool = False) -> LogEnd:
    """How a log ends, of its last kilobytes.

    `aborted`: the rank got SIGABRT, as by NCCL's watchdog: what that says stands before stacks.
    """
    words, thrown = last_words(tail), _last_exception(tail)
    gave_up = _GAVE_UP.search(words)
    if aborted and (before := _GAVE_UP.search(tail)):
        gave_up, words = before, clean(before.group(), MOST_SAID)
    if gave_up:
        named = tuple(int(rank) for found in _NAMED.finditer(words) for rank in re.findall(r"\d+", found[1]))
        place = thrown.waits_at if thrown else ""
        return LogEnd(
            words=_tidied(words), reason=Reason.TIMED_OUT, ranks=named, traceback=False, place=place
        )
    reason, cause = _reason_of(words)
    if cause is Cause.DEVICE_ASSERT and (check := _ASSERTION.search(tail)):
        words = f"{words}: {clean(check.group(), MOST_SAID)}"
    if reason is Reason.NCCL_ERROR:
        reason, cause, words = _of_nccl(words, tail)
    if reason is None and thrown is None and not _ERROR_LIKE.search(words):
        cause = Cause.SILENT
    own = thrown is not None and not _ON_REQUEST.match(words)
    if thrown is None:
        return LogEnd(words=words, reason=reason, cause=cause, traceback=False)
    if reason in (Reason.LOST_PEER, Reason.NCCL_ERROR):
        words = _tidied(words) if reason is Reason.LOST_PEER else words
        return LogEnd(words=words, reason=reason, cause=cause, traceback=False, place=thrown.waits_at)
    if reason is None and len(thrown.lines) > 1 and len(words) < MOST_SAID:
        words = clean(" ".join(thrown.lines), MOST_SAID)
    return LogEnd(words=words, reason=reason, cause=cause, traceback=own, place=thrown.place)


def _tidied(words: str) -> str:
    """Torch's words of a peer, without the place in its sources and what it says beyond its first sentence."""
    return _MORE_SENTENCES.sub("", _SOURCE.sub("", words))


def _reason_of(words: str) -> tuple[Reason | None, Cause | None]:
    if _PEER_GONE.search(words):
        return Reason.LOST_PEER, None
    if _SHARED_MEMORY.search(words):
        return Reason.SHARED_MEMORY_FULL, None
    if _GPU_MEMORY.search(words):
        return Reason.OUT_OF_MEMORY, Cause.GPU_MEMORY
    if _MEMORY.search(words):
        return Reason.OUT_OF_MEMORY, None
    if _NCCL.search(words):
        return Reason.NCCL_ERROR, None
    if _CUDA.search(words) and (cause := _cuda_cause(words)):
        return Reason.CUDA_ERROR, cause
    if "CUDA error" in words:
        return Reason.CUDA_ERROR, None
    if _NO_MODULE.search(words):
        return Reason.MODULE_NOT_FOUND, None
    if path_not_found(words):
        return Reason.FILE_NOT_FOUND, None
    return (Reason.THREAD_AT_EXIT if words == _THREAD_AT_EXIT else None), None


def _cuda_cause(words: str) -> Cause | None:
    return next((cause for cause, said in _CUDA_CAUSES.items() if said.search(words)), None)


def _of_nccl(words: str, tail: str) -> tuple[Reason, Cause | None, str]:
    """What an error of NCCL's comes to, by its own last error, which torch prints below its line."""
    lines = [_RANK_PREFIX.sub("", clean(line, MOST_SAID)).strip() for line in tail.split("\n")]
    last = next((after for line, after in reversed(list(pairwise(lines))) if line == _NCCL_LAST), "")
    said = f"{words}: {last}" if last else words
    if _SAME_GPU in said:
        return Reason.NCCL_ERROR, Cause.SAME_GPU, said
    if _PEER_GONE.search(last):
        return Reason.LOST_PEER, None, said
    reason, cause = _reason_of(last) if last else (None, None)
    if reason in (Reason.SHARED_MEMORY_FULL, Reason.OUT_OF_MEMORY, Reason.CUDA_ERROR):
        return reason, cause, said
    cause = _cuda_cause(last)
    return (Reason.NCCL_ERROR if cause is None else Reason.CUDA_ERROR), cause, said


def child_was_killed(words: str) -> bool:
    """Return whether a rank says that a process of its own was killed."""
    return bool(_CHILD_KILLED.search(words))


def path_not_found(words: str) -> str:
    """The path that was looked for in vain, where the words name one; else empty."""
    found = None if _LIBRARY in words else _NO_FILE.search(words)
    if found is None:
        return ""
    return next(found[name] for name in ("quoted", "hdf5", "named", "before") if found[name])


def last_words(tail: str) -> str:
    """The line of a log's end that tells most: what the last exception begins with, else the last line."""
    thrown = _last_exception(tail)
    if thrown is not None and thrown.lines:
        return thrown.lines[0]
    lines = (_plain(line).strip() for line in reversed(tail.split("\n")))
    return next(filter(None, lines), "")


def _plain(line: str) -> str:
    return _RANK_PREFIX.sub("", clean(line).rstrip())


def _last_exception(tail: str) -> _Exception | None:
    """The exception that a log tells of last; without lines where they are cut off."""
    logged = tail.split("\n")
    lines = [_plain(line) for line in logged]
    begins = [at for at, line in enumerate(lines) if _TRACEBACK.search(line)]
    if begins:
        ends = [at for at in range(begins[-1] + 1, len(lines)) if lines[at] and not lines[at][0].isspace()]
        if len(ends) > 1 and _FROM_A_TASK.match(lines[ends[0]]):
            del ends[0]
        begin = begins[-1]
    else:
        ends = [at for at, line in enumerate(lines) if _SYNTAX.match(line)][-1:]
        begin = max((at for at in range(ends[0]) if _FRAME.match(lines[at])), default=-1) - 1 if ends else -2
        if begin < -1:
            return None
    end = ends[0] if ends else len(lines)
    frames = [found for line in lines[begin + 1 : end] if (found := _FRAME.match(line))]
    return _Exception(
        lines=_message(logged[end : end + MOST_LINES]),
        frames=[
            Frame(file=found["file"], line=int(found["line"]), function=found["function"] or "")
            for found in reversed(frames)
        ],
    )


def _message(logged: list[str]) -> tuple[str, ...]:
    """The lines of an exception's message, of those that begin with it."""
    said = [_plain(line).strip() for line in logged]
    prefixes = [found.group().strip() if (found := _RANK_PREFIX.match(line)) else "" for line in logged]
    more = 1
    while more < len(said) and said[more] and prefixes[more] == prefixes[0]:
        if _NOT_OF_A_MESSAGE.match(said[more]):
            break
        more += 1
    return tuple(said[:more])
