"""Test a user's own script: its environment, arguments and folder, and the files it leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import Gpuctl, wait_for

pytestmark = pytest.mark.slow

TELL = """
import json, os, sys
from pathlib import Path
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GPUCTL_RUN_ID", "GPUCTL_RUN_DIR", "LR"]
told = {name: os.environ.get(name) for name in names}
told |= {"argv": sys.argv[1:], "cwd": os.getcwd(), "metrics": os.environ["GPUCTL_METRICS"]}
Path(os.environ["GPUCTL_RUN_DIR"], "artifacts", "rank%s.json" % os.environ["RANK"]).write_text(json.dumps(told))
print("hello from rank", os.environ["RANK"])
"""

TUTORIAL = """
import argparse
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
args = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
total = torch.cat([p.detach().flatten() for p in model.parameters()]).sum()
smallest, largest = total.clone(), total.clone()
dist.all_reduce(smallest, dist.ReduceOp.MIN)
dist.all_reduce(largest, dist.ReduceOp.MAX)
print("ranks agree" if torch.equal(smallest, largest) else "ranks differ")
dist.destroy_process_group()
"""

NCCL_SPEAKS = """
import os, sys
assert os.environ["NCCL_DEBUG"] == sys.argv[1]
line = "n:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0\\n"
if "NCCL_DEBUG_FILE" in os.environ:
    open(os.environ["NCCL_DEBUG_FILE"], "w").write(line)
else:
    print(line, end="")
"""
"""Writes NCCL's line to NCCL's log file or stdout, as no GPU is available for NCCL itself."""


COUNTS = """
import json, os, time
time.sleep(2)
began = time.monotonic()
with open(os.environ["GPUCTL_METRICS"], "w") as metrics:
    for step in range(20):
        print(json.dumps({"step": step, "loss": 0.4, "samples": 10 * (step + 1)}), file=metrics, flush=True)
        ended = time.monotonic()
        time.sleep(0.05)
print(190 / (ended - began))
"""
"""Reports no times; prints its own speed, without the two seconds of its start."""


def test_script_speed_excludes_start_time(cluster: Gpuctl) -> None:
    cluster.script("counts.py", COUNTS)
    done = cluster.ok("train", "--json", "counts.py").json
    logs = cluster.run_folder(done["run"]) / "logs"
    speeds = [float((logs / f"rank-{rank}.log").read_text()) for rank in range(2)]
    assert done["train"]["samples_per_s"] == pytest.approx(sum(speeds), rel=0.3)


def test_nccl_transport_is_in_log_and_result(cluster: Gpuctl) -> None:
    cluster.script("speaks.py", NCCL_SPEAKS)
    done = cluster.ok("train", "--json", "speaks.py", "INFO").json
    assert [rank["transports"] for rank in done["ranks"]] == [["NET/Socket"]] * 2
    log = (cluster.run_folder(done["run"]) / "logs" / "rank-0.log").read_text()
    assert log == "gpuctl: NCCL goes over NET/Socket\n"
    assert "network     NET/Socket" in cluster.ok("results", done["run"]).out


def test_nccl_debug_variable_puts_nccl_lines_in_the_log(cluster: Gpuctl) -> None:
    cluster.script("speaks.py", NCCL_SPEAKS)
    done = cluster.ok("train", "--json", "--env", "NCCL_DEBUG=WARN", "speaks.py", "WARN").json
    assert "via NET/Socket/0" in (cluster.run_folder(done["run"]) / "logs" / "rank-1.log").read_text()
    assert [rank["transports"] for rank in done["ranks"]] == [["NET/Socket"]] * 2


def test_a_script_gets_its_arguments_and_its_environment(cluster: Gpuctl) -> None:
    cluster.script("my.py", TELL)
    words = [
        "--nproc-per-node",
        "2",
        "--env",
        "LR=0.5",
        "my.py",
        "--json",
        "--lr",
        "0.1",
        "--",
        "a b",
        "*",
        "$HOME",
        "",
    ]
    done = cluster.ok("train", "--json", *words)
    result = done.json
    assert result["script"] == "my.py"
    assert result["world_size"] == 4
    folder = cluster.run_folder(result["run"])
    report = [json.loads((folder / "artifacts" / f"rank{rank}.json").read_text()) for rank in range(4)]
    for rank, item in enumerate(report):
        assert item["RANK"] == str(rank)
        assert item["LOCAL_RANK"] == str(rank % 2)
        assert item["WORLD_SIZE"] == "4"
        assert item["MASTER_ADDR"] == "127.0.0.1"
        assert item["GPUCTL_RUN_ID"] == result["run"]
        assert item["LR"] == "0.5"
        assert item["argv"] == ["--json", "--lr", "0.1", "--", "a b", "*", "$HOME", ""]
        assert (folder / "logs" / f"rank-{rank}.log").read_text() == f"hello from rank {rank}\n"
    assert len({item["metrics"] for item in report}) == 4
    assert result["train"]["accuracy"] is None, "what is not known is null"
    assert "hello from rank 0" in done.err


def test_a_tutorial_style_script_runs_unmodified(cluster: Gpuctl) -> None:
    cluster.script("ddp.py", TUTORIAL)
    for _ in range(4):
        result = cluster("train", "--json", "ddp.py", "--lr", "0.1").json
        log = cluster.ok("logs", result["run"], "--rank", "1").out
        assert log.splitlines()[0] == "ranks agree"
        # Now and then a thread of torch's gloo aborts a process that is done and leaves the interpreter (2.13,
        # without gpuctl too, about one process in thirty). Nothing else is let pass.
        error = result["first_error"]
        if error is None or "SIGABRT" not in error["message"]:
            break
    assert (result["status"], result["joined"], error) == ("succeeded", True, None)


def test_ranks_of_a_script_that_is_not_distributed_are_told(cluster: Gpuctl) -> None:
    cluster.script("alone.py", "import torch\nprint(torch.ones(1).item())\n")
    done = cluster.ok("train", "alone.py")
    assert "The 2 ranks never joined each other (torch.distributed), so each seems to have done" in done.out
    assert cluster.ok("results", "--json").json["runs"][0]["joined"] is False
    once = cluster.ok("train", "--nnodes", "1", "--nproc-per-node", "1", "--json", "alone.py").json
    assert (once["world_size"], once["joined"]) == (1, None)


USES_NAMESAKES = """
import subprocess, sys
import train.main
from pkg.helper import WORD
child = "from inventories.main import WORD; print(WORD)"
print(WORD, train.main.WORD, sys.argv[1:])
print(subprocess.check_output([sys.executable, "-c", child], text=True))
"""


def test_train_runs_a_module_whose_folders_are_named_like_gpuctls(cluster: Gpuctl) -> None:
    cluster.script("pkg/__init__.py", "")
    for name in ("pkg/helper.py", "train/main.py", "inventories/main.py"):
        cluster.script(name, f"WORD = {name!r}")
    cluster.script("remote/my-pkg/mod.py", USES_NAMESAKES)
    result = cluster.ok("train", "--json", "-m", "remote.my-pkg.mod", "--lr", "0.1", "-m", "x").json
    assert result["script"] == "-m remote.my-pkg.mod"
    logged = cluster.ok("logs").out
    assert "pkg/helper.py train/main.py ['--lr', '0.1', '-m', 'x']" in logged
    assert "[rank 1] inventories/main.py" in logged.splitlines()


def test_train_is_safe_from_colliding_module_names(cluster: Gpuctl) -> None:
    """A user's train.py, remote.py, provision/ never collide with gpuctl's; a module named like a standard one is
    theirs.
    """
    bomb = "raise SystemExit('a module of the user was imported by gpuctl')"
    for name in (
        "remote.py",
        "provision/__init__.py",
        "inventories.py",
        "click.py",
        "fabric.py",
    ):
        cluster.script(name, bomb)
    cluster.script("colorsys.py", "MINE = 'my own colorsys'")
    cluster.script("train.py", "import colorsys, sys\nprint(colorsys.MINE, sys.argv[1:])")
    local = {"PYTHONPATH": str(cluster.cwd)}
    cluster.ok("train", "--nnodes", "1", "-m", "train", "1", env=local)
    # From here on no Python that looks into this folder first would even start.
    cluster.script("types.py", bomb)
    cluster.script("random.py", bomb)
    cluster.ok("train", "--nnodes", "1", "train.py", "1")
    assert "my own colorsys ['1']" in cluster.ok("logs").out


def test_train_sends_only_changed_files_git_would_track(cluster: Gpuctl) -> None:
    listing = (
        "import os\n"
        "for folder, _, names in sorted(os.walk('.')):\n"
        "    for name in sorted(names):\n"
        "        print(os.path.join(folder, name))\n"
        "import lib.old\n"
        "open('logs/train.csv', 'w').write(str(lib.old.A))\n"
    )
    cluster.script("list.py", listing)
    cluster.script(".gitignore", "data/\n")
    cluster.script("data/big.bin", "x")
    cluster.script("lib/one.py", "")
    cluster.script("lib/two.py", "")
    cluster.script("lib/old.py", "A = 1")
    (cluster.cwd / "logs").mkdir()
    subprocess.run(["git", "init", "-q", str(cluster.cwd)], check=True)
    cluster.ok("train", "--nnodes", "1", "list.py")
    first = cluster.ok("logs").out.split()
    assert first == ["./.gitignore", "./list.py", "./lib/old.py", "./lib/one.py", "./lib/two.py"]
    (cluster.cwd / "lib" / "two.py").unlink()
    status = (cluster.cwd / "lib" / "old.py").stat()
    cluster.script("lib/old.py", "A = 2")
    os.utime(cluster.cwd / "lib" / "old.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    cluster.script("lib/one.py", "# longer")
    again = cluster.ok("train", "--nnodes", "1", "--json", "list.py")
    assert "2 files sent" in again.err
    assert "1 removed" in again.err
    assert (cluster.run_folder(again.json["run"]) / "outputs/default-0/logs/train.csv").read_text() == "2"
    assert cluster.ok("logs").out.split()[:2] == ["./.gitignore", "./list.py"]
    assert "up to date" in cluster.ok("train", "--nnodes", "1", "list.py").err


def test_dry_run_shows_what_a_run_executes(cluster: Gpuctl) -> None:
    cluster.script("my.py", "")
    secret = "hunter2-dry"
    done = cluster.ok("train", "--json", "--dry-run", "--env", f"TOKEN={secret}", "my.py", "--lr", "0.1")
    plan = done.json
    assert [node["node"] for node in plan["nodes"]] == ["default-0", "default-1"]
    argv = plan["nodes"][1]["argv"]
    assert argv[argv.index("--node-rank") + 1] == "1"
    assert argv[-4:] == ["-u", "my.py", "--lr", "0.1"]
    assert plan["nodes"][0]["env"]["GLOO_SOCKET_IFNAME"] == ("lo" if sys.platform == "linux" else "lo0")
    assert secret not in done.out + done.err
    assert plan["findings"] == []
    cluster.script("my.py", "import json, os\nprint(json.dumps(dict(os.environ)))\n")
    run = cluster.ok("train", "--json", "--env", f"TOKEN={secret}", "my.py").json["run"]
    for rank, planned in enumerate(plan["nodes"]):
        result = json.loads(cluster.ok("logs", run, "--rank", str(rank)).out)
        assert planned["env"].pop("TOKEN") is None
        prefix, _, rest = planned["env"].pop("PATH").partition(":")
        assert (result["PATH"].split(":")[0], rest) == (prefix, "$PATH")
        assert planned["env"]["GPUCTL_METRICS"].endswith("/metrics/rank-RANK.jsonl")
        for name, value in planned["env"].items():
            assert result[name] == value.replace("RUN", run).replace("-RANK.", f"-{rank}."), name


def test_logs_follows_detached_run_to_its_end(cluster: Gpuctl) -> None:
    cluster.script("slow.py", "import time\nfor i in range(30):\n    print('tick', i)\n    time.sleep(0.1)\n")
    began = cluster.ok("train", "--detach", "--json", "slow.py").json
    assert began["status"] == "running"
    assert began["ended_at"] is None
    followed = cluster.ok("logs", "-f", "--rank", "1")
    assert followed.out.split() == " ".join(f"tick {i}" for i in range(30)).split()
    assert followed.err.rstrip().endswith(f"run {began['run']}  succeeded")
    result = cluster.ok("results", "--json").json["runs"][0]
    assert result["status"] == "succeeded"
    assert [row["run"] for row in cluster.ok("runs", "--json").json["runs"]][-1] == began["run"]


def test_logs_joins_line_followed_from_its_middle(cluster: Gpuctl) -> None:
    script = (
        "import os, sys, time\n"
        "os.write(1, 'caf\u00e9'.encode()[:-1])\n"
        "while not os.path.exists(sys.argv[1]):\n    time.sleep(0.05)\n"
        "os.write(1, 'caf\u00e9'.encode()[-1:] + b' au lait\\n')\n"
    )
    cluster.script("halves.py", script)
    go = cluster.cwd / "go"
    cluster.ok("train", "--detach", "--nproc-per-node", "1", "halves.py", str(go))
    wait_for(lambda: "caf" in cluster.ok("logs", "--rank", "0").out, what="half a line", deadline_s=40)
    go.touch()
    assert cluster.ok("logs", "-f", "--rank", "0").out == "café au lait\n"


def test_docs_example_writes_metrics_and_resumes(cluster: Gpuctl) -> None:
    example = Path(__file__).parents[2] / "docs" / "examples" / "line.py"
    cluster.script("line.py", example.read_text())
    first = cluster.ok("train", "--json", "line.py", "--epochs", "2").json
    assert first["train"]["samples_per_s"] > 0
    assert len(first["train"]["loss"]) == 2
    again = cluster.ok("train", "--resume", "--json", "--", "--epochs", "4")
    assert again.json["resumed_from"] == first["run"]
    report = cluster.ok("logs", again.json["run"], "--rank", "0").out
    assert [line.split(":")[0] for line in report.splitlines()] == ["epoch 3", "epoch 4"]
    assert again.json["train"]["loss"][-1] < first["train"]["loss"][-1]
    assert (cluster.run_folder(again.json["run"]) / "artifacts" / "line.pt").exists()


MONOREPO_SCRIPT = """
import os, sys
from pathlib import Path
sys.path.insert(0, "../..")
from library.numbers import LARGE
from vendored.module import NAME
print(LARGE, NAME, Path("../../data/small.txt").read_text(), flush=True)
print(Path(__file__).parents[2].joinpath("downloads", "weights.bin").read_text())
if os.environ["RANK"] == "0":
    Path(os.environ["GPUCTL_RUN_DIR"], "checkpoints", "last.pt").write_text("weights")
"""


def test_script_finds_the_rest_of_its_repository(cluster: Gpuctl) -> None:
    def git(*words: str, folder: Path) -> None:
        local = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "protocol.file.allow=always"]
        subprocess.run(["git", *local, *words], cwd=folder, check=True, capture_output=True)

    files = {
        "repository/library/numbers.py": "LARGE = 2**40",
        "repository/data/small.txt": "some data",
        "repository/downloads/weights.bin": "weights",
        "repository/.gitignore": "downloads/\n",
        "repository/apps/first/my.py": MONOREPO_SCRIPT,
        "vendored/module.py": "NAME = 'vendored'",
    }
    for name, text in files.items():
        path = cluster.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    vendored, repository = cluster.cwd / "vendored", cluster.cwd / "repository"
    git("init", "--quiet", folder=vendored)
    git("add", "--all", folder=vendored)
    git("commit", "--quiet", "--message", "one", folder=vendored)
    git("init", "--quiet", folder=repository)
    git("submodule", "--quiet", "add", str(vendored), "vendored", folder=repository)
    typed_in = repository / "apps" / "first"

    failed = cluster("train", "my.py", cwd=typed_in)
    assert failed.status == 1
    assert "1099511627776 vendored some data" in failed.out + failed.err
    report = " ".join(failed.out.split())
    assert " downloads/weights.bin is on this computer and was not sent, because git ignores it" in report
    option = report.rpartition("with this option: ")[2].split()[:2]
    assert cluster.ok("train", *option, "my.py", cwd=typed_in).out.count("succeeded") == 1
    again = cluster.ok("train", "--resume", "--dry-run", cwd=cluster.cwd)
    assert "send 7 files, " in again.err, "what was sent before is sent again"
    assert f"of {repository} to " in again.err
    assert "run in its folder apps/first" in again.err
    (repository / "empty").mkdir()
    in_empty = cluster.ok("train", "../library/numbers.py", cwd=repository / "empty")
    assert "succeeded" in in_empty.out, "in a folder of which nothing is sent"
