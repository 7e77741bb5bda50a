"""The second run of a script that saves on rank 0 and loads wherever it finds that, on real hosts."""

import signal

import pytest
from support import Gpuctl

pytestmark = pytest.mark.slow

TUTORIAL = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
model, begins = torch.nn.Linear(4, 1), 0
if os.path.exists("snapshot.pt"):
    snapshot = torch.load("snapshot.pt", weights_only=True)
    model.load_state_dict(snapshot["model"])
    begins = snapshot["epoch"]
print("begins at epoch", begins, flush=True)
model = torch.nn.parallel.DistributedDataParallel(model)
for epoch in range(begins, int(sys.argv[1])):
    model(torch.ones(2, 4)).sum().backward()
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "epoch": epoch + 1}, "snapshot.pt")
dist.barrier()
dist.destroy_process_group()
"""


def test_checkpoint_on_one_node_is_told_and_shared_or_put_aside(two_hosts: Gpuctl) -> None:
    def begins(*words: str) -> list[str]:
        ran = two_hosts.ok("train", "--json", *words)
        logs = two_hosts.run_folder(ran.json["run"]) / "logs"
        return [(logs / f"rank-{n}.log").read_text().partition("epoch ")[2].split()[0] for n in range(2)]

    script = two_hosts.script("train.py", TUTORIAL).name
    assert begins(script, "2") == ["0", "0"]

    second = two_hosts.start("train", script, "3")
    assert second.stderr is not None
    report = next(line for line in second.stderr if "from an earlier run" in line or "launch: " in line)
    second.send_signal(signal.SIGINT)
    second.communicate(timeout=60)
    assert report.startswith("snapshot.pt is on default-0 alone, from an earlier run. "), (
        "before the ranks start"
    )
    assert "--share-outputs" in report and "--fresh" in report

    assert begins("--share-outputs", script, "3") == ["2", "2"]
    assert begins("--fresh", script, "1") == ["0", "0"]
    node = two_hosts.home / "clusters" / "default" / "local" / "default-1"
    aside = list(node.rglob("*.aside-*/snapshot.pt"))
    assert len(aside) == 1, "nothing is lost"


IN_PARTS = """
import os, sys
from pathlib import Path

rank, folder = int(os.environ["RANK"]), Path("ckpt")
print("finds", sorted((path.name, path.read_text()) for path in folder.glob("__*")), flush=True)
folder.mkdir(exist_ok=True)
(folder / f"__{rank}_0.distcp").write_text(sys.argv[1])
if rank == 0:
    (folder / ".metadata").write_text("__0_0.distcp __1_0.distcp")
"""
"""Each rank writes its part, as with torch.distributed.checkpoint."""


def test_checkpoint_in_parts_is_told_and_shared_whole_and_of_one_run(two_hosts: Gpuctl) -> None:
    script = two_hosts.script("parts.py", IN_PARTS).name
    two_hosts.ok("train", script, "one")
    report = two_hosts.ok("train", script, "two").err
    assert "the checkpoint ckpt of an earlier run is in parts on default-0, default-1. " in report
    shared = two_hosts.ok("train", "--json", "--share-outputs", script, "three")
    logs = two_hosts.run_folder(shared.json["run"]) / "logs"
    result = [(logs / f"rank-{rank}.log").read_text().splitlines()[0] for rank in range(2)]
    assert result == [f"finds {[(f'__{rank}_0.distcp', 'two') for rank in range(2)]}"] * 2
    again = two_hosts.ok("train", "--json", "--share-outputs", script, "four")
    logs = two_hosts.run_folder(again.json["run"]) / "logs"
    assert "one" not in (logs / "rank-1.log").read_text() + (logs / "rank-0.log").read_text()
    assert f"from default-1 (run {shared.json['run']}): ckpt/__1_0.distcp" in again.err


def test_failure_for_want_of_an_earlier_runs_file_names_the_line_that_works(two_hosts: Gpuctl) -> None:
    two_hosts.script(
        "train.py",
        "import os, sys\n"
        "print([open(path).read() for path in sys.argv[1:]], flush=True)\n"
        "if os.environ['RANK'] == '0': open('last.txt', 'w').write('1')\n",
    )
    two_hosts.ok("train", "train.py")
    failed = two_hosts("train", "train.py", "last.txt")
    output = " ".join((failed.out + failed.err).split())
    line = "gpuctl train --share-outputs train.py last.txt"
    assert failed.status == 1
    assert "last.txt was on default-0 alone when this run began" in output
    assert line in output
    two_hosts.ok(*line.split()[1:])
