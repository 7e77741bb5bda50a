"""Files that Ray's tasks wrote on nodes that have no rank of the run: a driver is one process, on the first node."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuctl.run_results.outputs import with_local_paths_once
from inventories.disk.store import RunFolder
from inventories.runs.outputs import OutsidePath
from inventories.runs.result import Result

if TYPE_CHECKING:
    from remote.sessions.session import Node

ASK_TIMEOUT_S = 15.0


def with_task_files(
    result: Result, folder: RunFolder, nodes: "Mapping[str, Node]", sent: Iterable[str], age_s: float
) -> Result:
    """Return the result with the files of the last `age_s` seconds on these nodes, and save it.

    `sent`: paths of the project's files. A node that does not answer is left out, and Ctrl-C ends the wait for all.
    """
    from remote.fanout import fan_out
    from remote.runs.outputs import outside_paths

    def ask(node: "Node") -> tuple[OutsidePath, ...]:
        request = {"node": node.name, "age_s": age_s, "sent": list(sent)}
        answer = node.call("ray_files", request, timeout_s=ASK_TIMEOUT_S)
        with suppress(KeyError, TypeError, ValueError, OverflowError):  # it has other words than ours
            return outside_paths(node.name, answer["outside"])
        return ()

    with suppress(KeyboardInterrupt):  # the run is over, and its record is not to be lost
        outcomes = fan_out(ask, nodes) if nodes else []
        if paths := [path for outcome in outcomes for path in outcome.value or ()]:
            outside = with_local_paths_once(
                folder.load_run(), folder.path.parents[1], (*result.outside, *paths)
            )
            result = replace(result, outside=outside)
            if folder.result_path.exists():
                folder.save_result(result)
    return result
