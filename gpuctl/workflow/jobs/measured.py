"""Speeds of the runs on this computer's records, for the advice on the same machines."""

from contextlib import suppress
from typing import Any

from inventories.disk.store import RunFolder, Store
from inventories.errors import InventoryError

NEWEST = 200
"""Runs that are looked at."""


def measured_runs(store: Store) -> list[dict[str, Any]]:
    """Return the built-in job's runs that succeeded on machines of a known shape; the latest last."""
    runs = (_measured(folder) for folder in store.runs()[-NEWEST:])
    return [run for run in runs if run is not None]


def _measured(folder: RunFolder) -> dict[str, Any] | None:
    """Return a run as the job's arithmetic takes it. `None`: it had no steady step, or its record can't be read."""
    with suppress(InventoryError):
        run, result = folder.load_run(), folder.load_result()
        ranks = {node.nproc for node in run.nodes}
        if result is None or result.status != "succeeded" or run.shape is None or len(ranks) != 1:
            return None
        if not run.built_in or run.searched or not result.train.samples_per_s:
            return None
        return {
            "run": run.run,
            "shape": run.shape,
            "count": len(run.nodes),
            "ranks": ranks.pop(),
            "words": run.args,
            "samples_per_s": result.train.samples_per_s,
        }
    return None
