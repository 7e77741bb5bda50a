"""`train` is killed at its requests to the nodes, its computer's files are deleted, and another computer adopts."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from clouds import COUNT, KINDS, CloudGpuctl, cloud_gpuctl
from forks import Forked, Forks
from gated_python import CUT_BYTES, Gate
from support import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = """
import hashlib, os, pathlib, sys, time
folder, shared, rank = pathlib.Path(os.environ["GPUCTL_RUN_DIR"]), pathlib.Path(sys.argv[1]), os.environ["RANK"]
with open(shared / f"{os.environ['GPUCTL_RUN_ID']}-{rank}", "a") as starts:
    starts.write("started ")
print("data", hashlib.sha256(pathlib.Path("data").read_bytes()).hexdigest(), flush=True)
if rank == "0":
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / "step-1").write_bytes(pathlib.Path("data").read_bytes())
while not (shared / "end").exists():
    time.sleep(0.05)
(folder / "artifacts" / f"of-{rank}").write_text(rank)
"""
RESUME = ("train", "--device", "cpu", "--json", "--resume")
BEFORE_LAUNCH = (
    ("checkpoints", 1, "hold"),
    ("facts", 1, "hold"),
    ("facts", 2, "hold"),
    ("sync", 1, "cut"),
    ("sync", 2, "hold"),
    ("probe", 1, "hold"),
    ("checkpoints", 3, "hold"),
    ("send_checkpoints", 1, "hold"),
    ("sync", 3, "cut"),
    ("follow", 1, "hold"),
)
"""Points at which no rank runs yet; the third `sync` brings checkpoints."""


class Computers:
    """Computers with one account, of which each loses its files, and the machines of one cluster."""

    def __init__(self, gpuctl: CloudGpuctl, folder: Path, gate: Gate) -> None:
        self.gpuctl, self.gate = gpuctl, gate
        self.shared = folder / "shared"
        self._homes = (folder / f"home-{number}" for number in range(1000))
        self._folder = folder

    def kill(self, process: Forked) -> None:
        """End a command, and delete its computer's files."""
        assert process.poll() is None, process.communicate()
        process.kill()
        process.communicate()
        self.gate.open()
        shutil.rmtree(self.gpuctl.home)

    def train_until(self, request: str, nth: int, way: str) -> None:
        """Begin a run that resumes the last one, with other data, and kill it at a request."""
        (self.gpuctl.cwd / "data").write_bytes(os.urandom(3 * CUT_BYTES))
        self.gate.close_at(request, nth, cut=way == "cut")
        process = self.gpuctl.fork(*RESUME)
        wait_for(lambda: self.gate.closed or process.poll() is not None, what=f"{request} {nth}")
        self.kill(process)

    def adopt(self) -> list[dict[str, Any]]:
        """Adopt from a computer without files. Returns its runs."""
        self.gpuctl = replace(self.gpuctl, home=next(self._homes))
        self.gpuctl.ok("adopt", "--yes")
        runs: list[dict[str, Any]] = self.gpuctl.ok("runs", "--json").json["runs"]
        return runs

    def parts(self, name: str) -> list[Path]:
        """Return the files of that name of all runs on the nodes."""
        return list(self._folder.glob(f"fake-*/hosts/*/home/.gpuctl-node/runs/*/*/{name}"))

    def starts(self, run: str) -> list[str]:
        """Return the starts of each rank of a run."""
        return [path.read_text() for path in sorted(self.shared.glob(f"{run}-*"))]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, imported: Forks) -> Iterator[Computers]:
    """Yield a cluster with a run that wrote a checkpoint."""
    folder, kind = tmp_path_factory.mktemp("adopt"), KINDS["aws"]
    gate = Gate(folder / "gate")
    with cloud_gpuctl(kind, folder, hosts=True) as gpuctl:
        computers = Computers(replace(gpuctl, forks=imported), folder, gate)
        computers.shared.mkdir()
        spec = {
            "shape": kind.shape,
            "count": COUNT,
            "ssh_cidr": "127.0.0.1/32",
            "python": str(gate.python),
            "network": {"ssh_port": gpuctl.cloud.settings()["ssh_port"]},
            "driver": "none",
        }
        gpuctl.script("cloud.yaml", yaml.safe_dump(spec))
        gpuctl.script("my.py", SCRIPT)
        (gpuctl.cwd / "data").write_bytes(os.urandom(3 * CUT_BYTES))
        gpuctl.ok("up", "-f", "cloud.yaml", "--yes")
        (computers.shared / "end").touch()
        gpuctl.ok("train", "--device", "cpu", "my.py", str(computers.shared), timeout_s=170)
        yield computers
        computers.gpuctl.ok("down", "--yes")
        assert gpuctl.cloud.owned() == []


@pytest.fixture
def computers(cluster: Computers) -> Computers:
    """Return the cluster, known to a computer, with scripts that do not end."""
    cluster.adopt()
    (cluster.shared / "end").unlink(missing_ok=True)
    return cluster


def check_next_run_works(computers: Computers, resumed: str) -> None:
    """Check that a run of the computer resumes that run, and succeeds with the newest data."""
    (computers.shared / "end").touch()
    ended = computers.gpuctl.ok(*RESUME, timeout_s=170)
    assert (ended.json["status"], f"of run {resumed} on 2 nodes" in ended.err) == ("succeeded", True)


def test_train_killed_before_its_launch_blocks_nothing(computers: Computers) -> None:
    (known,) = computers.adopt()
    for point in BEFORE_LAUNCH:
        computers.train_until(*point)
        assert [run["run"] for run in computers.adopt()] == [known["run"]], point
    assert len(list(computers.shared.glob("*-0"))) == 1, "no rank of another run started"
    check_next_run_works(computers, known["run"])


def test_half_launched_run_is_named_until_it_is_stopped(computers: Computers) -> None:
    """One node has its part of the run, whose ranks wait for the other node's."""
    before = len(computers.parts("runner.json"))
    computers.gate.close_at("follow", 2)
    process = computers.gpuctl.fork(*RESUME)
    wait_for(lambda: len(computers.parts("runner.json")) > before, what="one node's part")
    computers.kill(process)

    *_, known, half = computers.adopt()
    assert half["status"] == "running"
    refused = computers.gpuctl(*RESUME)
    assert (refused.status, f"gpuctl stop {half['run']}" in refused.err) == (1, True)
    computers.gpuctl.ok("stop", half["run"])
    result = computers.gpuctl.ok("results", half["run"], "--json").json["runs"][0]
    assert result["status"] in ("stopped", "failed")
    assert computers.starts(half["run"]) == []
    check_next_run_works(computers, known["run"])


@pytest.mark.parametrize("ended", [False, True], ids=["active", "ended"])
def test_launched_run_is_brought_and_not_launched_twice(computers: Computers, ended: bool) -> None:
    process = computers.gpuctl.fork(*RESUME)
    known = len(list(computers.shared.glob("*-0")))
    wait_for(lambda: len(list(computers.shared.glob("*-?"))) == (known + 1) * COUNT, what="both ranks")
    computers.kill(process)
    if ended:
        (computers.shared / "end").touch()
        wait_for(
            lambda: len(computers.parts("exit.json")) == len(computers.parts("runner.json")), what="its end"
        )

    *_, run = computers.adopt()
    if not ended:
        assert run["status"] == "running"
        refused = computers.gpuctl(*RESUME)
        assert (refused.status, f"gpuctl logs -f {run['run']}" in refused.err) == (1, True)
        (computers.shared / "end").touch()
        assert "[rank 1] data" in computers.gpuctl.ok("logs", "-f", run["run"]).out
    (result,) = computers.gpuctl.ok("results", run["run"], "--json").json["runs"]
    assert result["status"] == "succeeded"
    files = {(file["kind"], file["path"]) for file in result["files"]}
    assert files >= {
        ("artifact", "artifacts/of-0"),
        ("artifact", "artifacts/of-1"),
        ("checkpoint", "checkpoints/step-1"),
    }
    assert computers.starts(run["run"]) == ["started "] * COUNT
    check_next_run_works(computers, run["run"])
