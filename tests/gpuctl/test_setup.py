"""Which machines have yet to run the setup, and what is refused before any of it runs."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from gpuctl.errors import Failed
from gpuctl.options import App
from gpuctl.output import Output
from gpuctl.workflow.cluster.unprepared import (
    READY,
    SET_UP,
    SETUP,
    check_set_up,
    identity,
    not_set_up,
    setup_steps,
    unprepared,
)
from gpuctl.workflow.setup import how_to_go_on, plan_setup, set_up
from inventories.machine import Inventory, Machine
from inventories.setup import SetupStep, digest
from inventories.store import ClusterFolder, Store
from remote.errors import BadFabfile

RENTED = Machine(
    name="c-0", rank=0, state="running", host="192.0.2.1", user="u", private_ip="10.0.0.2", gpus=0, id="i-0"
)
OWN = replace(RENTED, name="own", id="own", rank=1)
LINE = SetupStep(kind="run", text="echo hello")
TASK = SetupStep(kind="fab", text="prepare")
FABFILE = "from fabric import task\n\n@task\ndef prepare(c):\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    made = Store(tmp_path / "home").cluster("c")
    made.journal.append("up", provider="hosts", create=[])
    return made


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    """One in an empty project, whose words can be read."""
    monkeypatch.chdir(tmp_path)
    app = App()
    app.output = Output(app.options, stderr=io.StringIO())
    return app


def test_setup_is_lacking_until_it_has_run_on_that_machine(folder: ClusterFolder) -> None:
    machines = [RENTED, OWN]
    assert (setup_steps(folder), not_set_up(folder, machines, ())) == ((), [])
    check_set_up(folder, machines)
    folder.journal.append(SETUP, steps=(LINE, TASK))
    folder.journal.append(READY, machines=["i-0", "own"])
    steps = setup_steps(folder)
    assert steps == (LINE, TASK)
    assert (not_set_up(folder, machines, steps), unprepared(folder, machines)) == (machines, ["c-0", "own"])
    with pytest.raises(Failed, match=r"has not ended well on c-0, own, .* `gpuctl up` runs it"):
        check_set_up(folder, machines)
    folder.journal.append(SET_UP, machines=[identity(RENTED), identity(OWN)], digest=digest(steps))
    assert (not_set_up(folder, machines, steps), unprepared(folder, machines)) == ([], [])
    # A rented machine keeps its id where its address changes; of one's own another address is another machine.
    moved = [replace(machine, host="192.0.2.9") for machine in machines]
    assert not_set_up(folder, moved, steps) == [moved[1]]
    assert not_set_up(folder, machines, (LINE,)) == machines
    folder.journal.append(SETUP, steps=())
    check_set_up(folder, moved)


def test_plan_names_machines_that_lack_the_setup_and_refuses_unknown_tasks(
    folder: ClusterFolder, app: App, tmp_path: Path
) -> None:
    folder.journal.append(SET_UP, machines=[identity(RENTED)], digest=digest([TASK]))
    assert plan_setup(app, folder, [TASK], [], [RENTED]).machines == (), "no fabfile is needed for it"
    with pytest.raises(BadFabfile, match=r"There is no fabfile\.py in"):
        plan_setup(app, folder, [TASK], ["c-1"], [RENTED])
    (tmp_path / "fabfile.py").write_text(FABFILE)
    setup = plan_setup(app, folder, [TASK], ["c-1"], [RENTED, OWN])
    assert (setup.machines, setup.where) == (("c-1", "own"), "c-1, own")
    with pytest.raises(BadFabfile, match="has no task 'prepar'; did you mean 'prepare'"):
        plan_setup(app, folder, [SetupStep(kind="fab", text="prepar")], ["c-1"], [])


def test_setup_refuses_fabric_tasks_on_machines_without_ssh(
    folder: ClusterFolder, app: App, tmp_path: Path
) -> None:
    (tmp_path / "fabfile.py").write_text(FABFILE)
    pod = replace(RENTED, transport="pod")
    setup = plan_setup(app, folder, [LINE, TASK], [], [pod])
    [done] = set_up(app, folder, [pod], setup)
    assert (done.status, done.line) == ("failed", "gpuctl fab prepare")
    assert done.error == "c-0 is reached by pod, and Fabric needs SSH: write shell lines."
    assert not_set_up(folder, [pod], setup.steps) == [pod]
    inventory = Inventory(
        cluster="c", provider="oci", created_at="2026-11-23T10:00:00+00:00", machines=(pod,), hourly_usd=2.0
    )
    assert how_to_go_on(inventory, [done], billed=True) == (
        "The machine is billed, for $2.00 an hour. `gpuctl up --cluster c` runs the setup on c-0 again, from its "
        "first line; `gpuctl down --cluster c` removes the cluster."
    )
