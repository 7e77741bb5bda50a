"""Test files that a script writes into its working folder on real hosts: reported, and downloaded or named."""

import shlex
import subprocess
from pathlib import Path

import pytest
from support import Gpuctl

pytestmark = pytest.mark.slow

WRITES = """
import os
from pathlib import Path
rank = os.environ["RANK"]
Path("runs/exp1").mkdir(parents=True, exist_ok=True)
Path(f"runs/exp1/events.out.tfevents.{rank}").write_bytes(b"e" * 1000)
Path("../shared.txt").write_text(f"of rank {rank}")
(Path.home() / "sets").mkdir(exist_ok=True)
(Path.home() / "sets" / f"part-{rank}.npy").write_text("outside")
Path("../../beside.txt").write_text("outside")
os.makedirs("__pycache__", exist_ok=True)
Path("__pycache__/x.pyc").write_text("cache")
if rank == "0":
    with open("big model.pt", "wb") as file:
        file.truncate(70 * 1000**2)
    with open("settings.txt", "a") as file:
        file.write("changed")
    os.symlink("/etc/passwd", "out")
    Path(os.fsdecode(b"caf\\xe9")).write_text("odd")
raise SystemExit(int(os.environ.get("END", "0")))
"""
"""Runs in the folder `job` of a repository."""


@pytest.fixture
def job(cluster: Gpuctl) -> Path:
    """A repository's folder with the script, from which commands are typed."""
    subprocess.run(["git", "init", "--quiet"], cwd=cluster.cwd, check=True)
    cluster.script("job/settings.txt", "as sent\n")
    return cluster.script("job/train.py", WRITES).parent


def test_what_a_script_wrote_comes_back_or_is_named_with_what_brings_it(cluster: Gpuctl, job: Path) -> None:
    result = cluster.ok("train", "--json", "train.py", cwd=job).json
    folder = cluster.run_folder(result["run"]) / "outputs"
    report = {(file["node"], file["path"]): (file["kind"], file["brought"]) for file in result["outputs"]}
    assert report == {
        ("default-0", "job/big model.pt"): (None, False),
        ("default-0", "job/caf\\udce9"): (None, True),
        ("default-0", "job/runs/exp1/events.out.tfevents.0"): ("TensorBoard", True),
        ("default-0", "job/settings.txt"): (None, True),
        ("default-0", "shared.txt"): (None, True),
        ("default-1", "job/runs/exp1/events.out.tfevents.1"): ("TensorBoard", True),
        ("default-1", "shared.txt"): (None, True),
    }
    assert (folder / "default-0" / "job" / "settings.txt").read_text() == "as sent\nchanged"
    assert [(folder / f"default-{n}" / "shared.txt").read_text() for n in range(2)] == [
        "of rank 0",
        "of rank 1",
    ]
    assert {path.name for path in folder.rglob("*pass*")} == set()
    sizes = {file["path"]: file["bytes"] for file in result["files"] if file["kind"] == "output"}
    assert sizes["outputs/default-1/job/runs/exp1/events.out.tfevents.1"] == 1000

    outside = {(place["node"], place["path"], place["files"]) for place in result["outside"]}
    extra = ".gpuctl-node/code/beside.txt"
    assert outside == {(f"default-{n}", path, 1) for n in range(2) for path in ("sets/", extra)}

    shown = cluster.ok("results", result["run"]).out
    bring = next(line for line in shown.splitlines() if "sets/ 2 files, 14 B on 2 nodes: " in line)
    cluster.ok(*shlex.split(bring.partition("nodes: ")[2])[1:])
    pulled = cluster.home / "pulled" / result["run"]
    for number in range(2):
        assert (pulled / "sets" / f"default-{number}" / f"part-{number}.npy").read_text() == "outside"
    (command,) = [line.partition(": ")[2] for line in shown.splitlines() if "on the node: " in line]
    cluster.ok(*shlex.split(command)[1:])
    assert (pulled / "default-0" / "job" / "big model.pt").stat().st_size == 70 * 1000**2


def test_next_run_tells_of_its_own_files_and_brings_those_it_is_to(cluster: Gpuctl, job: Path) -> None:
    cluster.ok("train", "--bring", "none", "train.py", cwd=job)
    cluster.script("job/second.py", "open('second.txt', 'w').write('x')")
    second = cluster.ok("train", "--json", "--nnodes", "1", "second.py", cwd=job).json
    assert [(file["node"], file["path"]) for file in second["outputs"]] == [("default-0", "job/second.txt")]
    ran = cluster("train", "--json", "--bring", "*.pt", "--env", "END=3", "train.py", cwd=job)
    assert ran.json["status"] == "failed", "what a failed run wrote comes back, too"
    (brought,) = (cluster.run_folder(ran.json["run"]) / "outputs").rglob("*.pt")
    assert brought.stat().st_size == 70 * 1000**2


def test_detached_run_brings_its_files_to_who_asks_later(cluster: Gpuctl, job: Path) -> None:
    run = cluster.ok("train", "--json", "--detach", "--bring", "none", "train.py", cwd=job).json["run"]
    cluster.ok("logs", "-f", run)
    (result,) = cluster.ok("results", "--json", run).json["runs"]
    assert {file["brought"] for file in result["outputs"]} == {False}
    assert [total["files"] for total in result["output_totals"]] == [5, 2]
    assert not (cluster.run_folder(run) / "outputs").exists()
