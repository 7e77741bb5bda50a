"""Stacks as faulthandler and torch's worker server write them: where in the script a rank is. Pure."""

import re
from dataclasses import dataclass

from remote.shared.constants import CODE, NODE_FOLDER

CRASHED = ("Current thread ", "Stack (most recent call first):")
"""The header of the thread that crashed, among all and alone."""
HEADERS = ("Thread ", *CRASHED)
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_CODE = re.compile(rf"(.*/{re.escape(NODE_FOLDER)}/{CODE})/[^/]+/")
"""The folder on a node of all that was sent."""
_C10D = re.compile(r"/torch/distributed/(distributed_c10d|_functional_collectives|nn/functional)\.py$")
_PIPELINE = ("/torch/distributed/pipelining/schedules.py", "_wait_batch_p2p")
"""Where a stage of torch's pipelines waits for another one."""
_OF_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/")
_LOADER = "/torch/utils/data/dataloader.py"
_FETCH = "/torch/utils/data/_utils/fetch.py"
_WAITS_FOR_WORKER = ("_try_get_data", "_get_data")
_AT_EXIT = (
    "_shutdown",
    "_exit_function",
    "_run_exitfuncs",
    "_python_exit",
    "_exitfunc",
    "destroy_process_group",
)
"""Functions that Python calls when the script is over."""
_PASSED_OVER = ("wrapper", "inner", "__init__")


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A line of Python that a thread is at."""

    file: str
    line: int
    function: str

    @property
    def place(self) -> str:
        """`load_batch, data.py:41`."""
        where = f"{self.file}:{self.line}"
        return where if self.function == "<module>" else f"{self.function}, {where}"


def threads(text: str) -> list[list[Frame]]:
    """Return each thread's frames, the innermost first; threads without any are left out. The main thread is last."""
    stacks: list[list[Frame]] = []
    for line in text.splitlines():
        if line.startswith(HEADERS):
            stacks.append([])
        elif (frame := _FRAME.match(line)) and stacks:
            stacks[-1].append(Frame(file=frame["file"], line=int(frame["line"]), function=frame["function"]))
    return [thread for thread in stacks if thread]


def main_thread(text: str) -> list[Frame]:
    """Return the main thread's frames."""
    return next(reversed(threads(text)), [])


def ends(text: str) -> bool | None:
    """Return whether the main thread has left the script and ends Python; `None`: it is not known."""
    headers = [line for line in text.splitlines() if line.startswith(HEADERS)]
    if not headers:
        return None
    frames = [frame for thread in threads(text[text.rindex(headers[-1]) :]) for frame in thread]
    return not frames or frames[-1].function in _AT_EXIT


def script_thread(text: str, code: str) -> list[Frame]:
    """Return the frames of the thread that runs the script.

    It is the main one, unless another has frames in the files sent: Ray and some trainers run the script in a
    thread of its own.
    """
    main = main_thread(text)
    sent = f"{code}/"
    if not code or any(frame.file.startswith(sent) for frame in main):
        return main
    sent_threads = (
        frames for frames in threads(text) if any(frame.file.startswith(sent) for frame in frames)
    )
    return next(sent_threads, main)


def in_project(frames: list[Frame], code: str) -> Frame | None:
    """Return the innermost frame in the files that were sent, without their folder in its path.

    `code`: the node's folder of these files. Without such a frame: the innermost frame outside of libraries.
    """
    for frame in frames:
        before, mark, rest = frame.file.partition(f"{code}/")
        if code and mark and not before:
            return Frame(file=rest.partition("/")[2] or rest, line=frame.line, function=frame.function)
    outside_libraries = (
        frame for frame in frames if not frame.file.startswith("<") and not _OF_LIBRARY.search(frame.file)
    )
    return next(outside_libraries, None)


def crashed_at(text: str) -> str:
    """Return where in the script C code was called that crashed: `load_batch, data.py:41`; empty: not known."""
    begins = max(map(text.find, CRASHED))
    frames = [] if begins < 0 else threads(text[begins:].split("\n\n")[0])
    if not frames:
        return ""
    sent = next((code[1] for frame in frames[0] if (code := _CODE.match(frame.file))), "")
    at = in_project(frames[0], sent)
    return "" if at is None else at.place


def collective(frames: list[Frame]) -> str | None:
    """Return the collective in a thread's stack: `all_reduce`. `None`: no collective."""
    if any(frame.file.endswith(_PIPELINE[0]) and frame.function == _PIPELINE[1] for frame in frames):
        return "batch_isend_irecv"
    names = [frame.function for frame in frames if _C10D.search(frame.file)]
    return next((name for name in names if not name.startswith("_") and name not in _PASSED_OVER), None)


def waits_for_data(frames: list[Frame]) -> bool:
    """Return whether a thread waits for a DataLoader's worker."""
    return any(frame.file.endswith(_LOADER) and frame.function in _WAITS_FOR_WORKER for frame in frames)


def fetches_data(frames: list[Frame]) -> bool:
    """Return whether a DataLoader's worker is preparing a batch."""
    return any(frame.file.endswith(_FETCH) for frame in frames)
