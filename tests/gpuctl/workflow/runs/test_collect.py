"""The result of a run: a failure once the lost node is back, and the local checkpoints."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from support import a_machine, a_result, a_run, an_inventory

from gpuctl.run_results.read_run import checkpoints_left
from gpuctl.workflow.runs.collect import failed_as_before
from gpuctl.workflow.runs.runs import machines_of
from inventories.disk.store import Store
from inventories.runs.end_reasons import Reason
from inventories.runs.result import FirstError, Seconds
from inventories.runs.run import RunNode
from remote.runs.run_files import mirrored_path

LOST = a_result(
    status="failed",
    exit_code=None,
    nnodes=2,
    world_size=2,
    seconds=Seconds(),
    first_error=FirstError(rank=None, node="gpu-1", message="lost", reason=Reason.NODE_LOST),
    reason=Reason.NODE_LOST,
)
STOPPED = replace(LOST, status="stopped", first_error=None, reason=Reason.STOPPED)


def test_failed_as_before_keeps_failure_of_lost_node() -> None:
    assert failed_as_before(LOST, STOPPED) == LOST


def test_a_symptom_does_not_take_the_place_of_the_cause() -> None:
    closed = FirstError(rank=0, node="gpu-0", message="Connection closed by peer", reason=Reason.EXIT_CODE)
    assert failed_as_before(LOST, replace(LOST, first_error=closed, exit_code=1)) == LOST
    killed = FirstError(rank=1, node="gpu-1", message="out of memory", reason=Reason.OUT_OF_MEMORY)
    symptom = replace(LOST, first_error=killed, reason=Reason.OUT_OF_MEMORY)
    assert failed_as_before(LOST, symptom) == symptom, "the lost node is back, and tells"
    removed = FirstError(rank=None, node="gpu-1", message="removed", reason=Reason.MACHINE_REMOVED)
    assert failed_as_before(LOST, replace(LOST, first_error=removed, reason=Reason.MACHINE_REMOVED)) == LOST


def test_failed_as_before_keeps_stopped_and_succeeded_results() -> None:
    assert failed_as_before(None, STOPPED) == STOPPED
    assert failed_as_before(STOPPED, STOPPED) == STOPPED
    well = replace(STOPPED, status="succeeded", exit_code=0, reason=None)
    assert failed_as_before(LOST, well) == well


def test_checkpoints_left_are_those_of_the_end(tmp_path: Path) -> None:
    folder = Store(tmp_path).new_run(datetime(2026, 11, 21, tzinfo=UTC))
    node = RunNode(name="gpu-0", rank=0, nproc=1, first_rank=0, run_dir="/home/me/run")
    run = a_run(run=folder.id, nodes=(node,))
    assert checkpoints_left(folder, run) == {}
    folder.checkpoints_path.mkdir()
    (folder.checkpoints_path / "a.pt").write_text("12345")
    [(name, left)] = checkpoints_left(folder, run).items()
    assert (name, left.files, left.bytes, left.newest) == ("gpu-0", 1, 5, "a.pt")
    mirrored_path(folder).touch()  # copied during the run, which may have left newer ones
    assert checkpoints_left(folder, run) == {}


def test_another_pod_of_that_name_is_not_the_runs_machine(tmp_path: Path) -> None:
    store = Store(tmp_path)
    pod = a_machine(
        name="c-0", host="pod-b", user="ray", transport="pod", id="space/pod-b", private_ip="10.0.0.2"
    )
    inventory = an_inventory(cluster="c", provider="kubernetes", machines=(pod,))
    store.cluster("c").save(inventory)
    part = RunNode(name="c-0", rank=0, nproc=1, first_rank=0, run_dir="/r", machine_id="space/pod-b")
    run = a_run(run="20261121-054625-000000", cluster="c", nodes=(part,))
    assert machines_of(store, run) == {"c-0": pod}
    assert machines_of(store, replace(run, nodes=(replace(part, machine_id="space/pod-a"),))) == {}
