"""The runs that a node is busy with."""

from typing import Any, BinaryIO, Dict

from remote.node import run_state
from remote.node.gpu import gpus
from remote.node.home_folder import NODE_HOME
from remote.node.ray import daemons
from remote.shared import frames
from remote.shared.constants import RUNS


def command_occupancy(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `occupancy` with ids of runs, and the address of the Ray cluster that the node is part of (or `None`).

    `runs`: active ones of this node. `begun`: runs without a recorded end in this home folder. `begun_elsewhere`:
    of these the ones with a part on another node, which shares the folder. With `gpus` in the request, a number, no
    run is listed that leaves as many GPUs free here.
    """
    records = sorted((NODE_HOME / RUNS).glob("*/*/runner.json"))
    begun = [path.parent for path in records if not (path.parent / "exit.json").exists()]
    claims = run_state.claims()
    if request.get("gpus") and claims and all(claims.values()):
        claimed = sum(map(len, claims.values()))
        if gpus.count() - claimed >= request["gpus"]:
            begun = [part for part in begun if part.parent.name not in claims]
            claims = {}
    frames.write(
        output,
        {
            "t": frames.STATE,
            "runs": list(claims),
            "begun": [part.parent.name for part in begun],
            "begun_elsewhere": [part.parent.name for part in begun if part.name != request["node"]],
            "ray": daemons.address(daemons.folder_of(request["node"])),
        },
    )
