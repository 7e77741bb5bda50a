"""A run's status, what ended it, and its exit status, from what its nodes and ranks said. Pure."""

from collections.abc import Mapping, Sequence

from gpuctl.run_results.failures.failures import Failure
from inventories.runs.end_reasons import Reason
from inventories.runs.run import NodeRecord, RankRecord, Run, RunStatus


def run_status(
    run: Run, records: Mapping[int, RankRecord], nodes: Sequence[NodeRecord], failure: Failure | None
) -> RunStatus:
    """Return the status: `succeeded` needs every node's word; `stopped`, a recorded order and no failure before."""
    if failure:
        return "failed"
    if {node.name for node in run.nodes} - {node.node for node in nodes}:
        return "running"
    if any(node.stop_ordered for node in nodes):
        return "stopped"
    launchers_well = bool(nodes) and all(node.exit_code == 0 for node in nodes)
    ranks_well = all(record.exit_code in (0, None) for record in records.values())
    return "succeeded" if launchers_well and ranks_well else "failed"


def reason_of(status: RunStatus, nodes: Sequence[NodeRecord], failure: Failure | None) -> Reason | None:
    """Return the reason of the run's end. `None`: it succeeded or is active, or the reason is not known."""
    if failure:
        return failure.error.reason
    if status != "stopped":
        return None
    stops = [node.reason for node in nodes if node.stop_ordered and node.reason is not None]
    # A user's order has precedence over gpuctl's own.
    return Reason.STOPPED if Reason.STOPPED in stops else next(iter(stops), None)


def exit_code_of(status: RunStatus, failure: Failure | None) -> int | None:
    """Return the run's exit status. `None`: it is active, was stopped, or the status is not known."""
    if status == "succeeded":
        return 0
    return failure.exit_code if failure else None
