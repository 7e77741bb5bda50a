"""Ends a run whose GPUs were below a limit for a time, on all its nodes: by the nodes alone, so without the client.

Each node measures its own GPUs. The first node listens; the others report to it, and it decides for all of them and
answers when the run ends. A node without a report, or with a GPU whose use is not known, counts as one in use.
"""

import contextlib
import math
import time
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from remote.node import end_reasons, signed_lines
from remote.node.runs import supervisor
from remote.shared.constants import LOGS

WINDOW_S = 60.0
"""The use of a GPU is averaged over this time. A mean at or above the limit starts the time below it anew."""
REPORT_S = 10.0
STALE_REPORTS = 3
"""A report counts for this multiple of the time between reports."""
PARTS = 4
"""If the limit's time is short, a window and the time between reports are this part of it."""
SLACK_S = 5.0
"""The nodes take samples at most this far apart."""
MAX_MESSAGE = 1024


class TimeBelow:
    """The time for which all GPUs of a node have been below a limit."""

    def __init__(self, limit: float, window_s: float) -> None:
        """`limit`: a fraction, 0 .. 1."""
        self._limit = limit
        self._window_s = window_s
        self._samples: List[Mapping[str, Any]] = []
        self.seconds = 0.0

    def add(self, sample: Mapping[str, Any]) -> None:
        """Take a sample of the node's use. It counts once its window is full."""
        self._samples.append(sample)
        seconds = sum(each["seconds"] for each in self._samples)
        if seconds >= self._window_s:
            use = mean_use(self._samples)
            self.seconds = self.seconds + seconds if use is not None and use < self._limit else 0.0
            self._samples.clear()


def mean_use(samples: Sequence[Mapping[str, Any]]) -> Optional[float]:
    """Return the mean use of the busiest GPU, 0 .. 1. `None`: a GPU's use was not known, or no GPU exists."""
    indices = [gpu["index"] for gpu in samples[-1]["gpus"] or []]
    if not indices or any([gpu["index"] for gpu in sample["gpus"] or []] != indices for sample in samples):
        return None
    if any(gpu["utilization"] is None for sample in samples for gpu in sample["gpus"]):
        return None
    total_s = sum(sample["seconds"] for sample in samples)
    weighted_s = [[sample["seconds"] * gpu["utilization"] for gpu in sample["gpus"]] for sample in samples]
    return float(max(map(sum, zip(*weighted_s))) / total_s)


class Reports:
    """The reports of a run's nodes, and the decision. Times are monotonic seconds."""

    def __init__(self, nodes: Sequence[str], for_s: float, report_s: float) -> None:
        self._nodes = nodes
        self._for_s = for_s
        self._stale_s = STALE_REPORTS * report_s + SLACK_S
        self._notice_s = 2 * report_s + SLACK_S
        """Until then, every node has asked again, and knows the end."""
        self._reports: Dict[str, Tuple[float, float]] = {}
        self._ends_at: Optional[float] = None
        self._lock = Lock()

    def report(self, node: str, below_s: Optional[float], now: float) -> Optional[float]:
        """Take a node's report; `None`: its part of the run has ended. Returns when the run ends; `None`: not yet."""
        with self._lock:
            self._reports[node] = (math.inf, math.inf) if below_s is None else (below_s, now)
            if self._ends_at is None and all(self._is_over(each, now) for each in self._nodes):
                self._ends_at = now + (self._notice_s if len(self._nodes) > 1 else 0.0)
            return self._ends_at

    def _is_over(self, node: str, now: float) -> bool:
        below_s, at = self._reports.get(node, (0.0, now))
        return below_s >= self._for_s and now - at <= self._stale_s


class GpuWatch:
    """Looks at the samples of a node's use, and ends the run on the node when all nodes are to end."""

    def __init__(self, run_dir: Path, node: str, settings: Mapping[str, Any]) -> None:
        """Settings: `below`, `for_s`, `nodes` (their names), `address` and `port` of the first one, `key`."""
        self._run_dir = run_dir
        self._node = node
        self._settings = settings
        self._for_s = float(settings["for_s"])
        self._report_s = min(REPORT_S, self._for_s / PARTS)
        self._below = TimeBelow(settings["below"], min(WINDOW_S, self._for_s / PARTS))
        self._key = settings["key"].encode()
        self._reports = Reports(settings["nodes"], self._for_s, self._report_s)
        self._address = (settings["address"], settings["port"])
        self._server: Optional[signed_lines.Server] = None
        self._reported_at: Optional[float] = None
        self._is_over = False
        self._failures = 0

    def close(self) -> None:
        """Report to the first node that the run has ended here: the GPUs of this node do nothing for it."""
        if self._settings["nodes"][0] != self._node and not self._is_over:
            with contextlib.suppress(OSError, ValueError, TypeError):  # the first node has ended, too
                self._ask(None)

    def add(self, sample: Mapping[str, Any]) -> None:
        """Take a sample; report, and at the run's end wait for its time and tell the supervisor."""
        self._below.add(sample)
        now = time.monotonic()
        if self._is_over or (self._reported_at is not None and now - self._reported_at < self._report_s):
            return
        self._reported_at = now
        try:
            ends_in_s = self._ends_in_s(now)
        except (OSError, ValueError, TypeError) as error:
            self._warn(error)  # without an answer the others' use is not known, and the next may come
            return
        self._failures = 0
        if ends_in_s is not None:
            self._is_over = True
            time.sleep(max(0.0, ends_in_s))
            facts = {"seconds": self._for_s, "percent": self._settings["below"] * 100}
            supervisor.tell_to_stop(self._run_dir, end_reasons.GPUS_IDLE, facts=facts)

    def _warn(self, error: Exception) -> None:
        """Write a failure that lasts into the node's log, once: until it is over, nothing ends the run."""
        self._failures += 1
        if self._failures != STALE_REPORTS:  # the nodes do not start at the same moment
            return
        address = "{}:{}".format(self._settings["address"], self._settings["port"])
        line = "gpuctl: --end-if-gpu-below ends nothing until the nodes share their GPUs' use at {}: {}\n"
        with contextlib.suppress(OSError), open(
            str(self._run_dir / LOGS / "{}.log".format(self._node)), "a"
        ) as log:
            log.write(line.format(address, error))

    def _ends_in_s(self, now: float) -> Optional[float]:
        """Report the time, and return the time until the run ends. `None`: it continues."""
        settings = self._settings
        if settings["nodes"][0] != self._node:
            return self._ask(self._below.seconds)
        if len(settings["nodes"]) > 1 and self._server is None:
            self._server = signed_lines.Server(self._address, self._key, self._answer, MAX_MESSAGE)
            Thread(target=self._server.serve_forever, daemon=True).start()
        ends_at = self._reports.report(self._node, self._below.seconds, now)
        return None if ends_at is None else ends_at - now

    def _answer(self, message: Dict[str, Any]) -> Dict[str, Any]:
        """Take another node's report."""
        now = time.monotonic()
        ends_at = self._reports.report(message["node"], message["below_s"], now)
        return {"ends_in_s": None if ends_at is None else ends_at - now}

    def _ask(self, below_s: Optional[float]) -> Optional[float]:
        report = {"node": self._node, "below_s": below_s}
        answer = signed_lines.ask(self._address, self._key, report, MAX_MESSAGE)
        return None if answer is None else answer["ends_in_s"]
