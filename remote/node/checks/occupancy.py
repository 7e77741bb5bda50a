"""Which runs a node is busy with."""

from typing import Any, BinaryIO, Dict

from remote.node.home_folder import NODE_HOME
from remote.node.ray import daemons
from remote.node.runs import supervisor
from remote.shared import frames
from remote.shared.constants import RUNS


def command_occupancy(request: Dict[str, Any], output: BinaryIO) -> None:
    """`occupancy`: ids of the `runs` that are active here, and of those `begun` in this home folder, without an end.

    The latter may be of other nodes that share it. `ray` is the address of the Ray cluster that the node is part of,
    or None.
    """
    records = sorted((NODE_HOME / RUNS).glob("*/*/runner.json"))
    frames.write(
        output,
        {
            "t": frames.STATE,
            "runs": supervisor.active_runs(),
            "begun": [path.parts[-3] for path in records if not (path.parent / "exit.json").exists()],
            "ray": daemons.address(daemons.folder_of(request["node"])),
        },
    )
