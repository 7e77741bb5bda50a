"""The end of a rank's log: the one place that reads the English of Python, torch, gloo, NCCL, CUDA and Ray.

gpuctl prints no such text itself. A library that changes its messages makes a rank's end less well known, never
wrong.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpuctl.run_results.failures.root_cause import ON_REQUEST, RootCause, carries, root_cause
from gpuctl.run_results.failures.stacks import collective
from gpuctl.run_results.failures.tracebacks import Link, Thrown, chains, plain_lines, unprefixed
from gpuctl.text import clean
from inventories.runs.end_reasons import Cause, Reason
from remote.shared.constants import CODE, NODE_FOLDER

MOST_SAID = 300
LOOK_BACK = 12
"""Lines of a log without a traceback that may tell what went wrong."""
USAGE = 2
"""The exit status of a script that refuses its arguments."""
BOX = "│╭╮╰╯─┃━ "
"""What rich draws around a message."""

_SENT = re.compile(rf".*/{re.escape(NODE_FOLDER)}/{CODE}/[^/]+/(?P<inner>.+)$")
"""A file of the project, on a node."""
_PEER_GONE = re.compile(
    r"gloo.*(closed by peer|reset by peer|broken pipe|timed out|remote worker)"
    r"|ncclRemoteError|remote process exit|DistNetworkError|Connection closed by remote peer"
    r"|Application timeout caused pair closure|while waiting for send/recv from rank"
    r"|ray\.exceptions\.(Actor(Died|Unavailable)|NodeDied|LocalRayletDied|OwnerDied|WorkerCrashed)Error",
    re.IGNORECASE,
)
"""Errors of a rank that noticed the end of another rank."""
_GAVE_UP = re.compile(
    r"Timed out waiting \d+ ?ms for (send|recv) operation"  # gloo
    r"|Watchdog caught collective operation timeout.*|NCCL communicator was aborted on rank \d+"
    r"|wait timeout after \d+ ?ms, keys|Timed out after \d+ seconds waiting for clients"  # torch's store
    r"|failed to pass monitoredBarrier in \d+ ms",
)
"""Errors of a rank that timed out waiting for other ranks."""
_NAMED = re.compile(r"Ranks? (\d+(?:, ?\d+)*) failed to pass monitoredBarrier")
"""Where it names them."""
_MEMORY = re.compile(
    r"OutOfMemoryError|^MemoryError\b|can't allocate memory|Cannot allocate memory|std::bad_alloc|_ArrayMemoryError"
    r"|Unable to allocate \S+ \wiB"
)
_GPU_MEMORY = re.compile(
    r"(CUDA|HIP)(?: error:| failure)? '?out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
_LIMITS: Mapping[Cause, re.Pattern[str]] = {
    Cause.OPEN_FILES: re.compile(r"Too many open files|received 0 items of ancdata"),
    Cause.PROCESSES: re.compile(
        r"can't start new thread|pthread_create failed|(BlockingIOError|fork).*Resource temporarily unavailable"
    ),
    Cause.FILE_SIZE: re.compile(r"\[Errno 27\]|File too large|File size limit exceeded"),
}
"""Words of errors that a limit of the process explains."""
NO_ADDRESSES = re.compile(
    r"can't start new thread|pthread_create failed|failed to map segment from shared object"
)
"""Words of errors that a lack of address space explains."""
_SHARED_MEMORY = re.compile(
    r"out of shared memory|insufficient shared memory"
    r"|shared memory ?(\(shm\)|object|segment)[^\n]*(No space left|\(28\))"
    r"|unable to (write to|allocate|resize|mmap)[^\n]*(/torch_|shm)|No space left on device: '/dev/shm/"
)
"""What torch's DataLoader workers say, and NCCL, where /dev/shm is full."""
NO_SPACE = "No space left on device"
_CHILD: Mapping[Cause, re.Pattern[str]] = {
    Cause.CHILD_KILLED: re.compile(
        r"DataLoader worker.*killed by signal: Killed|Signals\.SIGKILL|signal SIGKILL|\bSignal 9 \(SIGKILL\)"
    ),
    Cause.CHILD_GONE: re.compile(
        r"DataLoader worker.*exited unexpectedly|BrokenProcessPool|TerminatedWorkerError|WorkerLostError"
    ),
}
"""Errors of a rank whose child process was killed, or has ended with a status that is not in them."""
_BACKENDS: Mapping[Cause, re.Pattern[str]] = {
    Cause.NO_BACKEND: re.compile(
        r"Distributed package doesn't have [NXH]CCL ?built in|Invalid backend: '[nxh]ccl|backend type (?i:[nxh]ccl)\b"
        r"|ProcessGroupNCCL is only supported with GPUs"
    ),
    Cause.UNKNOWN_BACKEND: re.compile(
        r"Distributed package doesn't have \w+ ?built in|Unknown (c10d )?backend type|Invalid backend: '"
    ),
    Cause.CPU_TENSOR: re.compile(
        r"No backend type associated with device type cpu|Tensors must be CUDA and dense"
    ),
    Cause.CPU_MODEL: re.compile(r"device_ids and output_device arguments only work with .*'cpu'"),
    Cause.NO_GPU: re.compile(
        r"Cannot access accelerator device when none is available|not compiled with (?!CUDA)[A-Z]+ enabled"
        r"|current compilation's accelerator support: None|No supported gpu backend found"
        r"|accelerator(?:`|'|\b) can ?not run on your system|\b0 active drivers \("
        r"|Could not run 'aten::empty\S*' with arguments from the '(CUDA|MPS|XPU)' backend"
    ),
}
"""What torch says of a backend or a device that the rank does not have."""
_CUDA = re.compile(
    r"\bCUDA\b|\bcuda\b|'_cuda_|dummy base class (Event|Stream|_Cuda|CUDAGraph)|cuDNN|CUBLAS_STATUS|CUDNN_STATUS"
    r"|NVIDIA|AcceleratorError|device-side assert"
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
    Cause.CPU_BUILD: re.compile(
        r"not compiled with CUDA|Torch not built with CUDA|requires CUDA support"
        r"|'torch\._C' has no attribute '_cuda_|dummy base class (Event|Stream|_Cuda|CUDAGraph)"
    ),
    Cause.NO_SUCH_GPU: re.compile(
        r"invalid device ordinal|No CUDA GPUs are available|no CUDA-capable device"
    ),
    Cause.GPU_BUSY: re.compile(r"busy or unavailable"),
    Cause.FABRIC_MANAGER: re.compile(r"system not yet initialized"),
    Cause.GPU_BROKEN: re.compile(r"uncorrectable (NVLink|ECC)|ECC error|GPU is lost|hardware stack error"),
}
"""What CUDA and torch say of a GPU that can't be used, by its likely cause."""
_ASSERTION = re.compile(r"Assertion `[^`']*[`'] failed")
"""Output of a kernel's check, before CUDA reports a failed assertion without its text."""
_NCCL = re.compile(
    r"\bNCCL error\b|\bnccl[A-Z]\w*(Error|Usage|Argument)\b|NCCL (WARN|failure)|ProcessGroupNCCL"
)
_NCCL_LAST = "Last error:"
"""The line before the one in which NCCL itself says what failed."""
_SAME_GPU = "Duplicate GPU detected"
_ERROR_LIKE = re.compile(
    r"error|exception|fail|fatal|abort|terminate|assert|cannot|can't|can not|could not|unable|denied|refused|killed"
    r"|invalid|illegal|unknown|unrecognized|not found|no such|missing|required|usage|signal|core dumped|unexpected"
    r"|panicked|overflow",
    re.IGNORECASE,
)
"""A line without a traceback that may tell what went wrong."""
_ERROR_LINE = re.compile(
    r"^(\S+: )*([Ff]atal |[Uu]sage |[Ii]nternal )?[Ee]rror\b|: error: |\b(ERROR|FATAL|CRITICAL|PANIC)\b|^[Ff]atal\b"
    r"|panicked at|Check failed|Assertion .* failed|^(Could not|Cannot|Can't|Failed to|Unable to)\b"
    r"|\*\*\* .*Error \d"
)
"""One that is such an error, also where other lines follow."""
_ARGUMENTS = re.compile(
    r"unrecognized (arguments|options)|error: argument |(arguments|options) are required|no such option"
    r"|invalid value for|missing (argument|option|parameter)|unexpected extra argument|flags parsing error"
    r"|could not (override|consume arg)|unknown command line flag",
    re.IGNORECASE,
)
"""How argparse, click, absl, hydra, fire and tyro refuse arguments."""
_HELP = re.compile(
    r"[Uu]sage: |.*--help\b|Try |For (more|detailed|full)\b|.*environment variable .*stack ?trace|note: run with"
)
"""Lines of a script after it has refused its arguments."""
_STACK = re.compile(
    r"frame #\d+|#\d+ +(0x|\S+ at )|@ +0x|Exception raised from |\d+: +0x|note: run with|Aborted$|Extension modules:"
)
"""Lines of C++'s stacks, and of Rust's."""
_LOGGED = re.compile(r"[EWIF]\d{4} ")
"""How torch's own messages begin."""
_TERMINATE = re.compile(
    r"terminate called after throwing an instance of '(?P<type>[^'\n]+)'\n\s*what\(\): +(?P<what>.+)"
)
_NO_FILE = re.compile(
    r"No such file or directory: b?(?P<quote>['\"])(?P<quoted>.+?)(?P=quote)"  # Python
    r"|unable to open file: name = '(?P<hdf5>[^']+)', errno = 2\b"  # HDF5
    r"|(?:cannot|can't|[Ff]ailed to) open(?: file)?:? (?P<mark>['\"])(?P<named>.+?)(?P=mark)"
    r"|(?P<before>[^\s:'\"]+): No such file or directory"  # C
    r"|Parent directory (?P<parent>.+) does not exist"  # torch.save
    r"|non-existent directory: '(?P<folder>[^']+)'"  # pandas
)
"""A file that is not there, and its name; or the folder that it was to be written in."""
_LIBRARY = "cannot open shared object file"
"""Error of the dynamic linker: a file of the system, not of the script."""
_NO_MODULE = re.compile(r"\bModuleNotFoundError\b")
_THREAD_AT_EXIT = "terminate called without an active exception"
"""C++'s error on a thread that is destroyed while it runs, as Python does with daemon threads at its end."""
_CRASH = re.compile(
    r"Fatal Python error: (Segmentation fault|Aborted|Bus error|Floating.point exception|Illegal instruction)$"
)
"""How faulthandler begins."""
_OF_A_CRASH = re.compile(r"\(most recent call first\):$|^Extension modules: ")
_SOURCE = re.compile(r"\[[^\]\s]*/[^\]\s]*:\d+\]:?\s*")
"""Where in torch's sources its message was made."""
_MORE_SENTENCES = re.compile(r"[.!] +[A-Z].*")


@dataclass(frozen=True, kw_only=True)
class LogEnd:
    """The end of a log."""

    words: str
    """The most informative line, or an exception's first lines as one."""
    reason: Reason | None
    """The reason of the rank's end. `None`: no library's message names one."""
    cause: Cause | None = None
    ranks: tuple[int, ...] = ()
    """The ranks that it waited for, where it names them."""
    traceback: bool
    """True: the log has an exception of the rank's own."""
    last: bool = False
    """Whether nothing was written after that exception."""
    place: str = ""
    """Where in the project: `data.py:41`, `all_reduce, train.py:28`; empty where it is not known."""


def without_crash(tail: str) -> tuple[str, str]:
    """A log's end without what faulthandler wrote of a crash in C code, and that: the rank's own words tell more."""
    text: list[str] = []
    crash: list[str] = []
    inside = False
    for line in tail.split("\n"):
        if _CRASH.match(line):
            inside, crash = True, [line]
        elif inside and (not line or line.startswith("  ") or _OF_A_CRASH.search(line)):
            crash.append(line)
        else:
            inside = False
            text.append(line)
    has_text = any(map(str.strip, text))
    return "\n".join(text if has_text else crash[:1]), "\n".join(crash)


def read(tail: str, *, code: int | None = None) -> LogEnd:
    """Read the last kilobytes of a log.

    `code`: the rank's exit status. After SIGABRT, as by NCCL's watchdog, its message stands before stacks.
    """
    lines = plain_lines(tail)
    exceptions = chains(lines)
    raised = root_cause(exceptions, lambda words: bool(_PEER_GONE.search(words) or _GAVE_UP.search(words)))
    after = lines[max((chain[-1].end for chain in exceptions), default=0) :]
    if code is not None and 1 < code < 128 and _ERROR_LINE.search(_last_line(after, usage=False)):
        raised, lines = None, after  # an exception that is not caught ends Python with status 1
    thrown = raised.thrown if raised else None
    words = raised.thrown.head if raised else ""
    words = words or _last_line(lines, usage=code == USAGE)
    aborted = code in (-signal.SIGABRT, 128 + signal.SIGABRT)
    if thrown is None and (ended := _TERMINATE.search("\n".join(lines))):
        words = ": ".join(dict.fromkeys([ended["type"], clean(ended["what"], MOST_SAID)]))
    gave_up = _GAVE_UP.search(words)
    if aborted and (before := _GAVE_UP.search(tail)):
        gave_up, words = before, clean(before.group(), MOST_SAID)
    if gave_up:
        named = tuple(int(rank) for match in _NAMED.finditer(words) for rank in re.findall(r"\d+", match[1]))
        return LogEnd(
            words=_tidied(words),
            reason=Reason.TIMED_OUT,
            ranks=named,
            traceback=False,
            place=_waits_at(thrown),
        )
    reason, cause = _reason_of_both(raised) if raised else (None, None)
    if raised is None:
        reason, cause = _reason_of(words)
    if cause is Cause.DEVICE_ASSERT and (check := _ASSERTION.search(tail)):
        words = f"{words}: {clean(check.group(), MOST_SAID)}"
    elif reason is Reason.NCCL_ERROR:
        reason, cause, words = _of_nccl(words, tail)
    elif raised is not None and (reason is not Reason.LOST_PEER or words.startswith("ray.")):
        words = (raised.words or words) + _program_words(raised, lines)
    if reason is None:
        cause = cause or _first(_CHILD, words) or _first(_LIMITS, words)
    if thrown is None:
        if reason is None and not _ERROR_LIKE.search(words):
            cause = Cause.SILENT
        elif reason is None and (code == USAGE or _ARGUMENTS.search(words)):
            cause = Cause.ARGUMENTS
        return LogEnd(words=words, reason=reason, cause=cause, traceback=False)
    if reason in (Reason.LOST_PEER, Reason.NCCL_ERROR):
        words = _tidied(words) if reason is Reason.LOST_PEER else words
        return LogEnd(words=words, reason=reason, cause=cause, traceback=False, place=_waits_at(thrown))
    is_own = not ON_REQUEST.match(words)
    place = _place(thrown) or (_place(raised.outer) if raised and raised.outer else "")
    last = not any(map(str.strip, after))
    return LogEnd(words=words, reason=reason, cause=cause, traceback=is_own, last=last, place=place)


def _program_words(raised: RootCause, lines: Sequence[str]) -> str:
    """`, after make: *** [all] Error 2`: an error above an exception that only reports a program's end."""
    if not carries(raised.thrown):
        return ""
    above = [line for line in lines[: raised.thrown.begin] if not _LOGGED.match(unprefixed(line))]
    last = _last_line(above, usage=False)
    return f", after {clean(last, MOST_SAID)}" if _ERROR_LIKE.search(last) else ""


def _reason_of_both(raised: RootCause) -> tuple[Reason | None, Cause | None]:
    """The reason by the exception that was raised in the end, else by the one that explains it."""
    heads = raised.heads
    if raised.link is Link.CONTEXT and not raised.deliberate:
        heads = heads[:1]  # the exception that was handled then may have nothing to do with it
    heads += [member.head for member in raised.thrown.members]
    return next((known for head in heads if (known := _reason_of(head)) != (None, None)), (None, None))


def _place(thrown: Thrown) -> str:
    """Return where in the project an exception was raised."""
    members = [frame for member in thrown.members[:1] for frame in member.frames]
    for frame in [*members, *thrown.frames]:
        inner = _SENT.match(frame.file)
        if inner and not frame.function:
            return f"{inner['inner']}, line {frame.line}"
        if inner:
            return f"{inner['inner']}:{frame.line}"
    return ""


def _waits_at(thrown: Thrown | None) -> str:
    """The collective in which an exception was raised, and where that was called."""
    return "" if thrown is None else ", ".join(filter(None, [collective(thrown.frames), _place(thrown)]))


def _tidied(words: str) -> str:
    """Return torch's message on a peer, without its source location and later sentences."""
    return _MORE_SENTENCES.sub("", _SOURCE.sub("", words))


def _reason_of(words: str) -> tuple[Reason | None, Cause | None]:
    if _PEER_GONE.search(words):
        return Reason.LOST_PEER, None
    if _SHARED_MEMORY.search(words):
        return Reason.SHARED_MEMORY_FULL, None
    if cause := _first(_BACKENDS, words):
        return None, cause
    if _GPU_MEMORY.search(words):
        return Reason.OUT_OF_MEMORY, Cause.GPU_MEMORY
    if _MEMORY.search(words):
        return Reason.OUT_OF_MEMORY, None
    if _NCCL.search(words):
        return Reason.NCCL_ERROR, None
    if _CUDA.search(words) and (cause := _first(_CUDA_CAUSES, words)):
        return Reason.CUDA_ERROR, cause
    if "CUDA error" in words:
        return Reason.CUDA_ERROR, None
    if _NO_MODULE.search(words):
        return Reason.MODULE_NOT_FOUND, None
    if path_not_found(words):
        return Reason.FILE_NOT_FOUND, None
    return (Reason.THREAD_AT_EXIT if words == _THREAD_AT_EXIT else None), None


def _first(patterns: Mapping[Cause, re.Pattern[str]], words: str) -> Cause | None:
    """Return the first cause whose pattern is in the words."""
    return next((cause for cause, pattern in patterns.items() if pattern.search(words)), None)


def _of_nccl(words: str, tail: str) -> tuple[Reason, Cause | None, str]:
    """Classify an NCCL error by NCCL's last error, which torch prints below its own line."""
    lines = [unprefixed(clean(line, MOST_SAID)).strip() for line in tail.split("\n")]
    last = next((after for line, after in reversed(list(pairwise(lines))) if line == _NCCL_LAST), "")
    message = f"{words}: {last}" if last else words
    if _SAME_GPU in message:
        return Reason.NCCL_ERROR, Cause.SAME_GPU, message
    if _PEER_GONE.search(last):
        return Reason.LOST_PEER, None, message
    reason, cause = _reason_of(last) if last else (None, None)
    if reason in (Reason.SHARED_MEMORY_FULL, Reason.OUT_OF_MEMORY, Reason.CUDA_ERROR):
        return reason, cause, message
    cause = _first(_CUDA_CAUSES, last)
    return (Reason.NCCL_ERROR if cause is None else Reason.CUDA_ERROR), cause, message


def child_was_killed(words: str) -> bool:
    """Return whether a process of the rank was killed, or may have been."""
    return _first(_CHILD, words) is not None


def path_not_found(words: str) -> str:
    """Return the path that does not exist, if the words name one; else an empty text.

    The path ends with / if it is a folder that a file was to be written in.
    """
    match = None if _LIBRARY in words else _NO_FILE.search(words)
    if match is None:
        return ""
    if folder := match["parent"] or match["folder"]:
        return f"{folder}/"
    return next(match[name] for name in ("quoted", "hdf5", "named", "before") if match[name])


def _last_line(lines: Sequence[str], *, usage: bool) -> str:
    """The most useful line of a log without a traceback: the last one, or an error that is near it.

    `usage`: the script refused its arguments, and may have said so above its help.
    """
    inner = [unprefixed(line).strip(BOX).strip() for line in lines]
    shown = [line for line in inner if line and not _STACK.match(line)] or inner
    last = ([line for line in shown if not _HELP.match(line)] or shown or [""])[-LOOK_BACK:]
    if _ERROR_LIKE.search(last[-1]) and not usage:
        return last[-1]
    pattern = _ERROR_LIKE if usage else _ERROR_LINE
    return next(filter(pattern.search, reversed(last)), last[-1])
