"""Results that were saved: the record of the launch beside one, and the runs that it continues."""

from pathlib import Path

from inventories.disk.store import RunFolder
from inventories.errors import InventoryError
from inventories.runs.run import Result, Run


def launch_of(result: Result) -> Run | None:
    """Return the record of the launch. `None`: it can't be read."""
    try:
        return RunFolder(Path(result.dir)).load_run()
    except (InventoryError, OSError):
        return None


def args_of(result: Result) -> tuple[str, ...]:
    """Return the script's arguments from the record of the launch. Empty: the record can't be read."""
    run = launch_of(result)
    return () if run is None else run.args


def earlier_of(result: Result) -> list[Result]:
    """Return the runs that a run continues, the oldest first, as far as their results can be read."""
    earlier: list[Result] = []
    run, visited = result, {result.run}
    while run.resumed_from is not None and run.resumed_from not in visited:
        visited.add(run.resumed_from)
        try:
            before = RunFolder(Path(result.dir).parent / run.resumed_from).load_result()
        except (InventoryError, OSError):
            break
        if before is None:
            break
        earlier.insert(0, before)
        run = before
    return earlier


def job_of(result: Result) -> tuple[str | None, ...]:
    """Return the job of a run: its script, arguments, model and data set."""
    return result.script, *args_of(result), result.train.model, result.train.dataset


def is_other_layout(result: Result, base: Result) -> bool:
    """Return whether a run is the job of `base` with other numbers of nodes or ranks: the speeds show the scaling."""
    layouts = {(run.nnodes, run.world_size) for run in (result, base)}
    return len(layouts) == 2 and job_of(result) == job_of(base)


def nothing_was_left(result: Result) -> bool:
    """Return whether the built-in job resumed a finished run, and so had no epoch to train."""
    train = result.train
    return (
        result.script == "built-in"
        and result.status == "succeeded"
        and result.resumed_from is not None
        and train.epochs is not None
        and not train.epoch_s
        and not train.loss
    )
