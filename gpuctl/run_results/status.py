"""The status of a run. Pure."""

from gpuctl.run_results.evidence import Evidence
from gpuctl.run_results.failures.failures import Failure
from inventories.runs.result import RunStatus


def run_status(evidence: Evidence, failure: Failure | None) -> RunStatus:
    """Return the status: `succeeded` needs every node's record; `stopped`, a recorded order and no failure before."""
    if failure:
        return "failed"
    if not evidence.is_over:
        return "running"
    if any(node.stop_ordered for node in evidence.nodes):
        return "stopped"
    launchers_well = all(node.exit_code == 0 for node in evidence.nodes)
    ranks_well = all(record.exit_code in (0, None) for record in evidence.by_rank.values())
    return "succeeded" if launchers_well and ranks_well else "failed"
