"""The notices of a run, from its files on the first node: how it ended, that it hangs, that a node is lost."""

import json
import math
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from remote.node import end_reasons
from remote.node.notify.texts import span
from remote.shared.bars import sparkline
from remote.shared.constants import LOGS, RANK_LOG, RANK_METRICS, RANKS
from remote.shared.files import read_json
from remote.shared.log_lines import LogLine
from remote.shared.notify.message import Notice, clean, notice

TAIL_BYTES = 64 * 1024
METRICS_BYTES = 256 * 1024
LOSSES = 30
PEER_FAILED = "peer_failed"
REASONS = {
    end_reasons.SHUT_DOWN: "its machine was shut down",
    end_reasons.REBOOTED: "its machine was restarted",
    end_reasons.CONTAINER_RESTARTED: "its container was restarted",
    end_reasons.RUNNER_KILLED: "gpuctl's process on the node was killed",
    end_reasons.DISK_FULL: "the disk of the node is full",
    end_reasons.RAY_ENDED: "Ray ended",
    end_reasons.RAY_LATE: "Ray did not start a rank in time",
    PEER_FAILED: "another node failed",
}
"""Reason for the failure of the node's part → a clause."""
END = "{} ended"
"""Key of the event that a run has ended."""
RESIZED = "resized"
"""Reason for the end of a run that another run continues, on more machines."""
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)\b.*")


def ended(
    run_dir: Path,
    run: Mapping[str, Any],
    state: Mapping[str, Any],
    now: float,
    reports: Mapping[str, Mapping[str, Any]] = {},
) -> Optional[Notice]:
    """Return the notice of a run's end. `None`: it continues as another run, or it only has to report failures.

    `state`: of the run on this node. `reports`: the states of other nodes, with their first error.
    """
    if continues(state):
        return None
    at = float(state.get("ended_at") or now)
    seconds = max(0.0, at - run["started"])
    if succeeded(state) or is_victim(state):  # a failure elsewhere is the run's
        state = next((end for end in reports.values() if not succeeded(end) and not is_victim(end)), state)
    node = state.get("node", run["node"])
    silent = [name for name in run["followers"] if name not in reports]
    ending = state.get("ended") or {}
    reason = str(ending.get("reason"))
    error: Optional[Dict[str, Any]] = None
    if reason in end_reasons.STOPS:
        status, phrase, tone = "stopped", "was stopped", "warning"
    elif not succeeded(state):
        status, phrase, tone = "failed", "failed", "bad"
        reported = state["error"] if "error" in state else first_error(run_dir, node)
        error = dict(reported or {"rank": None, "node": node, "message": ""})
        known = REASONS.get(reason) or error["message"] or clean(str(ending.get("detail") or ""))
        error["message"] = known or "it is not known why"
    elif silent:
        status, tone = "ended", "warning"
        phrase = "ended well on {} of {} nodes".format(run["nodes"] - len(silent), run["nodes"])
    else:
        status, phrase, tone = "succeeded", "succeeded", "good"
        if run.get("failures_only"):
            return None
    losses = last_losses(run_dir)
    command = "gpuctl {} {}".format("logs" if status == "failed" else "results", run["run"])
    lines = [
        " ".join([run["script"], *run["args"]]) if run["args"] else "",
        error_line(error, run["nodes"]) if error else end_reasons.STOPS.get(reason, ""),
        "no report from {}".format(", ".join(silent)) if status == "ended" else "",
        loss_line(losses),
        about_line(run, seconds),
        "gpuctl restarts it if --max-restarts allows" if error and run["continues"] else "",
        command,
    ]
    data = dict(document(run, seconds), status=status, exit_code=state.get("exit_code"), loss=losses)
    data.update(first_error=error, next=command)
    title = "{} {} after {}".format(title_of(run), phrase, span(seconds))
    event = END.format(run["run"])
    return notice(event, type="run." + status, at=at, tone=tone, title=title, lines=lines, data=data)


def ended_somehow(run: Mapping[str, Any], now: float) -> Notice:
    """Return the notice of the end of a run whose files can't be read."""
    seconds, command = now - run["started"], "gpuctl results {}".format(run["run"])
    title = "{} ended after {}: its files can't be read".format(title_of(run), span(seconds))
    data = dict(document(run, seconds), status="ended", next=command)
    lines = [about_line(run, seconds), command]
    event = END.format(run["run"])
    return notice(event, type="run.ended", at=now, tone="warning", title=title, lines=lines, data=data)


def succeeded(state: Mapping[str, Any]) -> bool:
    """Return whether a node's part of the run succeeded."""
    return state.get("exit_code") == 0 and (state.get("ended") or {}).get("reason") not in end_reasons.STOPS


def is_victim(state: Mapping[str, Any]) -> bool:
    """Return whether another node's failure ended a node's part of the run."""
    return (state.get("ended") or {}).get("reason") == PEER_FAILED


def continues(state: Mapping[str, Any]) -> bool:
    """Return whether the run was ended so that another run continues it."""
    return (state.get("ended") or {}).get("reason") == RESIZED


def hung(run: Mapping[str, Any], report: Mapping[str, Any], count: int, now: float) -> Notice:
    """Return the notice of a run without progress. `count`: number of the hang in the run."""
    seconds, silent_s = now - run["started"], float(report.get("silent_s", 0.0))
    command = "gpuctl why {}".format(run["run"])
    title = "{} hangs: no progress for {}".format(title_of(run), span(silent_s))
    data = dict(document(run, seconds), silent_s=round(silent_s), next=command)
    event = "{} hung {}".format(run["run"], count)
    lines = [about_line(run, seconds), command]
    return notice(event, type="run.hung", at=now, tone="bad", title=title, lines=lines, data=data)


def node_lost(run: Mapping[str, Any], name: str, silent_s: float, now: float) -> Notice:
    """Return the notice of a node that no longer answers the first one."""
    seconds, command = now - run["started"], "gpuctl status --cluster {}".format(run["cluster"])
    title = "{} lost {}: no answer for {}".format(title_of(run), name, span(silent_s))
    data = dict(document(run, seconds), node=name, next=command)
    event = "{} lost {}".format(run["run"], name)
    lines = [about_line(run, seconds), command]
    return notice(event, type="run.node_lost", at=now, tone="bad", title=title, lines=lines, data=data)


def title_of(run: Mapping[str, Any]) -> str:
    """Return a run's name, or else its script."""
    return str(run["name"] or run["script"])


def document(run: Mapping[str, Any], seconds: float) -> Dict[str, Any]:
    """Return the data that each notice of a run has."""
    return {
        "run": run["run"],
        "cluster": run["cluster"],
        "name": run["name"],
        "script": run["script"],
        "args": list(run["args"]),
        "nodes": run["nodes"],
        "ranks": run["ranks"],
        "seconds": round(seconds, 1),
        "cost_usd": cost_usd(run, seconds),
    }


def cost_usd(run: Mapping[str, Any], seconds: float) -> Optional[float]:
    """Return the price of the run's machines for its time. `None`: not known, or free."""
    return round(run["hourly_usd"] * seconds / 3600, 4) if run["hourly_usd"] else None


def about_line(run: Mapping[str, Any], seconds: float) -> str:
    """Return the line on the run: its id, its machines, its price."""
    nodes = "{} node{}".format(run["nodes"], "" if run["nodes"] == 1 else "s")
    ranks = "{} rank{}".format(run["ranks"], "" if run["ranks"] == 1 else "s")
    cost = cost_usd(run, seconds)
    price = "" if cost is None else ", ${:.2f}".format(cost)
    return "run {} on {}: {}, {}{}".format(run["run"], run["cluster"], nodes, ranks, price)


def loss_line(losses: List[float]) -> str:
    """Return the losses as a line of blocks, with the first and the last of them. Empty: no losses are known."""
    if not losses:
        return ""
    return "loss {} {:.4g} → {:.4g}".format(sparkline(losses), losses[0], losses[-1])


def error_line(error: Mapping[str, Any], nodes: int) -> str:
    """Return the line on the first error of this node."""
    node = " on {}".format(error["node"]) if nodes > 1 else ""
    rank = "" if error["rank"] is None else "rank {}{}: ".format(error["rank"], node)
    return rank + str(error["message"])


def last_losses(run_dir: Path) -> List[float]:
    """Return the last losses in the metrics of rank 0, or else in the lines of its log."""
    losses = []
    for line in _tail(run_dir / RANK_METRICS.format(0), METRICS_BYTES).split("\n"):
        try:
            loss = json.loads(line).get("loss")
            if isinstance(loss, (int, float)) and not isinstance(loss, bool) and math.isfinite(loss):
                losses.append(float(loss))
        except (ValueError, AttributeError, RecursionError, OverflowError):
            continue
    if not losses:
        lines = re.split(r"[\r\n]+", _tail(run_dir / RANK_LOG.format(0), METRICS_BYTES))
        printed = [LogLine.of(line).loss for line in lines if "loss" in line.lower()]
        losses = [loss for loss in printed if loss is not None and math.isfinite(loss)]
    return losses[-LOSSES:]


def first_error(run_dir: Path, node: str) -> Optional[Dict[str, Any]]:
    """Return the rank of this node that failed first, with its log's last exception. `None`: no rank failed.

    A rank that a signal asked to end comes after all others: another rank's failure ended it.
    """
    failed: List[Tuple[bool, float, int, int]] = []
    for path in (run_dir / RANKS).glob("rank-*.json"):
        record = read_json(path)
        code = record.get("exit_code")
        if code:
            failed.append((code in (-15, -2, -1), float(record.get("ended_at", 0)), record["rank"], code))
    if not failed:
        message = _last_words(run_dir / LOGS / "{}.log".format(node))
        return {"rank": None, "node": node, "message": message} if message else None
    _, _, rank, code = min(failed)
    message = _last_words(run_dir / RANK_LOG.format(rank))
    exit_text = "signal {}".format(-code) if code < 0 else "exit status {}".format(code)
    return {"rank": rank, "node": node, "message": message or exit_text}


def _last_words(log: Path) -> str:
    """Return the last exception in a log, else its last line. Empty: it has no line."""
    lines = [clean(line) for line in _tail(log, TAIL_BYTES).split("\n") if line.strip()]
    exceptions = [line for line in lines if _EXCEPTION.match(line)]
    return (exceptions or lines or [""])[-1]


def _tail(path: Path, size: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - size))
            return file.read(size).decode(errors="replace")
    except OSError:
        return ""
