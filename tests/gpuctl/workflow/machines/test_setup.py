"""The setup: machines that have yet to run it, refusals before it runs, and the ends of its lines."""

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpuctl.app import App
from gpuctl.errors import Failed
from gpuctl.output import Output
from gpuctl.workflow.machines import setup
from gpuctl.workflow.machines.setup import plan_setup, set_up, setup_hint
from gpuctl.workflow.machines.setup_state import (
    READY,
    SET_UP,
    SETUP,
    check_set_up,
    identity,
    not_set_up,
    setup_steps,
    unprepared,
)
from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Inventory, Machine
from inventories.specs.setup_steps import SetupStep, digest
from remote.errors import BadFabfile
from remote.transport import TRANSPORTS
from tests.fakes.namespace_transport import NamespaceTransport

RENTED = Machine(
    name="c-0", rank=0, state="running", host="192.0.2.1", user="u", private_ip="10.0.0.2", gpus=0, id="i-0"
)
RETAINED = replace(RENTED, name="own", id="own", rank=1)
LINE = SetupStep(kind="run", text="echo hello")
TASK = SetupStep(kind="fab", text="prepare")
POD = replace(RENTED, transport="pod")
FABFILE = "from fabric import task\n\n@task\ndef prepare(c):\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    made = Store(tmp_path / "home").cluster("c")
    made.journal.append("up", provider="hosts", create=[])
    return made


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    """Return an app in an empty project, with readable output."""
    monkeypatch.chdir(tmp_path)
    app = App()
    app.output = Output(app.options, stderr=io.StringIO())
    return app


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A transport without SSH: commands are started here."""
    monkeypatch.setitem(TRANSPORTS, "pod", __name__)
    monkeypatch.setenv("POD_HOME", str(tmp_path))


def connect(machine: Machine, cluster: ClusterFolder, timeout_s: float) -> "Pod":
    """Connect as a transport's module does."""
    return Pod(machine, 1)


class Pod(NamespaceTransport):
    """Starts commands here."""

    def _enter(self) -> list[str]:
        return ["env", "-i", f"HOME={os.environ['POD_HOME']}", f"PATH={os.environ['PATH']}"]


def test_setup_is_lacking_until_it_has_run_on_that_machine(folder: ClusterFolder) -> None:
    machines = [RENTED, RETAINED]
    assert (setup_steps(folder), not_set_up(folder, machines, ())) == ((), [])
    check_set_up(folder, machines)
    folder.journal.append(SETUP, steps=(LINE, TASK))
    folder.journal.append(READY, machines=["i-0", "own"])
    steps = setup_steps(folder)
    assert steps == (LINE, TASK)
    assert (not_set_up(folder, machines, steps), unprepared(folder, machines)) == (machines, ["c-0", "own"])
    with pytest.raises(Failed, match=r"has not ended well on c-0, own, .* `gpuctl up` runs it"):
        check_set_up(folder, machines)
    folder.journal.append(SET_UP, machines=[identity(RENTED), identity(RETAINED)], digest=digest(steps))
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
    planned = plan_setup(app, folder, [TASK], ["c-1"], [RENTED, RETAINED])
    assert (planned.machines, planned.where) == (("c-1", "own"), "c-1, own")
    with pytest.raises(BadFabfile, match="has no task 'prepar'; did you mean 'prepare'"):
        plan_setup(app, folder, [SetupStep(kind="fab", text="prepar")], ["c-1"], [])


def test_setup_refuses_fabric_tasks_on_machines_without_ssh(
    folder: ClusterFolder, app: App, tmp_path: Path
) -> None:
    (tmp_path / "fabfile.py").write_text(FABFILE)
    planned = plan_setup(app, folder, [LINE, TASK], [], [POD])
    [done] = set_up(app, folder, [POD], planned)
    assert (done.status, done.line) == ("failed", "gpuctl fab prepare")
    assert done.error == "c-0 is reached by pod, and Fabric needs SSH: write shell lines."
    assert not_set_up(folder, [POD], planned.steps) == [POD]
    inventory = Inventory(
        cluster="c", provider="oci", created_at="2026-11-23T10:00:00+00:00", machines=(POD,), hourly_usd=2.0
    )
    assert setup_hint(inventory, [done], billed=True) == (
        "The machine is billed, for $2.00 an hour. `gpuctl up --cluster c` runs the setup on c-0 again, from its "
        "first line; `gpuctl up --cluster c -f FILE` as the file has it now; `gpuctl down --cluster c` removes the "
        "cluster."
    )


@pytest.mark.usefixtures("pod")
def test_setup_runs_lines_without_ssh_until_one_fails(
    folder: ClusterFolder, app: App, tmp_path: Path
) -> None:
    lines = ("echo first > made.txt", "cat made.txt; echo oops >&2; exit 3", "rm made.txt")
    steps = [SetupStep(kind="run", text=line) for line in lines]
    folder.make()
    [done] = set_up(app, folder, [POD], plan_setup(app, folder, steps, [], [POD]))
    assert (done.status, done.line, done.error) == ("failed", lines[1], "it exited with status 3.")
    assert sorted(done.output) == ["first", "oops"]
    written = (folder.path / "setup-c-0.log").read_text().splitlines()
    assert (written[:2], sorted(written[2:])) == ([f"$ {lines[0]}", f"$ {lines[1]}"], ["first", "oops"])
    assert done.description().splitlines()[0] == (
        f"c-0: setup: `{lines[1]}` failed: it exited with status 3. The log is {folder.path}/setup-c-0.log; its "
        "output ends with:"
    )
    assert (tmp_path / "made.txt").exists(), "no line is run after one that failed"

    fine = plan_setup(app, folder, steps[:1], [], [POD])
    assert [result.status for result in set_up(app, folder, [POD], fine)] == ["done"]
    assert set_up(app, folder, [POD], fine) == [], "once is enough"


@pytest.mark.usefixtures("pod")
def test_setup_line_that_takes_too_long_has_no_known_end(
    folder: ClusterFolder, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "COMMAND_TIMEOUT_S", 0.1)
    folder.make()
    step = SetupStep(kind="run", text="echo begun; exec sleep 60")
    [done] = set_up(app, folder, [POD], plan_setup(app, folder, [step], [], [POD]))
    assert done.status == "unknown"
    assert done.error == (
        f"c-0: `{step.text}` did not end within 0 s. It may have ended well, or go on there."
    )
    assert not_set_up(folder, [POD], [step]) == [POD]
