"""Reasons for the end of a node's part in a run, as a node knows them: some of `inventories/runs/end_reasons.py`."""

from typing import Any, Dict

NOT_STARTED = "not_started"
RAY_ENDED = "ray_ended"
RAY_LATE = "ray_late"
DISK_FULL = "disk_full"
SHUT_DOWN = "shut_down"
REBOOTED = "rebooted"
CONTAINER_RESTARTED = "container_restarted"
RUNNER_KILLED = "runner_killed"
NO_RECORD = "no_record"
STOPPED = "stopped"
GPUS_IDLE = "gpus_idle"
STOPS = {STOPPED: "", "stopped_hung": "it hung", GPUS_IDLE: "its GPUs did nothing"}
"""Reason for which gpuctl stopped the run → a clause. Empty: a person asked for it."""


def ended(reason: str, **facts: object) -> Dict[str, Any]:
    """A reason and its facts, as they are written."""
    return dict(facts, reason=reason)


def not_started(program: str, error: OSError) -> Dict[str, Any]:
    """Return the reason for a program that could not be started."""
    return ended(NOT_STARTED, program=program, detail=error.strerror or str(error))
