"""Test `--mode ray` on local hosts: real daemons, workers and drivers, next to another user's Ray."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from image_files import write_mnist
from support import BIN, Done, Gpuctl, interrupt, processes_with, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        sys.platform != "linux", reason="local hosts have no address of their own for Ray but on Linux"
    ),
]

TRAIN_S = 240.0
DRIVER = """
import json, os, sys
import ray
import squares

ray.init(log_to_driver=False)

@ray.remote(scheduling_strategy="SPREAD")
def square(number):
    assert os.environ["KEY"] == "secret"
    node = ray.get_runtime_context().get_node_labels()["gpuctl-node"]
    open("of-" + node + ".txt", "w").write(node)
    return squares.of(number), node

@ray.remote
class Actor:
    def key(self):
        return os.environ["KEY"]

assert ray.get(Actor.remote().key.remote()) == "secret"

@ray.remote
def fails():
    raise ValueError("no such layer: 17")

found = ray.get([square.remote(number) for number in range(8)])
print("squares", [number for number, _ in found], sys.argv[1:])
print("nodes", *sorted({node for _, node in found}))
with open(os.environ["GPUCTL_METRICS"], "a") as file:
    file.write(json.dumps({"step": 1, "loss": 0.5, "samples": 10}) + "\\n")
if "--fail" in sys.argv:
    ray.get(fails.remote())
with open(os.path.join(os.environ["GPUCTL_RUN_DIR"], "artifacts", "found.txt"), "w") as file:
    file.write("squares")
"""


@pytest.fixture(scope="module")
def ray_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the home of a cluster of two local hosts, on which Ray stays between tests."""
    command = Gpuctl(home=tmp_path_factory.mktemp("ray"), cwd=tmp_path_factory.mktemp("start"))
    command.ok("up", "--provider", "local", "--count", "2")
    yield command.home
    command.ok("down", "--yes")
    assert not processes_with(str(command.home)), "processes were left behind"


@pytest.fixture
def hosts(ray_home: Path, tmp_path: Path) -> Gpuctl:
    """gpuctl with that cluster, in an empty project."""
    return Gpuctl(home=ray_home, cwd=tmp_path)


def train(gpuctl: Gpuctl, *words: str, mode: str = "ray") -> Done:
    return gpuctl("train", "--json", "--mode", mode, *words, timeout_s=TRAIN_S)


def losses(gpuctl: Gpuctl, run: str) -> list[float]:
    """Rank 0's, step by step."""
    text = (gpuctl.run_folder(run) / "metrics" / "rank-0.jsonl").read_text()
    return [line["loss"] for line in map(json.loads, text.splitlines()) if "step" in line]


def node_home(gpuctl: Gpuctl, rank: int) -> Path:
    return gpuctl.home / "clusters" / "default" / "local" / f"default-{rank}" / "home" / ".gpuctl-node"


def daemons(gpuctl: Gpuctl, rank: int) -> dict[str, Any]:
    """Return the node's record of its Ray."""
    return json.loads((node_home(gpuctl, rank) / "ray" / f"default-{rank}" / "node.json").read_text())


def keeper_pid(gpuctl: Gpuctl, rank: int) -> int:
    """Return the pid of the process that started the node's daemons and ends after them."""
    return json.loads((Path(daemons(gpuctl, rank)["run_dir"]) / "runner.json").read_text())["pid"]


def content(path: Path) -> bytes:
    """Return the bytes of a plain file. Empty: not a plain file, or deleted by now."""
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError:
        return b""


def start_train(gpuctl: Gpuctl, *words: str, strategy: str = "ddp") -> "tuple[subprocess.Popen[str], str]":
    """A run that takes minutes, once its ranks take steps; with its id."""
    job = ("--epochs", "500", "--checkpoint-every", "1", "--strategy", strategy)
    before = {folder.name for folder in (gpuctl.home / "runs").glob("*")}
    process = gpuctl.start("train", "--json", "--mode", "ray", *words, "--", *job)

    def at_work() -> str | None:
        for folder in (gpuctl.home / "runs").glob("*"):
            metrics = folder / "metrics" / "rank-0.jsonl"
            if folder.name not in before and metrics.exists() and '"epoch": 2' in metrics.read_text():
                return folder.name
        assert process.poll() is None, process.communicate()
        return None

    return process, wait_for(at_work, what="the ranks at work", deadline_s=120)


def rank_pid(gpuctl: Gpuctl, run: str, rank: int) -> int:
    return int(json.loads((gpuctl.run_folder(run) / "ranks" / f"rank-{rank}.json").read_text())["pid"])


def test_ray_run_has_the_losses_of_torchrun(hosts: Gpuctl) -> None:
    """CNN on MNIST's format, two hosts x two workers, lr 0.01, batch 64; the second time on the running Ray."""
    data = write_mnist(hosts.cwd / "data", training=512, test=64)
    job = ["--nproc-per-node", "2", "--", "--dataset", "mnist", "--data-dir", str(data), "--model", "cnn"]
    job += ["--optimizer", "sgd", "--lr", "0.01", "--batch-size", "64", "--epochs", "2"]
    job += ["--precision", "fp32", "--log-every", "1"]
    done = train(hosts, *job)
    assert done.status == 0, done.err
    assert "Ray's head was started, and stays for later runs: gpuctl ray stop ends it" in done.err
    result = done.json
    assert (result["mode"], result["status"], result["world_size"], result["nnodes"]) == (
        "ray",
        "succeeded",
        4,
        2,
    )
    assert [(rank["node"], rank["local_rank"], rank["exit_code"]) for rank in result["ranks"]] == [
        ("default-0", 0, 0),
        ("default-0", 1, 0),
        ("default-1", 0, 0),
        ("default-1", 1, 0),
    ]
    assert len(result["train"]["loss"]) == 2
    assert (hosts.run_folder(result["run"]) / "artifacts" / "model.pt").exists()

    reference = train(hosts, *job, mode="torchrun")
    assert reference.status == 0, reference.err
    steps = losses(hosts, result["run"])
    assert len(steps) == 4, "two of each epoch"
    assert steps == pytest.approx(losses(hosts, reference.json["run"]), rel=1e-5)
    assert result.keys() == reference.json.keys()
    assert result["train"]["loss"] == pytest.approx(reference.json["train"]["loss"], rel=1e-5)


def test_ray_token_is_private_and_required(hosts: Gpuctl) -> None:
    train(hosts, "--", "--epochs", "1", "--model", "mlp")
    token_file = hosts.home / "clusters" / "default" / "keys" / "ray_token"
    token = token_file.read_text()
    saved = [token_file, *(node_home(hosts, rank) / "ray" / f"default-{rank}" / "token" for rank in (0, 1))]
    assert [path.stat().st_mode & 0o777 for path in saved] == [0o600] * 3
    assert {path.read_text() for path in saved} == {token}
    for pid in psutil.pids():
        assert token.encode() not in content(Path(f"/proc/{pid}/cmdline"))
    report = [path for path in hosts.home.rglob("*") if path not in saved]
    report += [path for rank in (0, 1) for path in Path(daemons(hosts, rank)["temp_dir"]).rglob("*")]
    assert len(report) > 50
    assert [path for path in report if token.encode() in content(path)] == []

    port = daemons(hosts, 0)["ports"]["dashboard"]
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 403),
        ({"Authorization": f"Bearer {token}"}, 200),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/nodes?view=summary", headers=headers)
        assert connection.getresponse().status == status
        connection.close()
    joins = subprocess.run(
        [sys.executable, "-c", f"import ray; ray.init('127.0.0.2:{daemons(hosts, 0)['ports']['gcs']}')"],
        env={key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        | {"RAY_AUTH_MODE": "token"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert joins.returncode != 0
    assert "token" in joins.stderr


@pytest.mark.whole
def test_ray_script_runs_tasks_on_the_cluster(hosts: Gpuctl) -> None:
    hosts.script("drive.py", DRIVER)
    hosts.script("squares.py", "def of(number):\n    return number * number\n")
    done = train(hosts, "--env", "KEY=secret", "drive.py", "--lr", "0.1")
    assert done.status == 0, done.err
    assert (done.json["seconds"]["ray"] or 0) > 0
    assert "KEY=secret" not in done.err
    result = done.json
    assert (result["mode"], result["world_size"], result["train"]["loss"]) == ("ray", 1, [0.5])
    log = (hosts.run_folder(result["run"]) / "logs" / "rank-0.log").read_text()
    assert "squares [0, 1, 4, 9, 16, 25, 36, 49] ['--lr', '0.1']" in log
    assert (hosts.run_folder(result["run"]) / "artifacts" / "found.txt").read_text() == "squares"
    nodes = log.partition("nodes ")[2].splitlines()[0].split()
    assert {(place["node"], Path(place["path"]).name) for place in result["outside"]} == {
        (node, f"of-{node}.txt") for node in nodes
    }

    failed = train(hosts, "--env", "KEY=secret", "drive.py", "--fail")
    assert failed.status == 1
    assert failed.json["first_error"]["message"].startswith("exit status 1: ValueError: no such layer: 17")


CHECKPOINT = """
import os, sys, tempfile
from ray import train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

def loop():
    with tempfile.TemporaryDirectory() as folder:
        open(os.path.join(folder, "model.pt"), "w").write("weights")
        train.report({"loss": 0.5}, checkpoint=train.Checkpoint.from_directory(folder))

place = os.path.join(os.environ["GPUCTL_RUN_DIR"], "mine") if sys.argv[1:] else None
run = train.RunConfig(name="exp", storage_path=place)
DataParallelTrainer(loop, scaling_config=train.ScalingConfig(num_workers=1), run_config=run).fit()
"""


def test_checkpoints_that_ray_train_keeps_are_outputs(hosts: Gpuctl) -> None:
    old = node_home(hosts, 0).parent / "ray_results" / "before" / "model.pt"
    old.parent.mkdir(parents=True)
    old.write_text("of an earlier run")
    hosts.script("checkpoint.py", CHECKPOINT)
    for words, top in (((), "HOME/ray_results/exp"), (("there",), "GPUCTL_RUN_DIR/mine/exp")):
        done = train(hosts, "checkpoint.py", *words)
        assert done.status == 0, done.err
        models = {
            item["path"]: item["brought"] for item in done.json["outputs"] if "model.pt" in item["path"]
        }
        [(path, brought)] = models.items()
        assert path.startswith(f"{top}/checkpoint_")
        assert brought
        assert (hosts.run_folder(done.json["run"]) / "outputs" / "default-0" / path).read_text() == "weights"


OBJECTIVE = """
import os
from ray import tune

def objective(config):
    assert os.environ["KEY"] == "secret"
    for step in range(2):
        tune.report({"score": step - (config["x"] - 3) ** 2})
    if config["x"] > 3:
        raise ValueError("too large")
"""


def test_tune_searches_function_of_a_script(hosts: Gpuctl) -> None:
    hosts.script("search.py", OBJECTIVE)
    words = ["--param", "x=choice(1, 2.5, 4)", "--trials", "6", "--metric", "score"]
    done = hosts(
        "tune",
        "--json",
        *words,
        "--env",
        "KEY",
        "search.py:objective",
        env={"KEY": "secret"},
        timeout_s=TRAIN_S,
    )
    assert done.status == 0, done.err
    result = done.json
    drawn = [trial["params"]["x"] for trial in result["trials"]]
    assert sorted(drawn) == [1, 1, 2.5, 2.5, 4, 4]
    assert result["best"]["params"] == {"x": 2.5}
    assert result["best"]["value"] == pytest.approx(0.75)
    for trial in result["trials"]:
        assert trial["value"] == pytest.approx(1 - (trial["params"]["x"] - 3) ** 2)
        assert trial["status"] == ("failed" if trial["params"]["x"] > 3 else "done")
        assert trial["error"] == ("ValueError: too large" if trial["params"]["x"] > 3 else None)
    (saved,) = hosts.ok("results", "--json", result["run"]).json["runs"]
    assert saved["search"]["trials"] == result["trials"]
    small = ["--param", "x=choice(1)", "--trials", "1", "--metric", "score"]
    shown = hosts("tune", *small, "search.py:objective", timeout_s=TRAIN_S)
    assert shown.status == 1, "every trial of it fails, for want of KEY"
    assert "KeyError: 'KEY'" in shown.out


def test_tune_refuses_unknown_function_and_metric(hosts: Gpuctl) -> None:
    hosts.script("search.py", OBJECTIVE.replace('["KEY"] == "secret"', ""))
    words = ["--param", "x=choice(1, 2.5)", "--metric", "scor"]
    no_function = hosts("tune", *words, "search.py:objectiv")
    assert no_function.status == 2
    assert no_function.err == "error: search.py has no objectiv; did you mean 'objective'?\n"
    no_metric = hosts("tune", *words, "search.py:objective", timeout_s=TRAIN_S)
    assert no_metric.status == 1
    assert (
        "\nexit status 2: error: --metric scor: no such thing is reported (did you mean 'score'?), but score\n"
        in no_metric.out
    )
    assert "Traceback" not in no_metric.err


def test_tune_searches_options_of_built_in_job(hosts: Gpuctl) -> None:
    words = ["--param", "lr=grid(0.00001,0.01)", "--scheduler", "asha", "--", "--model", "mlp"]
    done = hosts("tune", *words, "--epochs", "2", timeout_s=TRAIN_S)
    assert done.status == 0, done.err
    assert "(done; 2 of 2 over)" in done.err
    assert "best: gpuctl train -- --model mlp --epochs 2 --lr 0.01\n" in done.out
    wrong = hosts("tune", "--param", "lr=choice(0.1,fast)")
    assert wrong.status == 2
    assert "--lr" in wrong.err
    assert "fast" in wrong.err


WAITS = """
import time
import ray

ray.init(log_to_driver=False)

@ray.remote
def waits():
    time.sleep(600)

print("waits", flush=True)
ray.get(waits.remote())
"""


def test_why_names_stopped_rank_of_ray(hosts: Gpuctl) -> None:
    process, run = start_train(hosts, "--hang-after", "5s", "--on-hang", "stop")
    os.kill(rank_pid(hosts, run, 1), signal.SIGSTOP)
    out, err = process.communicate(timeout=120)
    result = json.loads(out)
    assert result["status"] == "stopped", err
    sentence = result["hang"]["sentence"]
    assert "The run hangs: rank 1 on default-1 is stopped (state T" in err
    assert sentence.partition(" UTC): ")[2] in err
    first = json.loads((hosts.run_folder(run) / "hang.json").read_text())["ranks"][0]
    assert "#" in first["last_collective"], "Ray's rank has a flight recorder, too"
    assert "Thread" in first["stacks"]


def test_why_says_what_is_not_known_of_a_script_that_drives_ray(hosts: Gpuctl) -> None:
    hosts.script("waits.py", WAITS)
    run = train(hosts, "--detach", "waits.py").json["run"]
    wait_for(lambda: "waits" in hosts.ok("logs", run).out, what="the driver at its task", deadline_s=120)
    why = hosts.ok("why", "--json", run).json
    hosts.ok("stop", run)
    assert why["verdict"] == "unknown"
    assert "what the script's Ray workers do is not known here" in why["sentence"]
    assert "of the script itself, on default-0, it is in waits.py:12" in why["sentence"]


def test_why_names_a_request_that_ray_cannot_serve(hosts: Gpuctl) -> None:
    source = WAITS.replace("log_to_driver=False", "").replace("@ray.remote", "@ray.remote(num_gpus=1)")
    hosts.script("asks.py", source)
    run = train(hosts, "--detach", "asks.py").json["run"]
    refused = "No available node types"
    wait_for(lambda: refused in hosts.ok("logs", run).out, what="Ray's word on the request", deadline_s=120)
    why = hosts("why", "--json", run)
    hosts.ok("stop", run)
    assert (why.status, why.json["verdict"]) == (4, "hung")
    sentence = why.json["sentence"]
    assert "no machine of the cluster has what the script asks Ray for, {" in sentence
    assert "'GPU': 1.0" in sentence


def test_ray_run_restarts_from_checkpoint_after_killed_worker(hosts: Gpuctl) -> None:
    """The checkpoint consists of parts, which lie on different nodes."""
    process, run = start_train(hosts, "--max-restarts", "1", strategy="fsdp")
    os.kill(rank_pid(hosts, run, 0), signal.SIGKILL)

    def second() -> str | None:
        later = sorted(folder.name for folder in (hosts.home / "runs").glob("*") if folder.name > run)
        return later[0] if later and (hosts.run_folder(later[0]) / "ranks" / "rank-0.json").exists() else None

    following = wait_for(second, what="another run", deadline_s=120)
    first = json.loads((hosts.run_folder(run) / "result.json").read_text())
    assert first["status"] == "failed"
    assert (first["first_error"]["rank"], first["first_error"]["node"]) == (0, "default-0")
    assert first["first_error"]["reason"] == "unknown", "Ray starts the ranks, and tells nobody how they end"

    interrupt(process)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert (json.loads(out)["run"], json.loads(out)["resumed_from"]) == (following, run)
    assert not processes_with(following), "a rank was left"
    assert [node["running"] for node in hosts.ok("ray", "status", "--json").json["nodes"]] == [True, True]


def test_ray_run_survives_killed_train_and_fails_with_its_head(hosts: Gpuctl) -> None:
    process, run = start_train(hosts)
    process.kill()
    process.communicate()
    assert hosts.ok("runs", "--json").json["runs"][-1]["status"] == "running"
    follower = hosts.start("logs", "-f", "--rank", "0")
    os.kill(keeper_pid(hosts, 0), signal.SIGTERM)  # as a machine that shuts down does
    follower.communicate(timeout=90)
    result = hosts.ok("results", "--json").json["runs"][0]
    assert (result["run"], result["status"]) == (run, "failed")
    assert result["first_error"]["node"] == "default-0"
    assert "Ray ended here during the run" in result["first_error"]["message"]
    assert result["train"]["loss"], "what was known by then is kept"


@pytest.mark.parametrize(("rank", "daemon"), [(0, "gcs_server"), (1, "raylet")])
def test_ray_run_blames_node_whose_daemon_was_killed(hosts: Gpuctl, rank: int, daemon: str) -> None:
    process, _ = start_train(hosts)
    (victim,) = (
        child
        for child in psutil.Process(keeper_pid(hosts, rank)).children(recursive=True)
        if child.name() == daemon
    )
    victim.kill()
    out, err = process.communicate(timeout=90)
    assert process.returncode == 1, err
    error = json.loads(out)["first_error"]
    assert (error["rank"], error["node"]) == (None, f"default-{rank}")
    assert error["reason"] == "ray_ended"
    assert error["message"].startswith("Ray ended here during the run: ")
    assert "\x1b" not in error["message"]
    assert f"{daemon} [exit code=-9" in error["message"]


def test_ray_stop_leaves_ray_of_others_running(gpuctl: Gpuctl, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    head = subprocess.Popen(
        [BIN / "ray", "start", "--head", "--block", "--port=0", "--num-cpus=1", "--include-dashboard=false",
         "--node-ip-address=127.0.0.9", f"--temp-dir=/tmp/theirs-{os.getpid()}", "--disable-usage-stats"],
        env=environment | {"THEIRS": str(theirs)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        wait_for(lambda: len(processes_with(str(theirs))) >= 4, what="the other Ray")
        gpuctl.ok("up", "--provider", "local", "--count", "2")
        done = train(gpuctl, "--", "--epochs", "1", "--model", "mlp")
        assert done.status == 0, done.err
        known = [daemons(gpuctl, rank) for rank in (0, 1)]
        ours = {process.pid for process in psutil.process_iter() if belongs(process, known)}
        assert len(ours) > 8
        gpuctl.ok("ray", "stop")
        gpuctl.ok("ray", "stop")
        assert head.poll() is None, "a Ray that is not ours was ended"
        assert not [item for item in known if Path(item["temp_dir"]).exists()]
        assert not ours & set(psutil.pids())
        listening = {item.laddr.port for item in psutil.net_connections("tcp") if item.status == "LISTEN"}
        assert not listening & {port for item in known for port in item["ports"].values()}
    finally:
        for pid in processes_with(str(theirs)):
            os.kill(pid, signal.SIGKILL)
        head.wait()
        shutil.rmtree(f"/tmp/theirs-{os.getpid()}", ignore_errors=True)


def belongs(process: psutil.Process, known: list[dict[str, Any]]) -> bool:
    """Return whether the process is one of these daemons or their descendant."""
    keepers = {json.loads((Path(item["run_dir"]) / "runner.json").read_text())["pid"] for item in known}
    try:
        return bool(keepers & {process.pid, *(parent.pid for parent in process.parents())})
    except psutil.NoSuchProcess:
        return False
