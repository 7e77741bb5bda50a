"""A search's trials, as they came back with the artifacts of its run."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpuctl.errors import Failed
from inventories.codec import from_json
from inventories.errors import CorruptFile
from inventories.runs.run import Result
from inventories.runs.search import Search, TrialsFile

TRIALS = "artifacts/trials.json"


def with_search(result: Result) -> Result:
    """The result of a search with its trials; any other, and one whose trials can't be read, as it is."""
    if result.search is not None or not result.script.startswith("tune "):
        return result
    with suppress(Failed):
        return replace(result, search=read_search(Path(result.dir)))
    return result


def read_search(folder: Path) -> Search | None:
    """Return the search in a run's folder, as far as known. `None`: it ended before a trial. Raises Failed."""
    path = folder / TRIALS
    if not path.exists():
        return None
    try:
        trials = from_json(TrialsFile, json.loads(path.read_text()), str(path))
    except (CorruptFile, ValueError, RecursionError) as error:
        raise Failed(f"{path} can't be read: {error} The run's log tells of the trials, too.") from error
    return Search.of(trials.metric, trials.mode, trials.trials)
