"""A node's part in a run on Ray: what Ray's workers here need to become its ranks, and a record of how each ended.

    python3 -I <folder> ray_ranks RUN_DIR CWD FIRST_RANK NPROC NAMES [COMMAND …]

Ray starts the ranks, not this process. They find `place.json` in the run's folder, and tell this process by files
there: `ranks/rank-N.began` with their pid, `ranks/rank-N.ended` with their exit status. On the first node COMMAND
is the driver, run in CWD, which has them started; its end is this process's. NAMES: the variables that the ranks are
given, separated by commas.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from remote.node import end_reasons, process
from remote.node.hangs.rank_files import hook_for_ranks, recorder_environment
from remote.node.ray import daemons
from remote.node.runs import nccl_log, supervisor
from remote.node.runs.end_facts import EndFacts
from remote.node.runs.rank_wrapper import nccl_debug, take_launch_time
from remote.shared.constants import LOGS, PLACE, RANK_BEGAN, RANK_ENDED, RANK_RECORD
from remote.shared.files import read_json, write_json

STOPS = (signal.SIGTERM, signal.SIGINT)
LOOK_S = 0.1
BEGIN_DEADLINE_S = 300.0
"""Until the ranks of a node have begun: Ray has to start their processes, which import torch."""
LEAVE_DEADLINE_S = 30.0
"""The time for all ranks of a job to end, after the ranks of this node."""
STOP_GRACE_S = 2.0
"""Wait for the stop order if ranks were killed: Ray kills them with the driver of a first node that was stopped."""
FOLLOW_S = 0.5
"""Wait for Ray's end if a rank ended without a record: Ray may have taken it along."""
WORDS_DEADLINE_S = 3.0
"""Longest wait for the report on how Ray's daemons ended."""


def main(arguments: List[str]) -> int:
    """Leave the place, watch the ranks, write `ranks/rank-N.json`; returns the exit status of the node's part."""
    run_dir, cwd, names = Path(arguments[0]), arguments[1], arguments[4].split(",")
    first, nproc, command = int(arguments[2]), int(arguments[3]), arguments[5:]
    launched_at = take_launch_time()
    nccl = nccl_debug(os.environ, nccl_file(run_dir, "%p"))
    variables = {name: os.environ[name] for name in names if name in os.environ}
    ranks = [Rank(run_dir, first + number, number, launched_at) for number in range(nproc)]
    ray = Ray(run_dir.name)
    driver = None  # type: Optional[subprocess.Popen[bytes]]
    try:
        for number in STOPS:
            signal.signal(number, _raise_stopped)
        recorder = recorder_environment(os.environ, run_dir)
        place = {"cwd": cwd, "env": dict(variables, **nccl, **recorder)}  # type: Dict[str, Any]
        write_json(run_dir / PLACE, dict(place, hook=hook_for_ranks(run_dir)) if recorder else place)
        try:
            driver = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL) if command else None
        except OSError as error:
            return _fail(run_dir, end_reasons.not_started(command[0], error))
        status = watch(ranks, driver, ray, run_dir)
        why = why_ended(ray, ranks) if status else None
        _ignore_stops()
    except Stopped:
        status = 128 + signal.SIGTERM
        # Another node's ranks may tell that they lost this one's before Ray's end is seen here.
        why = why_ended(ray, ranks)
        # The built-in job saves at its epochs' ends, and has nothing to do at its own.
        for rank in ranks:
            rank.kill()
        if driver is not None:
            driver.kill()
    finally:
        supervisor.forget_place(run_dir)
    return _fail(run_dir, why, status) if why else status


class Stopped(Exception):
    """This process got the order to end."""


def _raise_stopped(_number: int, _frame: object) -> None:
    _ignore_stops()
    raise Stopped


def _ignore_stops() -> None:
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


class Ray:
    """The node's Ray, as it is when the run begins."""

    def __init__(self, node: str) -> None:
        self._folder = daemons.folder_of(node)
        self._ours = bool(read_json(self._folder / "node.json"))
        self._vital = daemons.vital_processes(self._folder)

    def ended(self) -> bool:
        """Return whether it has ended. Its keeper takes seconds to follow, and is read if the daemons are not known.

        One that gpuctl did not start is the first process of this container, and takes this one along.
        """
        if not self._ours:
            return False
        if self._vital:
            return not all(process.alive(pid, born) for pid, born in self._vital.items())
        return not daemons.running(self._folder)

    def why(self) -> Dict[str, Any]:
        """Return the reason for its end, once its keeper has reported, or after a moment."""
        limit = time.monotonic() + WORDS_DEADLINE_S
        while daemons.running(self._folder) and time.monotonic() < limit:
            time.sleep(LOOK_S)
        return end_reasons.ended(end_reasons.RAY_ENDED, detail=daemons.last_words(self._folder))


def nccl_file(run_dir: Path, pid: str) -> str:
    """Return the file for NCCL's log of a process; `%p` stands for its pid."""
    return str(run_dir / LOGS / "nccl-{}.log".format(pid))


class Rank:
    """A rank of the node, as its files show it."""

    def __init__(self, run_dir: Path, rank: int, local_rank: int, launched_at: float) -> None:
        self.rank = rank
        self._run_dir = run_dir
        self._record = {
            "rank": rank,
            "local_rank": local_rank,
            "launched_at": launched_at,
        }  # type: Dict[str, Any]
        self._birth = None  # type: Optional[str]
        self._facts = None  # type: Optional[EndFacts]
        self.began = False
        self.ended = False
        self.late = False
        """Whether it had not begun when it should have."""
        self.exit_code = None  # type: Optional[int]
        """`None`: not known."""

    @property
    def pid(self) -> Optional[int]:
        """Its process, once it has begun."""
        return self._record.get("pid")

    def poll(self) -> None:
        """Keep the record up to date."""
        if not self.began:
            began = read_json(self._path(RANK_BEGAN))
            if not began:
                return
            pid = began["pid"]
            self.began, self._birth = True, process.birth(pid)
            # Its process leads a group of its own, so that it can be ended with all that it started.
            self._record.update(pid=pid, started_at=began["at"], group=pid, birth=self._birth)
            self._write()
            self._facts = EndFacts(pid)
        if not self.ended:
            if self._facts:
                self._facts.poll()
            alive = self._birth is not None and process.alive(self._record["pid"], self._birth)
            # After the look at its process: a record that it wrote at its end exists then.
            ended = read_json(self._path(RANK_ENDED))
            if ended or not alive:
                exit_code = ended.get("exit_code")
                nccl = nccl_file(self._run_dir, str(self._record["pid"]))
                self._record.update(ended_at=ended.get("at", time.time()), exit_code=exit_code)
                self._record.update(transports=nccl_log.read(nccl))
                if exit_code != 0 and self._facts:
                    interface = os.environ.get("NCCL_SOCKET_IFNAME", "")
                    self._record.update(facts=self._facts.document(nccl, interface))
                self._write()
                self.ended, self.exit_code = True, exit_code

    def wait_until_gone(self, deadline_s: float) -> None:
        """Return when its process has ended, or after the deadline."""
        limit = time.monotonic() + deadline_s
        while self._birth is not None and process.alive(self._record["pid"], self._birth):
            if time.monotonic() > limit:
                return
            process.wait_for_end([self._record["pid"]], LOOK_S)

    def kill(self) -> None:
        """Kill its process, and what that started."""
        if not self.ended and self._birth is not None and process.alive(self._record["pid"], self._birth):
            process.signal_group(self._record["pid"], signal.SIGKILL)

    def _path(self, kind: str) -> Path:
        return self._run_dir / kind.format(self.rank)

    def _write(self) -> None:
        write_json(self._path(RANK_RECORD), self._record)


def watch(ranks: List[Rank], driver: "Optional[subprocess.Popen[bytes]]", ray: Ray, run_dir: Path) -> int:
    """Follow the ranks, and return the exit status of this node's part.

    On the driver's node it ends with the driver, elsewhere with the last rank; on any node with Ray itself.
    """
    limit = time.monotonic() + BEGIN_DEADLINE_S
    while True:
        over = driver is not None and driver.poll() is not None
        for rank in ranks:
            rank.poll()
        if driver is not None and over:
            return driver.returncode if driver.returncode >= 0 else 128 - driver.returncode
        if driver is None and all(rank.ended for rank in ranks):
            # Ray still has to take note of the end, and with this process's end they would be killed.
            gone_by = time.monotonic() + LEAVE_DEADLINE_S
            for rank in ranks:
                rank.wait_until_gone(gone_by - time.monotonic())
            if any(rank.exit_code is None for rank in ranks):
                time.sleep(STOP_GRACE_S)
            return _judge(ranks)
        if ray.ended():
            # The driver would wait for another head for a minute, and the other nodes' ranks with it.
            gone_by = time.monotonic() + STOP_GRACE_S
            for rank in ranks:
                rank.wait_until_gone(gone_by - time.monotonic())
                rank.poll()
            if driver is None:
                return _judge(ranks)
            driver.terminate()
            return 1
        if all(rank.began for rank in ranks):
            supervisor.forget_place(run_dir)
        elif time.monotonic() > limit:
            for rank in ranks:
                rank.late = not rank.began
            if driver is not None:
                driver.terminate()
            return 1
        # At once, not at the next look: times decide which rank ended first.
        at_work = [rank.pid for rank in ranks if rank.pid is not None and not rank.ended]
        process.wait_for_end(at_work if driver is None else [driver.pid, *at_work], LOOK_S)


def _judge(ranks: List[Rank]) -> int:
    """0 where all ranks ended well."""
    return next((1 if rank.exit_code is None else rank.exit_code for rank in ranks if rank.exit_code != 0), 0)


def why_ended(ray: Ray, ranks: List[Rank]) -> Optional[Dict[str, Any]]:
    """Return the reason for the end of the node's part, also of a stop; `None` if a rank or driver explains it."""
    if ended_with_ray(ray, ranks):
        return ray.why()
    for rank in ranks:
        if rank.late:
            return end_reasons.ended(end_reasons.RAY_LATE, rank=rank.rank, seconds=BEGIN_DEADLINE_S)
    return None


def ended_with_ray(ray: Ray, ranks: List[Rank]) -> bool:
    """Return whether Ray has ended here. After a silent end of ranks Ray gets a moment, as it takes them along."""
    limit = time.monotonic() + FOLLOW_S
    while not ray.ended():
        for rank in ranks:
            rank.poll()
        if time.monotonic() > limit or not any(rank.ended and rank.exit_code is None for rank in ranks):
            return False
        time.sleep(LOOK_S)
    for rank in ranks:
        rank.poll()
    return True


def in_words(ended: Dict[str, Any]) -> str:
    """Describe the end for readers of the launcher's log; `reason.json` has it for gpuctl."""
    detail = ": {}".format(ended["detail"]) if ended.get("detail") else ""
    if ended["reason"] == end_reasons.NOT_STARTED:
        return "{} could not be started{}".format(ended["program"], detail)
    if ended["reason"] == end_reasons.RAY_LATE:
        return "Ray did not start rank {} within {:.0f} s".format(ended["rank"], ended["seconds"])
    return "Ray ended during the run{}".format(detail)


def _fail(run_dir: Path, ended: Dict[str, Any], status: int = 1) -> int:
    sys.stderr.write("gpuctl: this node's part ended: {}\n".format(in_words(ended)))
    supervisor.explain(run_dir, ended)
    return status
