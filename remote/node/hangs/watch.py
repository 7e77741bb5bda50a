"""Notices on its node that a run makes no progress any more, and writes down what its ranks are doing then.

A step is a line of metrics, or a collective that has ended. How long a rank may take for one follows from its own
past. Before the first it has minutes since it began, or last wrote into its log: it may load data or compile, but
may also wait for a rank that never comes. A report is no hang yet: the comparison of all ranks decides. Where a
script says nothing by its metrics, torch's flight recorder is asked, now and then.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from remote.node import process
from remote.node.hangs import worker_server
from remote.node.hangs.rank_files import rank_files
from remote.node.hangs.rank_hook.sitecustomize import note
from remote.node.hangs.why import PROBLEMS, examine_ranks
from remote.shared import constants
from remote.shared.files import read_json, write_json

LEAST_S = 120.0
START_S = 300.0
TIMES_START = 5
"""Before the first step: this time, or this multiple of a person's limit, if that is less."""
TIMES_USUAL = 20
TIMES_LONGEST = 2
TICK_S = 5.0
ASK_S = 30.0
"""The pause between questions to the flight recorder while the metrics are silent, and before a report: to write it
down takes a rank some 50 ms."""
STEPS_KEPT = 512
NICENESS = 10
FIRST_COLLECTIVES = 20
"""The maximum number of collectives before a script's first step: barriers, and copies of the model to all ranks."""
FIRST_LINES, FIRST_BYTES = 1, 65536
"""Of metrics: one line may tell of the start."""
NO_PULSE = worker_server.Pulse(entered=[], under_way=0)
WATCHED = constants.HANGS + "/watched"
"""In the run's folder: the claim to watch it, with the watch's pid."""


class Progress:
    """When steps came, and how long the next may take. Times are monotonic seconds."""

    def __init__(self, after_s: Optional[float]) -> None:
        """`after_s`: a person's limit; `None`: by the run's own past."""
        self._after_s = after_s
        self._began = None  # type: Optional[float]
        self._sign_at = None  # type: Optional[float]
        self._stepped = None  # type: Optional[float]
        self._took: List[float] = []
        self._longest_s = 0.0
        self._told_s = 0.0

    def began(self, now: float) -> None:
        """Note that ranks have begun, on the first call."""
        if self._began is None:
            self._began = now

    def sign(self, now: float, *, step: bool, took: Sequence[float] = ()) -> None:
        """Take a sign of life; `step`: it is one of progress. `took`: how long steps took since the last sign."""
        if step:
            if not took and self._stepped is not None:
                took = [now - self._stepped]
            self._took = [*self._took, *took][-STEPS_KEPT:]
            self._longest_s = max(self._longest_s, *took, 0.0)
            self._stepped = now
        self._sign_at = now if self._sign_at is None else max(self._sign_at, now)
        self._told_s = 0.0

    @property
    def allowed_s(self) -> Optional[float]:
        """Return how long the run may be silent. `None`: for ever, as no rank has begun yet."""
        if self._since is None:
            return None
        if self._stepped is None:
            after_s = self._after_s
            return START_S if after_s is None else max(after_s, min(START_S, TIMES_START * after_s))
        if self._after_s is not None:
            return self._after_s
        usual_s = sorted(self._took)[int(len(self._took) * 0.95)] if self._took else 0.0
        return max(LEAST_S, TIMES_USUAL * usual_s, TIMES_LONGEST * self._longest_s)

    @property
    def _since(self) -> Optional[float]:
        """When it last gave a sign of life, else when it began."""
        return self._began if self._sign_at is None else self._sign_at

    def silent_s(self, now: float) -> float:
        """Return how long the run has been silent."""
        return 0.0 if self._since is None else now - self._since

    def is_due(self, now: float) -> bool:
        """Return whether to tell that it hangs: when it was silent for too long, and each time that has doubled."""
        allowed_s = self.allowed_s
        return allowed_s is not None and self.silent_s(now) >= max(allowed_s, 2 * self._told_s)

    def step(self, now: float) -> None:
        """Note a sign of progress."""
        self._told_s = self.silent_s(now)


def begin(run_dir: Path, environment: Mapping[str, str]) -> None:
    """Watch the run from a process of its own until its supervisor has ended. Returns at once.

    A second call for the same run does nothing, and neither does one for a run that is not to be watched. A run is
    worth more than its watch: without it if no process can be started.
    """
    supervisor = read_json(run_dir / "runner.json")
    after = environment.get(constants.HANG_AFTER_VARIABLE, "")
    if not supervisor or after == constants.HANG_OFF:
        return
    try:
        (run_dir / constants.HANGS).mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(str(run_dir / WATCHED), os.O_CREAT | os.O_EXCL, 0o600))
        process.detach(lambda: Watch(run_dir, float(after) if after else None).keep_on(supervisor))
    except OSError:
        return


class Watch:
    """Looks at the files of a node's ranks, and asks them where these say nothing."""

    def __init__(self, run_dir: Path, after_s: Optional[float]) -> None:
        self._run_dir = run_dir
        self._progress = Progress(after_s)
        self._last_state = {}  # type: Dict[str, Any]
        self._pulses = {}  # type: Dict[int, worker_server.Pulse]
        self._asked_at = 0.0
        self._problem = ""
        self._tick_s = TICK_S if after_s is None else min(TICK_S, max(0.5, after_s / 5))
        self._ask_s = ASK_S if after_s is None else min(ASK_S, 2 * self._tick_s)

    def keep_on(self, supervisor: Mapping[str, Any]) -> None:
        """Watch until the supervisor has ended; a look that fails is followed by another."""
        os.nice(NICENESS)
        (self._run_dir / WATCHED).write_text(str(os.getpid()))
        while process.lives_on(supervisor["pid"], supervisor["birth"], self._tick_s):
            try:
                self.poll(time.monotonic())
            except PROBLEMS as error:
                problem = "{!r}".format(error)
                if problem != self._problem:
                    self._problem = problem
                    note(str(self._run_dir / WATCHED), problem)

    def poll(self, now: float) -> None:
        """Take new signs, and write a report after too long a silence.

        Output of ranks as they are ended is no sign: the report stays.
        """
        if (self._run_dir / "stop").exists():
            return
        records = self._run_dir.glob(constants.RANK_RECORD.format("*"))
        ranks = sorted(int(path.stem.rpartition("-")[2]) for path in records)
        if ranks:
            self._progress.began(now)
        logs, steps = (
            self._changed({name.format(rank): self._size(name.format(rank)) for rank in ranks})
            for name in (constants.RANK_LOG, constants.RANK_METRICS)
        )
        if logs or steps:
            self._progress.sign(now, step=steps)
        if not steps and (now - self._asked_at >= self._ask_s or self._progress.is_due(now)):
            self._asked_at = now
            pulses = [self._take_pulse(rank, now) for rank in ranks]
            steps = any(pulses)
        if logs or steps:
            # The run makes progress: its report is withdrawn.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(str(self._run_dir / constants.HANG_REPORT))
        if self._progress.is_due(now):
            report = {
                "silent_s": self._progress.silent_s(now),
                "allowed_s": self._progress.allowed_s,
                "stepped": any(map(self._has_stepped, ranks)),
                "ranks": examine_ranks(self._run_dir, ranks),
            }
            # Ranks that are just being ended have nothing to tell of the hang.
            if not (self._run_dir / "stop").exists():
                write_json(self._run_dir / constants.HANG_REPORT, report)
            self._progress.step(now)

    def _size(self, name: str) -> int:
        try:
            return os.lstat(str(self._run_dir / name)).st_size
        except OSError:
            return 0

    def _take_pulse(self, rank: int, now: float) -> bool:
        path = rank_files(self._run_dir, rank) + ".sock"
        pulse = worker_server.pulse(path) if os.path.exists(path) else None
        before = self._pulses.get(rank, NO_PULSE)
        if pulse is None or pulse == before or not pulse.entered:
            return False
        self._pulses[rank] = pulse
        since = before.entered[-1:]
        new = since + [at for at in pulse.entered if not since or at > since[0]]
        # One that has only ended did so at a time that is not known.
        age_s = max(0.0, time.time() - new[-1]) if pulse.entered != before.entered else 0.0
        took = [later - earlier for earlier, later in zip(new, new[1:])]
        self._progress.sign(now - age_s, step=True, took=took)
        return True

    def _changed(self, state: Dict[str, Any]) -> bool:
        """Return whether any value has changed since the last look; a missing one counts as 0."""
        changed = any(self._last_state.get(name, 0) != value for name, value in state.items())
        self._last_state.update(state)
        return changed

    def _has_stepped(self, rank: int) -> bool:
        """Return whether a rank is known to have made a step, and not only to have prepared for one."""
        if len(self._pulses.get(rank, NO_PULSE).entered) > FIRST_COLLECTIVES:
            return True
        try:
            with open(str(self._run_dir / constants.RANK_METRICS.format(rank)), "rb") as file:
                return file.read(FIRST_BYTES).count(b"\n") > FIRST_LINES
        except FileNotFoundError:
            return False
