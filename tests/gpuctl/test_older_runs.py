"""Runs as the release before recorded them, with sentences in place of reasons: read, shown and concluded."""

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from gpuctl.tables.run import draw_run
from gpuctl.workflow.training.collect import attach
from inventories.disk.store import RunFolder, Store
from inventories.end_reasons import Ended, Reason
from remote.runs.node_state import record_of_end
from remote.runs.observer import Observer
from remote.runs.run_files import read_node_records

RUNS = Path(__file__).parent / "older_runs"
FAILED, HUNG = "20261123-051414-51f4", "20261123-051649-9cf0"
KILLED, SHUT_DOWN = "20261123-051916-3286", "20261123-051929-7082"
"""A rank failed, a rank was stopped in the middle, a runner was killed, a runner got SIGTERM."""
OF_HUNG = (
    "hung, or was far behind: rank 0 waited for it in vain (error: Rank 0 waited 8 s for another rank in vain"
)
OF_SIGTERM = "the run was ended by SIGTERM: the machine was shut down, or somebody on it ended the run"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    shutil.copytree(RUNS, tmp_path / "runs")
    return Store(tmp_path)


class Nobody(Observer):
    """Watches nothing."""


def shown(folder: RunFolder) -> str:
    result = folder.load_result()
    assert result is not None
    out = io.StringIO()
    Console(width=400, file=out).print(draw_run(result))
    return out.getvalue()


@pytest.mark.parametrize(
    ("run", "who", "says", "reason"),
    [
        (FAILED, "rank 1 on default-1", "exit status 3: rank 1 begins", Reason.TOLD),
        (HUNG, "rank 1 on default-1", OF_HUNG, Reason.HUNG),
        (KILLED, "default-1", "the runner was killed from outside", Reason.TOLD),
        (SHUT_DOWN, "default-1", OF_SIGTERM, Reason.TOLD),
    ],
)
def test_results_show_run_of_older_release(
    store: Store, run: str, who: str, says: str, reason: Reason
) -> None:
    result = store.run(run).load_result()
    assert result is not None
    assert result.first_error is not None
    assert (result.first_error.reason, result.reason) == (reason, None)
    assert shown(store.run(run)).startswith(f"{who} failed first: {says}")


@pytest.mark.parametrize(
    ("run", "rank", "says", "reason"),
    [
        (FAILED, 1, "exit status 3: rank 1 begins", Reason.EXIT_CODE),
        (HUNG, 1, OF_HUNG, Reason.HUNG),
        (KILLED, None, "the runner was killed from outside", Reason.TOLD),
        (SHUT_DOWN, None, OF_SIGTERM, Reason.TOLD),
    ],
)
def test_run_of_older_release_is_concluded_from_its_records(
    store: Store, run: str, rank: int | None, says: str, reason: Reason
) -> None:
    (store.run(run).path / "result.json").unlink()
    result = attach(store, store.run(run), Nobody(), wait=False)
    error = result.first_error
    assert error is not None
    assert (error.rank, error.node, error.reason, result.reason) == (rank, "default-1", reason, reason)
    assert error.message.startswith(says)
    assert store.run(run).load_result() == result


@pytest.mark.parametrize("run", [FAILED, HUNG, KILLED, SHUT_DOWN])
def test_word_of_an_older_runner_is_understood(store: Store, run: str) -> None:
    folder = store.run(run)
    records = {record.node: record for record in read_node_records(folder, folder.load_run().nodes)}
    for path in (folder.path / "exit").iterdir():
        state = {**json.loads(path.read_text()), "running": False}
        assert record_of_end(path.stem, "torchrun", state) == records[path.stem]
    if run == KILLED:
        failure = Ended(reason=Reason.TOLD, detail="the runner was killed from outside")
        assert records["default-1"].failure == failure
