"""The records of runs that nodes have, as of runs that another computer started."""

from collections.abc import Collection
from dataclasses import replace

from inventories.codec import from_json
from inventories.errors import CorruptFile
from inventories.runs.run import Run
from remote.errors import BadAnswer
from remote.sessions.answers import reading
from remote.sessions.limits import ANSWER_BYTES, Bounds
from remote.sessions.session import Node
from remote.shared import frames

TIMEOUT_S = 60.0


def unknown_runs(
    node: Node, cluster: str, known: Collection[str], requested: Collection[str] | None = None
) -> list[Run]:
    """Return the cluster's runs that the node has a record of, without the `known` ids. Raises BadAnswer.

    `requested`: only these runs. `None`: all. Paths of the other computer are left out of the options: here they mean
    other files.
    """
    bounds = Bounds(total_s=TIMEOUT_S, max_bytes=ANSWER_BYTES)
    runs, ended = [], False
    request = {"known": sorted(known), "runs": None if requested is None else sorted(requested)}
    with node.stream("runs", request, timeout_s=TIMEOUT_S, bounds=bounds) as talk:
        for header, _ in talk.frames():
            ended = header.get("t") == frames.END
            if header.get("t") == frames.RECORD:
                with reading(node.name, "the record of a run"):
                    runs.append(_without_paths(from_json(Run, header.get("run"), "the record of a run")))
    if not ended:
        raise BadAnswer(f"{node.name}: its list of runs has no end.")
    # A node may not replace the record of another run here, whatever it answers.
    return [
        run
        for run in runs
        if run.cluster == cluster and run.run not in known and (requested is None or run.run in requested)
    ]


def _without_paths(run: Run) -> Run:
    """Return the record without paths. Raises CorruptFile for an id that is no name of a folder."""
    if not run.run.replace("-", "").isalnum() or not run.run.isascii():
        raise CorruptFile(f"{run.run!r} is no run's id.")
    if run.options is None:
        return run
    options = replace(run.options, project=None, root=None, include=(), requirements=None, wheels=None)
    return replace(run, options=options)
