"""The activity of every rank of a run: read from all nodes at once, also if some do not answer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from inventories.codec import from_json
from inventories.disk.cluster_files import ClusterFiles
from inventories.errors import CorruptFile
from inventories.machine import Machine
from inventories.runs.activity import HangReport, RankActivity
from inventories.runs.run import Run, RunNode
from remote.errors import BadAnswer
from remote.fanout import fan_out
from remote.sessions.connect import connect
from remote.sessions.limits import Bounds
from remote.sessions.session import Node

ANSWER_S = 45.0
"""A node takes some 15 s where its ranks do not answer."""
MOST_BYTES = 64 * 1024 * 1024
CONNECT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class NodeActivity:
    """The report of one node."""

    node: str
    ranks: tuple[RankActivity, ...] = ()
    error: str | None = None
    """Why it could not be asked. `None`: it could."""


def hang_report(node: str, body: bytes) -> HangReport:
    """Read a node's report. Raises BadAnswer."""
    try:
        return from_json(HangReport, json.loads(body), f"what {node} reports of a hang")
    except (ValueError, RecursionError, CorruptFile) as error:
        raise BadAnswer(f"{node}: {error}") from error


def ask_nodes(run: Run, machines: Mapping[str, Machine], cluster: ClusterFiles) -> list[NodeActivity]:
    """Ask all nodes of a run what their ranks are doing."""

    def ask_part(part: RunNode) -> tuple[RankActivity, ...]:
        with connect(machines[part.name], cluster, timeout_s=CONNECT_S) as node:
            return ask_node(node, part)

    outcomes = fan_out(ask_part, {part.name: part for part in run.nodes if part.name in machines})
    activities = {
        outcome.node: NodeActivity(
            node=outcome.node,
            ranks=outcome.value or (),
            error=None if outcome.error is None else str(outcome.error),
        )
        for outcome in outcomes
    }
    removed = "The machine is no longer part of the cluster."
    return [activities.get(part.name) or NodeActivity(node=part.name, error=removed) for part in run.nodes]


def ask_node(node: Node, part: RunNode) -> tuple[RankActivity, ...]:
    """Ask one node. Raises BadAnswer, ConnectionLost, NodeFailed."""
    ranks = list(range(part.first_rank, part.first_rank + part.nproc))
    request = {"run_dir": part.run_dir, "ranks": ranks}
    bounds = Bounds(total_s=ANSWER_S, max_bytes=MOST_BYTES)
    with node.stream("why", request, timeout_s=ANSWER_S, bounds=bounds) as talk:
        activities = [rank_activity(node.name, header.get("rank")) for header, _ in talk.frames()]
    if sorted(activity.rank for activity in activities) != ranks:
        raise BadAnswer(f"{node.name} was asked what its ranks {ranks} do, and told of others.")
    return tuple(activities)


def rank_activity(node: str, document: object) -> RankActivity:
    """Read a node's report of a rank. Raises BadAnswer."""
    try:
        return from_json(RankActivity, document, f"what {node} tells of a rank")
    except CorruptFile as error:
        raise BadAnswer(f"{node}: {error}") from error
