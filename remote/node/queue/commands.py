"""The requests about this node's queue. Each also sees to it that a process runs the queue."""

from typing import Any, BinaryIO, Dict, Optional

from remote.node.home_folder import NODE_HOME
from remote.node.queue import active_run, crontab, door, part, runner, schedule, spool
from remote.node.queue.spool import Spool
from remote.shared import frames
from remote.shared.constants import RUNS


def command_queue_add(request: Dict[str, Any], output: BinaryIO) -> None:
    """`queue_add`: put `entries` into the queue of the `node`, have it run, and answer each. Idempotent.

    `restarts`: also have cron continue the queue after a restart; the answer says whether it will.

    Raises ValueError if an entry is to follow a run or an entry that this node does not know.
    """
    queue = Spool(request["node"])
    restarted = runner.begin(request["node"])
    with queue.locked():
        after = _known(queue, request["after"])
        added = queue.add([part.with_session(dict(entry, after=after)) for entry in request["entries"]])
        waiting = [entry["entry"] for entry in queue.entries() if entry["state"] == schedule.WAITING]
    # All before the answer: whoever asked may be gone. cron before the runner, which removes the line at its end.
    restarts = crontab.install(request["node"]) if request["restarts"] else None
    runner.begin(request["node"])
    ahead = {number: count for count, number in enumerate(waiting)}
    for entry in added:
        shown = dict(spool.public(entry), ahead=ahead.get(entry["entry"]))
        frames.write(output, {"t": frames.ENTRY, "entry": shown})
    _end(queue, output, restarted=restarted, restarts=restarts)


def command_queue_door(request: Dict[str, Any], output: BinaryIO) -> None:
    """`queue_door`: answer with `address`, `port` and `key` by which other nodes ask this one for orders."""
    queue = Spool(request["node"])
    with queue.locked():
        frames.write(output, {"t": frames.DONE, "door": door.settings_of(queue.folder, request["address"])})


def command_queue_list(request: Dict[str, Any], output: BinaryIO) -> None:
    """`queue_list`: send all entries of the `node`, ended ones first."""
    queue = Spool(request["node"])
    if not queue.folder.is_dir():  # asked about a queue that it never had: no folder is made
        _end(queue, output, restarted=False)
        return
    _send(queue, output, restarted=runner.begin(request["node"]))


def command_queue_change(request: Dict[str, Any], output: BinaryIO) -> None:
    """`queue_change`: `move` (to a `place`), `remove`, `clear`, `pause` or `resume`; then send all entries.

    `clear` removes all entries that wait. Raises ValueError, and changes nothing, if one of the `entries` does not
    wait.
    """
    queue, action = Spool(request["node"]), request["action"]
    with queue.locked():
        if action in ("pause", "resume"):
            queue.pause(paused=action == "pause")
        else:
            _change(queue, request)
    _send(queue, output, restarted=runner.begin(request["node"]))


def _send(queue: Spool, output: BinaryIO, *, restarted: bool) -> None:
    """Send all entries; a run that has ended here is over, also if the queue's process has not noted it yet."""
    with queue.locked():
        ended, entries = queue.ended(), queue.entries()
    seen = [active_run.as_seen(entry) for entry in entries]
    ended += [entry for entry in seen if entry.get("ended_at")]
    still_open = [entry for entry in seen if not entry.get("ended_at")]
    if part.disk_is_full():
        why = "it waits: the disk of {} is full".format(queue.folder.name)
        name = queue.folder.name
        waits = [
            entry["state"] == schedule.WAITING and all(name in place["nodes"] for place in entry["places"])
            for entry in still_open
        ]
        still_open = [
            dict(entry, error=why) if blocked else entry for entry, blocked in zip(still_open, waits)
        ]
    for entry in [*ended, *still_open]:
        frames.write(output, {"t": frames.ENTRY, "entry": spool.public(entry)})
    _end(queue, output, restarted=restarted)


def _end(queue: Spool, output: BinaryIO, **about: Optional[bool]) -> None:
    """Send the end of an answer. `restarted`: the queue's process had ended, and this request started it again."""
    frames.write(output, dict(about, t=frames.DONE, paused=queue.paused))


def _known(queue: Spool, name: Optional[str]) -> Optional[str]:
    """Return the run that a name, or an entry's number, stands for. `None`: no name, or that has ended."""
    if name is None:
        return None
    for entry in [*reversed(queue.entries()), *reversed(queue.ended())]:
        if name in (entry["entry"], entry["run"], entry["name"]):
            return None if entry.get("ended_at") else str(entry["run"])
    if name.strip(".") and "/" not in name and (NODE_HOME / RUNS / name).is_dir():
        return name
    raise ValueError("no entry and no run here is named {}: gpuctl queue ls lists the entries".format(name))


def _change(queue: Spool, request: Dict[str, Any]) -> None:
    """Move or remove entries that wait."""
    entries = queue.entries()
    states = {entry["entry"]: entry["state"] for entry in [*queue.ended(), *entries]}
    place = request["place"]
    named = [*request["entries"], *([place] if place not in ("", "first", "last") else [])]
    for number in named:
        if number not in states:
            raise ValueError("the queue has no entry {}: gpuctl queue ls lists them".format(number))
        if states[number] == spool.RUNNING:
            raise ValueError("entry {} runs already: gpuctl stop ends its run".format(number))
        if states[number] != schedule.WAITING:
            verb = "has" if states[number] in (spool.SUCCEEDED, spool.FAILED) else "was"
            can = "can be removed" if request["action"] == "remove" else "have a place"
            raise ValueError(
                "entry {} {} {}: only waiting entries {}".format(number, verb, states[number], can)
            )
    if request["action"] in ("remove", "clear"):
        doomed = states if request["action"] == "clear" else request["entries"]
        for entry in entries:
            if entry["entry"] in doomed and entry["state"] == schedule.WAITING:
                queue.close(entry, spool.REMOVED)
        return
    for number in reversed(request["entries"]) if place == "first" else request["entries"]:
        queue.save(schedule.moved(queue.entries(), number, place))
