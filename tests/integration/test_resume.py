"""Test runs that resume from an earlier run's checkpoints: by hand, and automatically after a failure."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from support import Gpuctl, interrupt, processes_with, wait_for

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys, time
from pathlib import Path

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
steps, pause = int(sys.argv[1]), float(sys.argv[2])
folder = Path(os.environ["GPUCTL_RUN_DIR"], "checkpoints")
known = sorted(folder.glob("step-*.json"))
step = json.loads(known[-1].read_text())["step"] if rank == 0 and known else 0
print("begins after", step, "of", world, flush=True)
print("W&B run", os.environ.get("WANDB_RUN_ID"), os.environ.get("WANDB_RESUME"), flush=True)
for word in sys.argv:
    if word.startswith("mb=") and not (folder / "large").exists():
        with open(folder / "large", "wb") as file:
            file.truncate(int(word[3:]) * 10**6)
while step < steps:
    time.sleep(pause)
    step += 1
    if rank == 0:
        new = folder / "new"
        new.write_text(json.dumps({"step": step}))
        new.rename(folder / ("step-%04d.json" % step))
    if "crash" in sys.argv and rank == 1 and step == 3 and not Path("crashed").exists():
        Path("crashed").touch()
        os.kill(os.getpid(), 9)
    with open(os.environ["GPUCTL_METRICS"], "a") as file:
        file.write(json.dumps({"step": step}) + "\\n")
"""


def begun(gpuctl: Gpuctl, run: str) -> int:
    """Return the step after which rank 0 of a run began."""
    [line] = [
        line
        for line in (gpuctl.run_folder(run) / "logs" / "rank-0.log").read_text().splitlines()
        if line.startswith("begins after")
    ]
    return int(line.split()[2])


def steps_on(gpuctl: Gpuctl, node: str, run: str) -> list[int]:
    """Return the steps of a run's checkpoints on a node."""
    home = gpuctl.home / "clusters" / "default" / "local" / node / "home" / ".gpuctl-node"
    return [
        int(path.stem[5:]) for path in sorted((home / "runs" / run / node / "checkpoints").glob("step-*"))
    ]


def run_record(gpuctl: Gpuctl, run: str) -> Any:
    return json.loads((gpuctl.run_folder(run) / "run.json").read_text())


def at_step(gpuctl: Gpuctl, step: int, *, runs: int = 1) -> str:
    """Wait until the newest of `runs` runs has taken `step` steps; return its id."""

    def there() -> str | None:
        folders = sorted((gpuctl.home / "runs").glob("*"))
        if len(folders) < runs:
            return None
        return folders[-1].name if steps_seen(gpuctl) >= step else None

    return str(wait_for(there, what=f"step {step} of run {runs}", deadline_s=60))


def stopped_run(gpuctl: Gpuctl, *words: str) -> str:
    """A run of the script that was stopped by hand after some steps."""
    gpuctl.script("my.py", SCRIPT)
    gpuctl.ok("train", "--detach", *words, "my.py", "1000", "0.1")
    wait_for(lambda: gpuctl.ok("logs", "--json") and steps_seen(gpuctl) >= 3, what="three steps")
    run = gpuctl.ok("stop", "--json").json
    assert run["status"] == "stopped"
    return str(run["run"])


def steps_seen(gpuctl: Gpuctl) -> int:
    """Return the number of downloaded steps of rank 0 in the newest run."""
    folders = sorted((gpuctl.home / "runs").glob("*"))
    path = folders[-1] / "metrics" / "rank-0.jsonl" if folders else Path()
    return len(path.read_text().splitlines()) if path.is_file() else 0


def give_ranks(gpuctl: Gpuctl, *ranks: int) -> None:
    """Change which of the cluster's machines comes first."""
    inventory = gpuctl.home / "clusters" / "default" / "inventory.yaml"
    new = iter(ranks)
    inventory.write_text(re.sub(r"rank: \d+", lambda _: f"rank: {next(new)}", inventory.read_text()))


def kill_host(machine: "dict[str, int]") -> None:
    """End a local host's SSH server, as if the machine was lost."""
    [server] = [
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == machine["port"]
    ]
    psutil.Process(server).kill()


@pytest.mark.whole
def test_resume_starts_run_from_checkpoint_of_earlier_run(two_hosts: Gpuctl, tmp_path: Path) -> None:
    first = stopped_run(two_hosts)
    left = steps_on(two_hosts, "default-0", first)
    assert left
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    # New arguments follow the arguments of the earlier run; the script is found in its old folder.
    shown = two_hosts.ok("train", "--resume", "--dry-run", "--json", cwd=elsewhere).json
    assert shown["resumed_from"] == first
    assert shown["nodes"][0]["argv"][-3:] == ["my.py", "1000", "0.1"]
    done = two_hosts.ok("train", "--resume", "--json", "my.py", str(left[-1] + 2), "0")
    result = done.json
    assert result["resumed_from"] == first
    assert result["status"] == "succeeded"
    assert begun(two_hosts, result["run"]) == left[-1]
    assert steps_on(two_hosts, "default-0", result["run"]) == [*left, left[-1] + 1, left[-1] + 2]
    assert steps_on(two_hosts, "default-0", first) == left, "the earlier run's are left as they were"
    record = run_record(two_hosts, result["run"])
    assert (record["resumed_from"], record["began_with"]["run"]) == (first, first)
    matches = {node: report["newest"] for node, report in record["began_with"]["nodes"].items()}
    assert matches == dict.fromkeys(("default-0", "default-1"), f"step-{left[-1]:04d}.json")
    assert result["checkpoints"]["default-0"]["newest"] == f"step-{left[-1] + 2:04d}.json"
    assert f"from step-{left[-1]:04d}.json of run {first}" in done.err
    assert f"from run {first}" in two_hosts.ok("results").out


def test_resume_moves_checkpoints_and_survives_down(gpuctl: Gpuctl) -> None:
    gpuctl.ok("up", "--provider", "local", "--count", "2")
    first = stopped_run(gpuctl, "--nnodes", "1")
    left = steps_on(gpuctl, "default-0", first)
    # default-0 is excluded: the cluster's other machine continues, through this computer.
    give_ranks(gpuctl, 1, 0)
    moved = gpuctl.ok("train", "--resume-from", first, "--json", "my.py", str(left[-1] + 1), "0")
    assert begun(gpuctl, moved.json["run"]) == left[-1]
    assert [rank["node"] for rank in moved.json["ranks"]] == ["default-1"], "--nnodes 1 is taken over"
    assert f"note: --nnodes 1, as run {first} was started" in moved.err
    assert "brought from default-0" in moved.err
    assert steps_on(gpuctl, "default-1", moved.json["run"]) == [*left, left[-1] + 1]
    gpuctl.ok("down", "--yes")
    gpuctl.ok("up", "--provider", "local", "--count", "1")
    again = gpuctl.ok("train", "--resume-from", first, "--json", "my.py", str(left[-1] + 1), "0")
    assert begun(gpuctl, again.json["run"]) == left[-1]
    assert "with what was brought here" in again.err


@pytest.mark.parametrize("elsewhere", [False, True])
def test_resume_interrupted_removes_copied_checkpoints(two_hosts: Gpuctl, elsewhere: bool) -> None:
    two_hosts.script("my.py", SCRIPT)
    first = two_hosts.ok("train", "--nnodes", "1", "--json", "my.py", "3", "0", "mb=300").json["run"]
    if elsewhere:
        give_ranks(two_hosts, 1, 0)
    homes = two_hosts.home / "clusters" / "default" / "local"
    process = two_hosts.start("train", "--resume", "--nnodes", "2" if elsewhere else "1")
    wait_for(lambda: list(homes.glob("*/home/.gpuctl-node/runs/*/*.checkpoints")), what="placing")
    interrupt(process)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "removing the checkpoints that were placed" in err
    wait_for(
        lambda: not list(homes.glob("*/home/.gpuctl-node/runs/*/*.checkpoints")),
        what="the end",
        deadline_s=10,
    )
    assert [path.name for path in (two_hosts.home / "runs").iterdir()] == [first]
    assert not list(two_hosts.run_folder(first).glob("incoming-*"))
    assert steps_on(two_hosts, "default-0", first) == [1, 2, 3]


def test_resume_without_checkpoint_is_refused_with_reason(two_hosts: Gpuctl) -> None:
    refused = two_hosts("train", "--resume")
    assert refused.status == 2
    assert "has no runs yet" in refused.err
    two_hosts.script("plain.py", "print('ran')")
    run = two_hosts.ok("train", "--env", "SECRET=1", "--json", "plain.py").json["run"]
    for words, name in (
        (("--resume",), f"Run {run}, the latest, was of plain.py, and no run of that left a file"),
        (("--resume-from", run), f"Run {run} left no file"),
        (("--resume", "other.py"), "There is no script other.py, and no run of it left a file"),
    ):
        refused = two_hosts("train", *words)
        assert refused.status == 2
        assert name in refused.err
        assert "leave out --resume" in refused.err
    assert len(two_hosts.ok("runs", "--json").json["runs"]) == 1
    two_hosts.script("leaves.py", SCRIPT)
    left = two_hosts.ok("train", "--nnodes", "1", "--json", "leaves.py", "1", "0").json["run"]
    last = two_hosts.ok("train", "--nnodes", "1", "--json", "plain.py").json["run"]
    refused = two_hosts("train", "--resume", "plain.py")
    assert (refused.status, "No run of plain.py left a file" in refused.err) == (2, True)
    assert "leaves.py" not in refused.err, "another script's checkpoints are of no use to it"
    refused = two_hosts("train", "--resume", "--", "--epochs", "5")
    assert refused.status == 2
    assert f"Run {last}, the latest, was of plain.py, and no run of that left a file" in refused.err
    assert f"Run {left} of leaves.py left some: gpuctl train --resume-from {left}\n" in refused.err
    assert "SECRET" in (two_hosts.run_folder(run) / "run.json").read_text()
    assert run_record(two_hosts, run)["options"]["env"] == ["SECRET"]


JOB = (
    *("--dataset", "synthetic", "--synthetic", "64,3,12,12,4", "--model", "cnn", "--global-batch-size", "16"),
    *("--device", "cpu", "--threads", "1", "--no-tensorboard", "--checkpoint-every", "1"),
)


def parts_on(gpuctl: Gpuctl, node: str, run: str) -> list[str]:
    """Return a node's files of a run's newest checkpoint, with the document if it exists."""
    home = gpuctl.home / "clusters" / "default" / "local" / node / "home" / ".gpuctl-node"
    folder = home / "runs" / run / node / "checkpoints"
    return sorted(path.name for path in (*folder.glob("step-000008/*"), *folder.glob("step-000008.json")))


def test_resume_carries_every_nodes_part_to_every_node(two_hosts: Gpuctl) -> None:
    """Ranks on two nodes write a part each; another strategy resumes, on both, on one, and from here."""
    whole = two_hosts.ok("train", "--json", "--", *JOB, "--epochs", "4").json
    first = two_hosts.ok("train", "--json", "--", *JOB, "--strategy", "fsdp", "--epochs", "2").json
    assert parts_on(two_hosts, "default-0", first["run"]) == [
        ".metadata", "__0_0.distcp", "rest.pt", "step-000008.json",
    ]  # fmt: skip
    assert parts_on(two_hosts, "default-1", first["run"]) == ["__1_0.distcp"]
    local = two_hosts.run_folder(first["run"]) / "checkpoints"
    assert sorted(path.name for path in local.glob("step-000008/*")) == [
        ".metadata", "__0_0.distcp", "__1_0.distcp", "rest.pt",
    ]  # fmt: skip
    assert first["checkpoints"]["default-0"]["newest"] == "step-000008"
    again = two_hosts.ok("train", "--resume", "--json", "--", "--strategy", "zero1", "--epochs", "4")
    assert (
        f"resumes from step-000008 of run {first['run']} on 2 nodes, brought from default-0, default-1"
        in again.err
    )
    assert again.json["train"]["loss"] == pytest.approx(whole["train"]["loss"][2:], rel=1e-4)
    began = run_record(two_hosts, again.json["run"])["began_with"]["nodes"]
    assert {node: result["lacks"] for node, result in began.items()} == {"default-0": [], "default-1": []}
    item = two_hosts.ok(
        *("train", "--resume-from", first["run"], "--nnodes", "1", "--json", "--"),
        *("--strategy", "ddp", "--epochs", "4"),
    )
    assert item.json["train"]["loss"] == pytest.approx(whole["train"]["loss"][2:], rel=1e-4)
    for path in local.glob("step-000008/*"):
        path.unlink()
    target = two_hosts.home / "model.pt"
    exported = two_hosts.ok("export", first["run"], "-o", str(target), "--json").json
    assert (exported["checkpoint"], exported["left_out"]) == ("step-000008", [])
    ours, theirs = (
        torch.load(path, weights_only=True)
        for path in (target, two_hosts.run_folder(first["run"]) / "artifacts" / "model.pt")
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    # Without the part of a node that does not answer, the newest is not there, and an older one is not taken unasked.
    kill_host(two_hosts.ok("status", "--json").json["machines"][1])
    refused = two_hosts("export", first["run"], "-o", str(target))
    assert refused.status == 1
    assert "may have left its newest checkpoint on default-1, which does not answer" in refused.err
    refused = two_hosts("train", "--resume-from", first["run"], "--nnodes", "1", "--dry-run")
    assert refused.status == 1
    assert "is not whole: no machine that answers has step-000008/__1_0.distcp" in refused.err
    assert "Not every machine could be asked: default-1" in refused.err


EVERY_RANK = """
import os, sys
from pathlib import Path

kept = Path(os.environ["GPUCTL_RUN_DIR"], "checkpoints", "ck.pt")
left = kept.read_text() if kept.exists() else "nothing"
assert left == sys.argv[-1], left
if "--bad" in sys.argv:
    sys.exit(3)
kept.write_text(left + "," + os.environ["RANK"])
"""


KILLED_AT_SAVE = """
import os
from pathlib import Path

import torch

folder = Path(os.environ["GPUCTL_RUN_DIR"], "checkpoints")
folder.mkdir(exist_ok=True)
files = sorted(folder.glob("*.pt"))
print("finds", [path.name for path in files], torch.load(files[-1])["step"] if files else 0, flush=True)
if not files and os.environ["RANK"] == "0":
    torch.save({"step": 3}, folder / "step-3.pt")
    content = (folder / "step-3.pt").read_bytes()
    (folder / "step-4.pt").write_bytes(content[: len(content) // 2])
    os.kill(os.getpid(), 9)
"""


def test_restart_leaves_out_a_checkpoint_that_was_half_written(two_hosts: Gpuctl) -> None:
    script = two_hosts.script("killed.py", KILLED_AT_SAVE).name
    done = two_hosts.ok("train", "--json", "--max-restarts", "1", script)
    assert "resumes from step-3.pt" in done.err
    assert "; step-4.pt is only half written, and left out" in done.err
    assert (
        "finds ['step-3.pt'] 3"
        in (two_hosts.run_folder(done.json["run"]) / "logs" / "rank-0.log").read_text()
    )


IN_PARTS = """
import os, sys, time
from pathlib import Path

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = Path(os.environ["GPUCTL_RUN_DIR"], "checkpoints", "dcp")
parts = {path.name: path.read_text() for path in sorted(folder.glob("__*"))}
print("finds", sorted(parts.items()), flush=True)
folder.mkdir(exist_ok=True)
(folder / f"__{rank}_0.distcp").write_text(sys.argv[1])
time.sleep(1)
if rank == 0:
    (folder / ".metadata").write_text(" ".join(f"__{rank}_0.distcp" for rank in range(world)))
"""
"""Each rank writes its part, as with torch.distributed.checkpoint."""


def test_resume_puts_together_the_parts_that_each_nodes_ranks_wrote(two_hosts: Gpuctl) -> None:
    script = two_hosts.script("sharded.py", IN_PARTS).name

    def found_by(run: str) -> list[str]:
        logs = [two_hosts.run_folder(run) / "logs" / f"rank-{rank}.log" for rank in range(2)]
        return [log.read_text().partition("finds ")[2].splitlines()[0] for log in logs]

    def both(text: str) -> list[str]:
        return [str([(f"__{rank}_0.distcp", text) for rank in range(2)])] * 2

    first = two_hosts.ok("train", "--json", script, "one").json["run"]
    names = {path.name for path in (two_hosts.run_folder(first) / "checkpoints" / "dcp").iterdir()}
    assert names == {".metadata", "__0_0.distcp", "__1_0.distcp"}, "it is brought whole"
    second = two_hosts.ok("train", "--json", "--resume", script, "two")
    assert "resumes from dcp of run" in second.err
    assert found_by(second.json["run"]) == both("one")
    third = two_hosts.ok("train", "--json", "--resume", script, "three").json["run"]
    assert found_by(third) == both("two"), "no part that was placed for a run replaces one that it wrote"

    for home in (
        two_hosts.run_folder(third),
        two_hosts.home / "clusters" / "default" / "local" / "default-1",
    ):
        for part in home.rglob(f"*{third}/**/__1_0.distcp"):
            part.unlink()
        (home / "checkpoints" / "dcp" / "__1_0.distcp").unlink(missing_ok=True)
    torn = two_hosts("train", "--resume-from", third)
    assert f"checkpoint dcp of run {third} is incomplete: parts of rank 1 (default-1) are missing" in torn.err


def test_resume_gives_first_nodes_checkpoint_to_every_rank(two_hosts: Gpuctl) -> None:
    two_hosts.script("every.py", EVERY_RANK)
    two_hosts.ok("train", "every.py", "nothing")
    second = two_hosts.ok("train", "--resume", "--json", "every.py", "nothing,0")
    run = second.json["run"]
    assert second.json["nnodes"] == 2
    assert f"run {run} (every.py) resumes from ck.pt of run " in second.err
    # A failed run without a checkpoint is skipped with its arguments, also after the ranks moved.
    give_ranks(two_hosts, 1, 0)
    failed = two_hosts("train", "--resume", "--json", "--", "--bad", "nothing,0,0")
    assert (failed.json["resumed_from"], failed.json["exit_code"]) == (run, 3), failed.err
    done = two_hosts.ok("train", "--resume", "--json", "--", "--expect", "nothing,0,0")
    assert f"run {failed.json['run']} is skipped: it wrote no checkpoint" in done.err
    assert done.json["resumed_from"] == run


def test_max_restarts_restarts_after_killed_rank(two_hosts: Gpuctl) -> None:
    two_hosts.script("my.py", SCRIPT)
    done = two_hosts("train", "--max-restarts", "3", "--json", "my.py", "12", "0.2", "crash")
    assert done.status == 0, done.err
    result = done.json
    runs = two_hosts.ok("runs", "--json").json["runs"]
    assert [run["status"] for run in runs] == ["failed", "succeeded"]
    assert result["run"] == runs[1]["run"]
    assert result["resumed_from"] == runs[0]["run"]
    assert begun(two_hosts, result["run"]) >= 2
    for run in runs:
        logs = two_hosts.run_folder(run["run"]) / "logs"
        assert f"W&B run {runs[0]['run']} allow" in (logs / "rank-0.log").read_text()
        assert f"W&B run {runs[0]['run']}-rank1 allow" in (logs / "rank-1.log").read_text()
    output = [line for line in done.err.splitlines() if line.startswith("restart ")]
    assert len(output) == 1
    assert output[0].startswith(
        f"restart 1 of 3: run {runs[0]['run']} failed (rank 1 on default-1: killed by SIGKILL"
    )
    assert f"run {result['run']} (my.py) resumes from step-" in output[0]
    assert not processes_with("my.py", str(two_hosts.home))


def test_max_restarts_limits_restarts_and_shows_last_error(two_hosts: Gpuctl) -> None:
    two_hosts.script("fails.py", "import os, sys\nprint('no such layer', os.urandom(4).hex())\nsys.exit(3)\n")
    done = two_hosts("train", "--max-restarts", "2", "--json", "fails.py")
    assert done.status == 1
    assert done.json["exit_code"] == 3
    assert "no such layer" in done.json["first_error"]["message"]
    runs = [run["run"] for run in two_hosts.ok("runs", "--json").json["runs"]]
    assert len(runs) == 3
    assert [run_record(two_hosts, run)["resumed_from"] for run in runs] == [None, *runs[:2]]
    output = [line for line in done.err.splitlines() if line.startswith("restart ")]
    assert [line.split(":")[0] for line in output] == ["restart 1 of 2", "restart 2 of 2"]
    assert all("starts from the beginning on 2 nodes" in line for line in output)


def test_max_restarts_continues_without_lost_node(two_hosts: Gpuctl) -> None:
    machines = two_hosts.ok("status", "--json").json["machines"]
    two_hosts.script("my.py", SCRIPT)
    process = two_hosts.start("train", "--max-restarts", "1", "--json", "my.py", "30", "0.2")
    first = at_step(two_hosts, 3)
    kill_host(machines[1])
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert (result["status"], result["nnodes"], result["world_size"]) == ("succeeded", 1, 1)
    assert result["resumed_from"] == first
    assert begun(two_hosts, result["run"]) >= 3
    assert f"of run {first} on 1 node, 1 rank instead of 2" in err


def test_max_restarts_starts_over_after_loss_of_first_node(two_hosts: Gpuctl) -> None:
    machines = two_hosts.ok("status", "--json").json["machines"]
    two_hosts.script("my.py", SCRIPT)
    process = two_hosts.start("train", "--max-restarts", "1", "--json", "my.py", "30", "0.1")
    first = at_step(two_hosts, 3)
    kill_host(machines[0])
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert [rank["node"] for rank in json.loads(out)["ranks"]] == ["default-1"]
    assert "starts from the beginning on 1 node, 1 rank instead of 2: no checkpoint" in err
    assert f"run {first} may have left some on default-0, which does not answer" in err


def test_max_restarts_does_not_restart_stopped_run(two_hosts: Gpuctl) -> None:
    two_hosts.script("my.py", SCRIPT)
    for end in (interrupt, lambda _process: two_hosts.ok("stop")):
        process = two_hosts.start("train", "--max-restarts", "2", "--json", "my.py", "1000", "0.1")
        before = len(list((two_hosts.home / "runs").glob("*")))
        at_step(two_hosts, 2, runs=before + 1)
        end(process)
        out, err = process.communicate(timeout=60)
        assert process.returncode == (130 if end is interrupt else 1), err
        assert json.loads(out)["status"] == "stopped"
        assert len(list((two_hosts.home / "runs").glob("*"))) == before + 1
    assert not processes_with("my.py", str(two_hosts.home))


def kill_rank(gpuctl: Gpuctl, run: str, rank: int) -> None:
    record = gpuctl.run_folder(run) / "ranks" / f"rank-{rank}.json"
    os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)


def test_interrupt_stops_restarted_run(two_hosts: Gpuctl) -> None:
    two_hosts.script("my.py", SCRIPT)
    process = two_hosts.start("train", "--max-restarts", "5", "--json", "my.py", "1000", "0.1")
    kill_rank(two_hosts, at_step(two_hosts, 3), 1)
    second = at_step(two_hosts, 3, runs=2)
    interrupt(process)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert (json.loads(out)["run"], json.loads(out)["status"]) == (second, "stopped")
    assert not processes_with("my.py", str(two_hosts.home))


def test_interrupt_before_restart_reports_the_failure(two_hosts: Gpuctl) -> None:
    two_hosts.script("my.py", SCRIPT)
    process = two_hosts.start("train", "--max-restarts", "5", "--json", "my.py", "1000", "0.1")
    first = at_step(two_hosts, 3)
    # While another process holds the cluster's lock, no other run can begin.
    holder = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.flock(file, fcntl.LOCK_EX); "
        "print(1, flush=True); input()"
    )
    lock = two_hosts.home / "clusters" / "default" / "lock"
    held = subprocess.Popen(
        [sys.executable, "-c", holder, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert held.stdout.readline() == "1\n"
        kill_rank(two_hosts, first, 1)
        result = two_hosts.run_folder(first) / "result.json"
        wait_for(result.exists, what="the end of the first run")
        interrupt(process)
        out, err = process.communicate(timeout=60)
    finally:
        held.communicate("\n", timeout=10)
    assert process.returncode == 130, err
    assert (json.loads(out)["run"], json.loads(out)["status"]) == (first, "failed")
    assert json.loads(out)["first_error"]["rank"] == 1
    assert len(list((two_hosts.home / "runs").glob("*"))) == 1


def test_max_restarts_is_refused_with_detach(gpuctl: Gpuctl) -> None:
    refused = gpuctl("train", "--detach", "--max-restarts", "1", "my.py")
    assert refused.status == 2
    assert "Leave out --detach" in refused.err
