"""Run a benchmark's sections in another process, so that a failure or a timeout affects only its own section.

The process reports its results line by line. If a section raises, the failure is recorded, and the next section runs
in the same process if that still works. If a section takes too long, or its process ends, the failure is recorded
with the results so far, and the next section gets a new process. Standard library only.

A line is a JSON object: {"section", "event": "begin"}, {"section", "event": "value", "path": [..], "value"},
{"section", "event": "check", "name", "ok", "said"}, or, with "status" being "done" or "failed",
{"section", "event": "end", "status", "error"}.
"""

import json
import os
import select
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

Document = dict[str, Any]
Start = Callable[[Sequence["Section"], int], "subprocess.Popen[Any]"]
"""Starts a process, in a process group of its own, that runs these sections and writes its lines to that handle."""

MIN_S = 2.0
"""Minimum time left for a section to begin."""
MARGIN = 0.9
"""Fraction of its time after which a section should end."""
END_S = 10.0
"""Timeout for a killed process to end. A process that hangs in a driver is left to the system."""
MAX_ERROR = 2000


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the benchmark."""

    name: str
    limit_s: float
    alone: bool = False
    """Whether the section needs its own process."""
    until: float = 0.0
    """Time at which it has to end (monotonic), set by `timetable`."""


class NoTime(Exception):
    """Too little time was left to measure anything."""


class Tell:
    """Writes a section's results while it runs."""

    def __init__(self, handle: int, section: str) -> None:
        self._handle = handle
        self._section = section

    def value(self, *path: str, value: object) -> None:
        """Write a result, at that path in the section's part of the document."""
        self._line(event="value", path=list(path), value=value)

    def check(self, name: str, *, ok: bool, details: str) -> None:
        """Write whether a check holds, and its details."""
        self._line(event="check", name=name, ok=ok, said=details)

    def begin(self) -> None:
        """Write that the section begins."""
        self._line(event="begin")

    def end(self, status: str = "done", error: str | None = None) -> None:
        """Write that the section has ended."""
        self._line(event="end", status=status, error=error)

    def _line(self, **values: object) -> None:
        line = json.dumps({"section": self._section, **values}, default=str).encode() + b"\n"
        while line:
            line = line[os.write(self._handle, line) :]


def work(
    sections: Sequence[Section],
    runs: Callable[[Section, Tell, float], None],
    usable: Callable[[], bool],
    handle: int,
) -> None:
    """Run the sections in turn, each until its time (monotonic). Runs in the other process.

    `usable`: whether the process can run another section.
    """
    for section in sections:
        tell = Tell(handle, section.name)
        tell.begin()
        now = time.monotonic()
        section_until = now + MARGIN * max(0.0, section.until - now)
        try:
            runs(section, tell, section_until)
        except NoTime as error:
            tell.end("out of time", str(error))
        # Of any kind: it is recorded, and the next section has its turn. A command that failed raises SystemExit.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            traceback.print_exc()
            tell.end("failed", f"{type(error).__name__}: {error}"[:MAX_ERROR])
        else:
            tell.end()
        if not usable():
            return


def timetable(sections: Sequence[Section], began: float, until: float) -> list[Section]:
    """Divide the time from `began` to `until` (monotonic) in proportion to the sections' limits.

    A section also has all that earlier ones leave; a section that takes too long is ended, at the cost of no other.
    """
    scale = (until - began) / sum(section.limit_s for section in sections)
    ends = list(accumulate((section.limit_s * scale for section in sections), initial=began))
    return [replace(section, until=end) for section, end in zip(sections, ends[1:], strict=True)]


def run(
    sections: Sequence[Section], start: Start, document: Document, *, until: float, keep: Callable[[], None]
) -> None:
    """Run all sections before that time (monotonic); results go into the document's `sections` and `checks`.

    `keep` is called after each section.
    """
    waiting = timetable(sections, time.monotonic(), until)
    for section in waiting:
        document["sections"][section.name] = {"status": "not run", "error": None, "seconds": None}
    while waiting:
        if waiting[0].until - time.monotonic() < MIN_S:
            document["sections"][waiting.pop(0).name]["error"] = "no time was left for it"
            continue
        reader, writer = os.pipe()
        together = _together(waiting)
        try:
            process = start(together, writer)
        finally:
            os.close(writer)
        following = _Following(document, together, keep)
        try:
            following.follow(reader, process)
        finally:
            os.close(reader)
            end(process)
        over = {section.name for section in together} & following.over
        waiting = [section for section in waiting if section.name not in over]
    keep()


def _together(waiting: Sequence[Section]) -> list[Section]:
    """Return the sections for the next process."""
    if waiting[0].alone:
        return [waiting[0]]
    alone = next((index for index, section in enumerate(waiting) if section.alone), len(waiting))
    return list(waiting[:alone])


class _Following:
    """Reads the results of a process's sections."""

    def __init__(self, document: Document, sections: Sequence[Section], keep: Callable[[], None]) -> None:
        self.over: set[str] = set()
        self._document = document
        self._ends = {section.name: section.until for section in sections}
        self._keep = keep
        self._current: str | None = None
        self._began = time.monotonic()
        self._rest = b""

    def follow(self, reader: int, process: "subprocess.Popen[Any]") -> None:
        """Read until all sections have ended, the process ends, or a section takes too long."""
        while True:
            left_s = self._ends[self._turn()] - time.monotonic()
            if left_s <= 0:
                return self._lost(
                    "out of time", f"it took longer than the {self._seconds():.0f} s that it had"
                )
            if not select.select([reader], [], [], left_s)[0]:
                continue
            data = os.read(reader, 65536)
            if not data:
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            if self.over.issuperset(self._ends):
                return None
        if self._current is not None or not self.over:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            self._lost("failed", f"its process ended with status {process.returncode}")
        return None

    def _take(self, line: Mapping[str, Any]) -> None:
        name, event = line["section"], line["event"]
        part = self._document["sections"][name]
        if event == "begin":
            self._current, self._began = name, time.monotonic()
            part["status"] = "running"
        elif event == "value":
            for step in line["path"][:-1]:
                part = part.setdefault(step, {})
            part[line["path"][-1]] = line["value"]
        elif event == "check":
            checked = {"section": name, "name": line["name"], "ok": line["ok"], "said": line["said"]}
            self._document["checks"].append(checked)
        else:
            self._end(name, line["status"], line["error"])

    def _end(self, name: str, status: str, error: str | None) -> None:
        part = self._document["sections"][name]
        part["status"], part["error"], part["seconds"] = status, error, round(self._seconds(), 2)
        self.over.add(name)
        self._current, self._began = None, time.monotonic()
        self._keep()

    def _lost(self, status: str, error: str) -> None:
        self._end(self._turn(), status, error)

    def _turn(self) -> str:
        """Return the running section, or else the next."""
        return self._current or next(name for name in self._ends if name not in self.over)

    def _seconds(self) -> float:
        return time.monotonic() - self._began


def end(process: "subprocess.Popen[Any]") -> None:
    """Kill a process and its children, which are in its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)


def status_of(document: Document) -> int:
    """Return the exit status: 1 if a check or a section failed, 4 if a section had no time left, else 0."""
    states = [section["status"] for section in document["sections"].values()]
    if "failed" in states or not all(check["ok"] for check in document["checks"]):
        return 1
    return 0 if all(state == "done" for state in states) else 4
