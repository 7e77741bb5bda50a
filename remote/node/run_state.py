"""The state of a run on this node, as the files of its supervisor show it."""

from pathlib import Path
from typing import Any, Dict, List, Sequence

from remote.node import end_reasons, process
from remote.node.home_folder import NODE_HOME
from remote.shared.constants import PLACED_CHECKPOINTS, RUNS
from remote.shared.files import read_json


def placed_for(run_dir: Path) -> Path:
    """Return the folder of checkpoints for a run, until its launch makes the run's folder and moves them in."""
    return Path(PLACED_CHECKPOINTS.format(run_dir))


def why_stopped(run_dir: Path) -> Dict[str, Any]:
    """The reason that came with the order to stop."""
    order = read_json(run_dir / "stop")
    order.pop("signal", None)
    return order or end_reasons.ended(end_reasons.STOPPED)


def state(run_dir: Path) -> Dict[str, Any]:
    """Return `running` with the supervisor's `pid`; else the content of `exit.json`, or why it is missing."""
    supervisor = read_json(run_dir / "runner.json")
    ended = read_json(run_dir / "exit.json")
    if ended:
        return dict(ended, running=False)
    if not supervisor and (run_dir / "stop").exists():
        return {"running": False, "exit_code": None, "stopped": True, "ended": why_stopped(run_dir)}
    if not supervisor:
        return _unexplained(end_reasons.ended(end_reasons.NO_RECORD, detail=str(run_dir)))
    if supervisor["boot_id"] != process.boot_id():
        return _unexplained(end_reasons.ended(end_reasons.REBOOTED))
    if process.alive(supervisor["pid"], supervisor["birth"]):
        return {"running": True, "pid": supervisor["pid"]}
    # It may have ended between the two looks.
    ended = read_json(run_dir / "exit.json")
    if ended:
        return dict(ended, running=False)
    # A container that was started again has another first process, on a machine that was not booted again.
    again = supervisor.get("init_birth") not in (None, process.birth(1))
    return _unexplained(
        end_reasons.ended(end_reasons.CONTAINER_RESTARTED if again else end_reasons.RUNNER_KILLED)
    )


def _unexplained(ended: Dict[str, Any]) -> Dict[str, Any]:
    """The state of a run that could not say how it ended."""
    return {"running": False, "exit_code": None, "ended": ended}


def active_runs() -> List[str]:
    """Return the ids of the active runs on this node."""
    return list(claims())


def claims() -> Dict[str, List[str]]:
    """Return the UUIDs of the GPUs that each active run on this node has to itself. Empty: all GPUs."""
    records = sorted((NODE_HOME / RUNS).glob("*/*/runner.json"))
    return {
        path.parent.parent.name: read_json(path).get("gpus") or []
        for path in records
        if state(path.parent)["running"]
    }


def runs_in_the_way(gpus: Sequence[str]) -> List[str]:
    """Return the active runs that have any of these GPUs. `gpus`: UUIDs; empty: all GPUs."""
    return [run for run, claim in claims().items() if not (gpus and claim and set(claim).isdisjoint(gpus))]
