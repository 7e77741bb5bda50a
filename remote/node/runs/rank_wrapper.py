"""Around one rank: its log, its metrics file, and a record of how it ended.

    python3 -I <folder> rank RUN_DIR CWD -- COMMAND …

torchrun starts this in the rank's place, with RANK and LOCAL_RANK set. A script that drives a Ray cluster has
neither, and is the only one.
"""

import json
import math
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, List, Mapping, Optional, Tuple, Union

from remote.node import end_reasons, process
from remote.node.hangs.rank_files import has_joined, hook_environment
from remote.node.runs import nccl_log
from remote.node.runs.end_facts import EndFacts
from remote.node.runs.fork import SIGNALS, Fork, end_by
from remote.shared import constants
from remote.shared.files import write_json

LOOK_S = 2.0
"""How often NCCL's log is looked at while nothing is in it; it says all within the first step."""
METRICS_LOOK_S = 0.1
"""The pause between looks at a metrics file without samples."""
METRICS_BYTES = 65536
"""Of the metrics file's end: no line of metrics is longer."""
METRICS_LINES = 10
"""Lines at the file's end that are searched for samples: lines of an evaluation may be without."""

WANDB_CHOICES = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID")
"""Variables by which users choose the runs of W&B themselves."""

Samples = Tuple[Optional[float], Optional[float]]
"""Their time, Unix seconds, and number; both `None` without any."""
NO_SAMPLES = (None, None)  # type: Samples

Child = Union["subprocess.Popen[bytes]", Fork]
Start = Callable[[Mapping[str, str], BinaryIO], Child]
"""Starts a rank, given its environment and its log. Raises OSError."""


def main(arguments: List[str]) -> int:
    """Run the command as a child, and end the way it ended."""
    run_dir, cwd = Path(arguments[0]), arguments[1]
    command = arguments[3:]
    groups: List[int] = []
    early: List[int] = []

    def pass_on(number: int, _frame: object) -> None:
        if groups:
            process.signal_group(groups[0], number)
        else:
            early.append(number)

    for number in SIGNALS:
        signal.signal(number, pass_on)

    def start(environment: Mapping[str, str], log: BinaryIO) -> Child:
        # Its group is another than this process's, which torchrun kills after 30 s: the supervisor's grace counts.
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        groups.append(child.pid)
        for number in early:
            process.signal_group(child.pid, number)
        return child

    code = watch(run_dir, command[0], start)
    if code < 0:
        # Die of the same signal, so that the launcher reports what really happened.
        end_by(-code)
    return code


def watch(run_dir: Path, program: str, start: Start) -> int:
    """Start the rank that the environment names, and write `ranks/rank-N.json` before and after.

    Returns its exit status, as the negative number of a signal. `program`: what could not be started, if so.
    """
    rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    record: Dict[str, Any] = {"rank": rank, "local_rank": local_rank, "launched_at": take_launch_time()}
    record.update(pid=os.getpid(), started_at=time.time())
    path = run_dir / constants.RANK_RECORD.format(rank)
    metrics = run_dir / constants.RANK_METRICS.format(rank)
    log_path = str(run_dir / constants.RANK_LOG.format(rank))
    debug = nccl_debug(os.environ, str(run_dir / constants.LOGS / "nccl-{}.log".format(rank)))
    hook = hook_environment(os.environ, run_dir, rank)
    environment = dict(
        os.environ,
        **{constants.METRICS_VARIABLE: str(metrics)},
        **debug,
        **hook,
        **wandb_run(os.environ, rank),
    )
    with open(log_path, "ab", buffering=0) as log:
        try:
            child = start(environment, log)
        except OSError as error:
            log.write("gpuctl: {} could not be started: {}\n".format(program, error).encode())
            why = end_reasons.not_started(program, error)
            write_json(path, dict(record, ended_at=time.time(), exit_code=127, ended=why))
            return 127
        # The rank leads its group.
        record.update(pid=child.pid, group=child.pid, birth=process.birth(child.pid))
        write_json(path, record)
        # Where the user asked NCCL to speak, it speaks in the rank's own log.
        nccl = (debug["NCCL_DEBUG_FILE"], log) if debug else (log_path, None)
        facts = EndFacts(child.pid)
        code, chosen, (began_at, samples) = _wait(child, metrics, facts, *nccl)
        ended = {"ended_at": time.time(), "exit_code": code, "transports": chosen}
        ended.update(metrics_began_at=began_at, metrics_began_samples=samples)
        ended.update(metrics_ended_at=_written_at(metrics), joined=has_joined(run_dir, rank))
        if code:
            interface = environment.get("NCCL_SOCKET_IFNAME", "")
            ended.update(facts=facts.document(nccl[0], interface))
        write_json(path, dict(record, **ended))
    return code


def take_launch_time() -> float:
    """Return the time of the launch, unix seconds, and take it out of the environment that the ranks inherit."""
    return float(os.environ.pop(constants.LAUNCHED_VARIABLE))


def wandb_run(environment: Mapping[str, str], rank: int) -> Dict[str, str]:
    """Return variables by which W&B continues one run for each rank of the job.

    Processes may not share a run of W&B, so ranks other than 0 have ids of their own. Empty: the user has chosen,
    or the process belongs to no job.
    """
    job = environment.get(constants.JOB_ID_VARIABLE)
    if job is None or any(name in environment for name in WANDB_CHOICES):
        return {}
    return {"WANDB_RUN_ID": "{}-rank{}".format(job, rank) if rank else job, "WANDB_RESUME": "allow"}


def nccl_debug(environment: Mapping[str, str], path: str) -> Dict[str, str]:
    """Return variables that make NCCL write its choices into a file; empty if the user asked NCCL for output."""
    if "NCCL_DEBUG" in environment:
        return {}
    return dict(nccl_log.DEBUG, NCCL_DEBUG_FILE=path)


def _wait(
    child: Child, metrics: Path, facts: EndFacts, nccl: str, log: Optional[BinaryIO]
) -> Tuple[int, List[str], Samples]:
    """Wait for the child's end, and report NCCL's choices on `log` once.

    Returns its exit status; NCCL's choices by its log `nccl`; and the first samples in `metrics`.
    """
    first = NO_SAMPLES
    look_at = time.monotonic() + LOOK_S
    code = None  # type: Optional[int]
    while code is None:
        process.wait_for_end([child.pid], METRICS_LOOK_S if first == NO_SAMPLES else LOOK_S)
        facts.look_at_limits()
        code = child.poll()
        facts.poll()
        if first == NO_SAMPLES:
            first = samples_at_end(metrics)
        if log and (code is not None or time.monotonic() >= look_at):
            look_at = time.monotonic() + LOOK_S
            chosen = nccl_log.read(nccl)
            if chosen:
                log.write("gpuctl: NCCL goes over {}\n".format(", ".join(chosen)).encode())
                log = None
    return code, nccl_log.read(nccl), first


def samples_at_end(path: Path) -> Samples:
    """Return the time of the file's last write, and the samples in the last whole line that has a number of samples.

    Many lines may come with one write, from a script that does not flush each: earlier ones count as seen by then.
    NO_SAMPLES without such a line near the file's end, and while the file grows.
    """
    try:
        if not path.stat().st_size:  # a pipe's, too, which must not be opened
            return NO_SAMPLES
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            file.seek(max(0, before.st_size - METRICS_BYTES))
            lines = file.read(METRICS_BYTES).split(b"\n")[-METRICS_LINES - 1 : -1]
            after = os.fstat(file.fileno())
    except OSError:
        return NO_SAMPLES
    samples = next((count for count in map(_samples_in, reversed(lines)) if count is not None), None)
    still = (before.st_size, before.st_mtime) == (after.st_size, after.st_mtime)
    return NO_SAMPLES if samples is None or not still else (after.st_mtime, samples)


def _samples_in(line: bytes) -> Optional[float]:
    """Return the samples in a line of metrics; `None` if it has no finite number of samples."""
    try:
        entry = json.loads(line.decode())
        samples = entry.get("samples") if isinstance(entry, dict) else None
        if isinstance(samples, (int, float)) and not isinstance(samples, bool) and math.isfinite(samples):
            return float(samples)
    except (ValueError, OverflowError, RecursionError):
        pass
    return None


def _written_at(path: Path) -> Optional[float]:
    """Return the last write of the file, Unix seconds; `None` without the file, or if the rank made it unreadable."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None
