"""The notice that a queue is empty, sent once by the first node."""

import time
from typing import Any, Dict, Mapping, Sequence

from remote.node import process
from remote.node.notify import spool
from remote.shared.notify.message import Notice, notice

FAILED_SHOWN = 3


def send(notify: Mapping[str, Any], ended: Sequence[Mapping[str, Any]]) -> None:
    """Send the notice from a process of its own. Returns at once.

    `notify`: targets and settings of the last run. `ended`: the entries since the queue was empty before.
    """
    cluster = notify["run"]["cluster"]
    message = empty(cluster, ended, time.time())
    process.detach(lambda: spool.post(message, notify["targets"], notify["settings"], cluster))


def empty(cluster: str, ended: Sequence[Mapping[str, Any]], now: float) -> Notice:
    """Return the notice. Pure."""
    counts: Dict[str, int] = {}
    for entry in ended:
        counts[entry["state"]] = counts.get(entry["state"], 0) + 1
    failed = [entry for entry in ended if entry["state"] == "failed"]
    lines = [
        "failed: {} {} ({})".format(entry["script"], " ".join(entry["args"]), entry["run"])
        for entry in failed[:FAILED_SHOWN]
    ]
    if len(failed) > FAILED_SHOWN:
        lines.append("and {} more".format(len(failed) - FAILED_SHOWN))
    rated = [entry for entry in ended if entry["state"] == "succeeded" and entry.get("loss") is not None]
    best = min(rated, key=lambda entry: float(entry["loss"])) if len(rated) > 1 else None
    if best:
        lines.append("best: loss {:.4g}, {} ({})".format(best["loss"], _label(best, ended), best["run"]))
    sweeps = {entry["tags"].get("sweep") for entry in ended}
    sweep = sweeps.pop() if len(sweeps) == 1 else None
    command = "gpuctl results --tag sweep={}".format(sweep) if sweep else "gpuctl queue ls"
    parts = ", ".join("{} {}".format(count, state) for state, count in sorted(counts.items(), reverse=True))
    return notice(
        "queue empty {} {}".format(cluster, ended[-1]["run"]),
        type="queue.empty",
        at=now,
        tone="bad" if failed else "good",
        title="the queue of {} is empty: {}".format(cluster, parts),
        lines=[*lines, command],
        data={
            "cluster": cluster,
            "entries": counts,
            "best": {"run": best["run"], "loss": best["loss"]} if best else None,
            "next": command,
        },
    )


def _label(entry: Mapping[str, Any], ended: Sequence[Mapping[str, Any]]) -> str:
    """Return an entry's name, else its settings that differ between the entries, else its command."""
    if entry["name"]:
        return str(entry["name"])
    lines = [[each["script"], *each["args"]] for each in ended]
    line = [entry["script"], *entry["args"]]
    if all(len(each) == len(line) for each in lines):
        differing = {at for at, words in enumerate(zip(*lines)) if len(set(words)) > 1}
        names = {at - 1 for at in differing if at and line[at - 1].startswith("-")}
        line = [word for at, word in enumerate(line) if at in differing | names] or line
    return " ".join(line)
