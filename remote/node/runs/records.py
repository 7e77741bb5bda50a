"""The records of runs, which the computer that started a run leaves on its nodes for other computers."""

from typing import Any, BinaryIO, Dict

from remote.node.home_folder import NODE_HOME
from remote.shared import frames
from remote.shared.constants import RUN_RECORD, RUNS
from remote.shared.files import read_json


def command_runs(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `runs`: a `record` for each run in this home, then `end`.

    Request: `known`, ids to omit; `runs`, the ids to send (null: all).
    """
    known, requested = set(request["known"]), request.get("runs")
    for path in sorted((NODE_HOME / RUNS).glob("*/*/" + RUN_RECORD)):
        run_id = path.parent.parent.name
        if run_id not in known and (requested is None or run_id in requested) and read_json(path):
            known.add(run_id)
            frames.write(output, {"t": frames.RECORD, "run": read_json(path)})
    frames.write(output, {"t": frames.END})
