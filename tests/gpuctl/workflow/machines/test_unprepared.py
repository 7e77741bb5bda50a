"""Notes on machines that exist, but that no `up` has prepared."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuctl.command_line import cli
from gpuctl.workflow.machines.setup_state import READY, unprepared, unprepared_note
from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Inventory, Machine

MACHINE = Machine(
    name="y1-0", rank=0, state="running", host="127.0.0.1", user="u", private_ip="127.0.0.1", gpus=0, id="i-0"
)
FOUR = [replace(MACHINE, name=f"y1-{rank}", rank=rank, id=f"i-{rank}") for rank in range(4)]
LINE = "y1-0 is not prepared yet: `gpuctl up --cluster y1` continues"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFolder:
    """A cluster whose `up` was begun."""
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    made = Store(tmp_path).cluster("y1")
    made.journal.append("up", provider="hosts", create=["y1-0"])
    return made


@pytest.fixture
def listening() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def save(folder: ClusterFolder, port: int) -> None:
    """A machine in the inventory."""
    folder.save(
        Inventory(
            cluster="y1",
            provider="hosts",
            created_at="2026-11-22T10:00:00+00:00",
            machines=(replace(MACHINE, port=port),),
        )
    )


def test_goes_on_names_the_machines_that_no_up_called_ready(folder: ClusterFolder) -> None:
    assert unprepared_note(folder, FOUR) == (
        "y1-0, y1-1, y1-2 and 1 more are not prepared yet: `gpuctl up --cluster y1` continues"
    )
    folder.journal.append(READY, machines=["i-1", "i-3"])
    assert unprepared(folder, FOUR) == ["y1-0", "y1-2"]
    assert unprepared(folder, [replace(FOUR[0], state="gone"), FOUR[1]]) == []
    assert unprepared_note(folder, FOUR[1:2]) == ""
    folder.journal.append(READY, machines=["i-2"])
    assert unprepared_note(folder, FOUR) == "y1-0 is not prepared yet: `gpuctl up --cluster y1` continues"


def test_goes_on_says_nothing_where_the_journal_does_not_tell(folder: ClusterFolder) -> None:
    folder.journal.path.write_text("torn\nlines\n")
    assert unprepared_note(folder, FOUR) == ""
    folder.journal.path.unlink()
    assert unprepared_note(folder, FOUR) == ""


@pytest.mark.parametrize("command", ["status", "clusters"])
def test_status_says_which_machines_are_not_prepared(
    folder: ClusterFolder, listening: int, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    save(folder, listening)
    assert cli.main([command, "--cluster", "y1"]) == 0
    assert LINE in capsys.readouterr().err
    folder.journal.append(READY, machines=["i-0", "i-1"])
    assert cli.main([command, "--cluster", "y1"]) == 0
    assert "not prepared" not in capsys.readouterr().err


def test_train_says_that_machines_it_can_not_reach_are_not_prepared(
    folder: ClusterFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    save(folder, port)  # where nobody listens any more
    (folder.path.parent.parent / "my.py").write_text("print()\n")
    assert cli.main(["train", "--cluster", "y1", "--dry-run", "my.py"]) == 1
    errors = capsys.readouterr().err
    assert errors.endswith(f"{LINE}.\n"), errors
    folder.journal.append(READY, machines=["i-0", "i-1"])
    assert cli.main(["train", "--cluster", "y1", "--dry-run", "my.py"]) == 1
    assert "not prepared" not in capsys.readouterr().err
