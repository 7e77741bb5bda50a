"""Test the processes that a node starts for Ray, compared exactly, and the node's part with real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from node_facts import facts
from node_here import ROOT, NodeHere
from ray_samples import HEAD, IDS, machine, run_of
from support import wait_for

from remote.errors import RayNotReady
from remote.launchers import kuberay
from remote.launchers import ray_commands as ray
from remote.launchers.rank_command import Script
from remote.launchers.ray_daemons import bring_up
from remote.node.ray import daemons
from remote.sessions import node_payload

GPU = {"name": "A10"}


def test_ray_daemons_argv_of_head_and_worker_are_exact() -> None:
    first, second = machine(0, "10.0.0.1"), machine(1, "10.0.0.2")
    head = ray.daemons(first, facts(), cores=8, master=first, nodes=2, head=None, token="TOKEN")
    start = ["/usr/bin/python3", "-m", "ray.scripts.scripts", "start"]
    common = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port={agent}"]
    common += ["--temp-dir={temp_dir}", "--disable-usage-stats", "--block"]
    assert head["argv"] == [
        *start, "--head", "--port={gcs}", "--dashboard-host=127.0.0.1", "--dashboard-port={dashboard}",
        "--include-dashboard=true", "--ray-client-server-port={client}", "--node-ip-address=10.0.0.1", "--num-cpus=8",
        "--num-gpus=0", "--labels=gpuctl-start={start},gpuctl-node=c-0", *common,
    ]  # fmt: skip
    assert head["env"] == {
        "GPUCTL_NODE": "c-0",
        "GPUCTL_NODE_HOME": "/home/ubuntu/.gpuctl-node",
        "RAY_AUTH_MODE": "token",
        "RAY_worker_niceness": "0",
        "RAY_worker_maximum_startup_concurrency": "8",
        "GLOO_SOCKET_IFNAME": "ens3",
        "NCCL_SOCKET_IFNAME": "=ens3",
        "NCCL_SOCKET_FAMILY": "AF_INET",
        "CUDA_VISIBLE_DEVICES": "",
    }
    assert (head["listens"], head["ports"]) == (["10.0.0.1", "gcs"], ["gcs", "dashboard", "agent", "client"])
    worker = ray.daemons(
        second, facts(gpus=(GPU, GPU)), cores=4, master=first, nodes=2, head=HEAD, token="TOKEN"
    )
    assert worker["argv"] == [
        *start, "--address=10.0.0.1:20100", "--node-ip-address=10.0.0.2", "--num-cpus=4", "--num-gpus=2",
        "--labels=gpuctl-start={start},gpuctl-node=c-1", *common,
    ]  # fmt: skip
    assert (worker["listens"], worker["ports"]) == (None, ["agent"])
    assert "TOKEN" not in json.dumps({**worker, "token": None}), "the token is in its own field alone"


def test_ray_identity_changes_with_token_python_gpus_and_version() -> None:
    def identity(token: str = "T", **changed: object) -> str:
        first = machine(0, "10.0.0.1")
        request = ray.daemons(first, facts(**changed), cores=8, master=first, nodes=2, head=None, token=token)
        return str(request["identity"])

    rest = [
        identity(token="U"),
        identity(python="/opt/env/bin/python"),
        identity(gpus=(GPU,)),
        identity(ray="2.61"),
    ]
    assert identity() == identity()
    assert len({identity(), *rest}) == 5


def test_ray_address_of_local_hosts_is_unique() -> None:
    assert [ray.address_of(machine(rank, "127.0.0.1")) for rank in (0, 1)] == ["127.0.0.2", "127.0.0.3"]
    assert ray.address_of(machine(1, "10.0.0.7")) == "10.0.0.7"


def test_ray_label_of_hashes_names_that_are_no_labels() -> None:
    assert [ray.label_of(name) for name in ("gpu-0.lan", "a_b")] == ["gpu-0.lan", "a_b"]
    assert ray.label_of("gpu 0") != ray.label_of("gpu 1")
    assert all(re.fullmatch("[0-9a-f]{32}", ray.label_of(name)) for name in ("gpu 0", "-a", "a" * 64))


@pytest.mark.parametrize(
    ("nproc", "gpus", "cores", "shares"),
    [
        ((2, 2), (0, 0), (8, 8), (0.0, 1.0)),
        ((2, 2), (2, 4), (1, 8), (1.0, 0.5)),
        ((3, 1), (1, 1), (1, 1), (0.3333, 0.3333)),
    ],
)
def test_ray_shares_give_every_rank_cpus_and_gpus(
    nproc: tuple[int, int], gpus: tuple[int, int], cores: tuple[int, int], shares: tuple[float, float]
) -> None:
    run = run_of(*nproc)
    result = {f"c-{rank}": facts(gpus=(GPU,) * gpus[rank]) for rank in (0, 1)}
    assert ray.shares(run.nodes, result, {f"c-{rank}": cores[rank] for rank in (0, 1)}) == shares


def test_ray_launch_spec_starts_the_driver_on_the_first_node_only() -> None:
    run, job = run_of(2, 2), Script(kind="built-in", target="train", args=("--epochs", "1"))
    result = {"c-0": facts(), "c-1": facts()}

    def launch(node: int) -> dict[str, Any]:
        return ray.launch(
            run,
            run.nodes[node],
            result,
            job,
            cwd="/code",
            cores={"c-0": 8, "c-1": 8},
            cpus={"c-0": 8, "c-1": 8},
            env={"KEY": "secret"},
            ids=IDS,
            ray=ray.way_to(HEAD, result[f"c-{node}"], f"c-{node}"),
        )

    part = [
        "/usr/bin/python3",
        "-I",
        f"/home/ubuntu/.gpuctl-node/bin/{node_payload.digest()}",
        "ray_ranks",
    ]
    names = (
        "GPUCTL_RUN_ID,GPUCTL_JOB_ID,GPUCTL_RUN_DIR,OMP_NUM_THREADS,NCCL_SOCKET_IFNAME,NCCL_SOCKET_FAMILY,"
    )
    names += "GLOO_SOCKET_IFNAME,KEY"
    assert launch(1)["argv"] == [*part, "/run/c-1", "/code", "2", "2", names]
    assert launch(0)["argv"] == [
        *part, "/run/c-0", "/code", "0", "2", names,
        "/usr/bin/python3", "-u", "-m", "train.on_ray", "--run=R", "--layout=1afe:2,07c2:2", "--names=c-0,c-1",
        "--master=10.0.0.1:20001", "--gpus-per-rank=0", "--cpus-per-rank=1", "--", "--epochs", "1",
    ]  # fmt: skip
    assert launch(0)["env"]["RAY_ADDRESS"] == "10.0.0.1:20100"
    assert launch(0)["env"]["RAY_AUTH_TOKEN_PATH"] == "/home/ubuntu/.gpuctl-node/ray/c-0/token"
    assert "RAY_ADDRESS" not in launch(1)["env"]


@pytest.mark.parametrize("ray_variables", [{}, kuberay.way_to("h:1", "python", {"A": "1", "B": "2"})])
def test_variables_of_the_user_reach_the_workers_of_a_driver(ray_variables: dict[str, str]) -> None:
    assert ray.with_variables(ray_variables, {}) == ray_variables
    inputs = ray.with_variables(ray_variables, {"B": "mine"})
    assert inputs["RAY_OVERRIDE_JOB_RUNTIME_ENV"] == "1"
    environment = json.loads(inputs["RAY_JOB_CONFIG_JSON_ENV_VAR"])["runtime_env"]
    before = json.loads(ray_variables.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")).get("runtime_env", {})
    assert environment == {**before, "env_vars": {**before.get("env_vars", {}), "B": "mine"}}


def test_ray_launch_spec_runs_a_script_as_driver() -> None:
    run = run_of(1)
    script = Script(kind="file", target="drive.py", args=("--lr", "0.1"))
    launch = ray.launch(
        run,
        run.nodes[0],
        {"c-0": facts()},
        script,
        cwd="/code",
        cores={"c-0": 8},
        cpus={"c-0": 8},
        env={},
        ids=IDS,
        ray=ray.way_to(HEAD, facts(), "c-0"),
    )
    assert launch["argv"][3:] == [
        "rank", "/run/c-0", "/code", "--", "/usr/bin/python3", "-u", "drive.py", "--lr", "0.1",
    ]  # fmt: skip
    assert launch["env"]["RAY_ADDRESS"] == "10.0.0.1:20100"


def raylet(address: str, state: str = "ALIVE", **resources: float) -> dict[str, Any]:
    labels = {"gpuctl-start": f"now {address}"}
    return {
        "state": state,
        "node_id": f"id {address}",
        "node_ip": address,
        "resources_total": resources,
        "labels": labels,
    }


@pytest.mark.parametrize(
    ("nodes", "missing"),
    [
        (None, ["10.0.0.1", "10.0.0.2"]),
        ([], ["10.0.0.1", "10.0.0.2"]),
        ([raylet("10.0.0.1", CPU=8.0)], ["10.0.0.2"]),
        ([raylet("10.0.0.1"), raylet("10.0.0.2", GPU=1.0)], ["10.0.0.2"]),
        ([raylet("10.0.0.1"), raylet("10.0.0.2", state="DEAD", GPU=2.0)], ["10.0.0.2"]),
        ([raylet("10.0.0.1"), raylet("10.0.0.2", GPU=2.0), {"state": None}], []),
        (
            [{**raylet("10.0.0.1"), "labels": {"gpuctl-start": "before"}}, raylet("10.0.0.2", GPU=2.0)],
            ["10.0.0.1"],
        ),
        ([{**raylet("10.0.0.1"), "labels": None}, raylet("10.0.0.2", GPU=2.0)], ["10.0.0.1"]),
        ([{**raylet("10.0.0.1"), "resources_total": None}, raylet("10.0.0.2", GPU=2.0)], []),
    ],
)
def test_ray_ids_are_of_nodes_as_they_were_started_last(nodes: list[Any] | None, missing: list[str]) -> None:
    document = {} if nodes is None else {"data": {"result": {"result": nodes}}}
    expected = {
        address: {"gpus": gpus, "start": f"now {address}"}
        for address, gpus in (("10.0.0.1", 0), ("10.0.0.2", 2))
    }
    ids = daemons.ids_of(daemons.alive(document), expected)
    assert ids == {address: f"id {address}" for address in expected if address not in missing}


def daemons_request(argv: list[str], **changed: object) -> dict[str, Any]:
    request = {"identity": "A", "node": "c-0", "argv": argv, "env": {}, "path_prefix": "/usr/bin", "ports": ["gcs"],
               "head": None, "listens": ["127.0.0.1", "gcs"], "token": "secret"}  # fmt: skip
    return {**request, **changed}


LISTENER = """
import os, socket, subprocess, sys, time
kept = socket.create_server(("127.0.0.1", int(sys.argv[1])))
os.makedirs(sys.argv[2] + "/session")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
time.sleep(300)
"""


def test_ray_daemons_are_kept_replaced_and_stopped_with_children(tmp_path: Path) -> None:
    node = NodeHere(tmp_path)
    argv = [sys.executable, "-c", LISTENER, "{gcs}", "{temp_dir}"]
    first = node.call("ray_start", daemons_request(argv))
    known = json.loads((tmp_path / ".gpuctl-node/ray/c-0/node.json").read_text())
    token = tmp_path / ".gpuctl-node/ray/c-0/token"
    assert (first["kept"], token.read_text(), token.stat().st_mode & 0o777) == (False, "secret", 0o600)
    again = node.call("ray_start", daemons_request(argv))
    assert (again["kept"], again["ports"]) == (True, first["ports"])
    assert node.call("ray_state", {"node": "c-0"})["running"]
    address = f"127.0.0.1:{first['ports']['gcs']}"
    for name, status in (("mine/c-0", None), ("theirs/c-1", None), ("over/c-1", 0)):
        part = tmp_path / ".gpuctl-node/runs" / name
        part.mkdir(parents=True)
        (part / "runner.json").write_text(json.dumps({"pid": 1, "birth": "1", "boot_id": "of another boot"}))
        if status is not None:
            (part / "exit.json").write_text(json.dumps({"exit_code": status}))
    begun = {"begun": ["mine", "theirs"], "begun_elsewhere": ["theirs"]}
    assert node.call("occupancy", {"node": "c-0"}) == {"t": "state", "runs": [], **begun, "ray": address}

    other = node.call("ray_start", daemons_request(argv, identity="B"))
    assert not other["kept"]
    assert not Path(known["temp_dir"]).exists()
    assert not marked(known["run_dir"]), "what the first ones had started has ended with them"

    known = json.loads((tmp_path / ".gpuctl-node/ray/c-0/node.json").read_text())
    keeper = json.loads((Path(known["run_dir"]) / "runner.json").read_text())["pid"]
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: not node.call("ray_state", {"node": "c-0"})["running"], what="the supervisor's end")
    assert marked(known["run_dir"]), "they outlive their runner"
    assert node.call("ray_stop", {"node": "c-0"})["was_there"]
    assert not marked(known["run_dir"])
    assert not Path(known["temp_dir"]).exists()
    assert not (tmp_path / ".gpuctl-node/ray/c-0").exists()
    assert not node.call("ray_stop", {"node": "c-0"})["was_there"]


def marked(run_dir: str) -> list[int]:
    """Processes that carry the mark of these daemons."""
    expected = f"GPUCTL_RAY={run_dir}".encode()
    result = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if expected in path.read_bytes().split(b"\0"):
                result.append(int(path.parent.name))
        except OSError:
            continue
    return result


def test_ray_start_reports_the_last_lines_of_a_dead_head(tmp_path: Path) -> None:
    node = NodeHere(tmp_path)
    argv = [sys.executable, "-c", "raise SystemExit('the port 1 is taken')", "{gcs}"]
    with pytest.raises(AssertionError, match="Ray ended: the port 1 is taken"):
        node.call("ray_start", daemons_request(argv))
    assert not node.call("ray_state", {"node": "c-0"})["running"]
    node.call("ray_stop", {"node": "c-0"})


BEFORE = """2026-11-22 15:19:00,858\tINFO scripts.py:1265 -- \x1b[36m--block\x1b[39m
2026-11-22 15:19:00,859\tINFO scripts.py:1274 -- Process exit logs will be saved to: \x1b[1m/tmp/r/exit.log\x1b[22m
"""
KILLED = """2026-11-22 15:24:10,768\tERR scripts.py:1307 -- \x1b[31mSome Ray subprocesses exited unexpectedly:\x1b[39m
2026-11-22 15:24:10,768\tERR scripts.py:87 --   \x1b[31mraylet\x1b[39m\x1b[0m\x1b[2m [exit code=-9]\x1b[22m\x1b[0m
2026-11-22 15:24:10,770\tERR scripts.py:115 -- \x1b[31m----- BEGIN raylet.out tail (exit code(s)=-9) -----\x1b[39m
2026-11-22 15:24:10,770\tERR scripts.py:122 -- \x1b[31m- bytes in use: 0
[2026-11-22 15:23:45,603 I 16867 16867] (raylet) grpc_server.cc:144: ObjectManager server started.
\x1b[39m
2026-11-22 15:24:10,770\tERR scripts.py:128 -- \x1b[31m----- END raylet.out tail (exit code(s)=-9) -----\x1b[39m
2026-11-22 15:24:10,771\tERR scripts.py:1315 -- \x1b[31mRemaining processes will be killed.\x1b[39m
"""
TOLD = """2026-11-22 15:15:37,201\tINFO node.py:698 -- Node 1afec4fc received SIGTERM. Draining for up to 30.0 s.
Traceback (most recent call last):
  File "node.py", line 709, in _drain_node_before_shutdown
"""


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        ("", []),
        ("\nTraceback:\nOSError: the port 1 is taken\n", ["Traceback:", "OSError: the port 1 is taken"]),
        (BEFORE, []),
        (BEFORE + "Killed\n", ["Killed"]),
        (BEFORE + TOLD, ["Node 1afec4fc received SIGTERM. Draining for up to 30.0 s."]),
        (
            BEFORE + KILLED,
            [
                "Some Ray subprocesses exited unexpectedly:",
                "raylet [exit code=-9]",
                "Remaining processes will be killed.",
            ],
        ),
    ],
    ids=[
        "nothing",
        "it did not start",
        "it only began",
        "no word of its own",
        "it was told to",
        "a daemon was killed",
    ],
)
def test_ray_last_lines_show_how_the_daemons_ended(log: str, lines: list[str]) -> None:
    assert daemons.last_lines(log) == lines


WORKER = """
import json, os, pathlib, sys, time
run_dir, rank, status = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
os.setsid()
def tell(kind, **said):
    path = run_dir / "ranks" / f"rank-{rank}.{kind}"
    path.with_name("." + path.name).write_text(json.dumps({"at": time.time(), **said}))
    path.with_name("." + path.name).rename(path)
tell("began", pid=os.getpid())
if status == "goes on":
    time.sleep(300)
if status != "none":
    tell("ended", exit_code=int(status))
"""


@dataclass(frozen=True, kw_only=True)
class NodeRay:
    """Processes that stand for the node's Ray."""

    keeper: int
    raylet: int
    folder: Path
    """Folder of the node's Ray records."""


@pytest.fixture
def node_ray(tmp_path: Path) -> Iterator[NodeRay]:
    """Yield the Ray of the node `run`: the keeper would live without the raylet for minutes."""
    node = NodeHere(tmp_path)
    raylet = tmp_path / "raylet"
    raylet.symlink_to("/bin/sleep")
    argv = [
        "/bin/sh",
        "-c",
        f"{raylet} 300 & echo $! > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; sleep 300",
    ]
    node.call("ray_start", daemons_request(argv, node="run", head="127.0.0.1:1", listens=None))
    folder = tmp_path / ".gpuctl-node" / "ray" / "run"
    run_dir = Path(json.loads((folder / "node.json").read_text())["run_dir"])
    wait_for((tmp_path / "pid").exists, what="the raylet")
    keeper = json.loads((run_dir / "runner.json").read_text())["pid"]
    yield NodeRay(keeper=keeper, raylet=int((tmp_path / "pid").read_text()), folder=folder)
    node.call("ray_stop", {"node": "run"})


def start_watch(run_dir: Path, home: Path, ranks: int, *driver: str) -> "subprocess.Popen[bytes]":
    """Start the node's part of a run, for ranks from 2 on."""
    for name in ("ranks", "logs"):
        (run_dir / name).mkdir(parents=True)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from remote.node.__main__ import run; run(sys.argv[2:])"
    )
    words = ["ray_ranks", str(run_dir), str(home), "2", str(ranks), "HOME,KEY", *driver]
    return subprocess.Popen(
        [sys.executable, "-I", "-c", code, str(ROOT), *words],
        env={"HOME": str(home), "KEY": "secret", "GPUCTL_LAUNCHED_AT": "96.5"},
    )


def the_place(run_dir: Path) -> Path:
    """Wait for the file with the place of the ranks; return its path."""
    place = run_dir / "place.json"
    wait_for(place.exists, what="the place")
    assert place.stat().st_mode & 0o777 == 0o600
    assert json.loads(place.read_text())["env"]["KEY"] == "secret"
    return place


def record_of(run_dir: Path, rank: int) -> dict[str, Any]:
    return json.loads((run_dir / "ranks" / f"rank-{rank}.json").read_text())


def watched(run_dir: Path, home: Path, statuses: list[str]) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status of a node's part whose ranks have these ends, and its records."""
    with start_watch(run_dir, home, len(statuses)) as part:
        try:
            place = the_place(run_dir)
            for rank, status in enumerate(statuses, 2):
                subprocess.run([sys.executable, "-c", WORKER, str(run_dir), str(rank), status], check=True)
            status_of_part = part.wait(timeout=60)
        finally:
            part.kill()
    assert not place.exists()
    return status_of_part, [record_of(run_dir, rank) for rank in range(2, 2 + len(statuses))]


@pytest.mark.usefixtures("node_ray")
@pytest.mark.parametrize(("statuses", "code"), [(["0", "0"], 0), (["0", "2"], 2), (["0", "none"], 1)])
def test_ray_ranks_are_recorded_with_exit_codes(tmp_path: Path, statuses: list[str], code: int) -> None:
    began = time.time()
    status, records = watched(tmp_path / "run", tmp_path, statuses)
    assert status == code
    assert [record["exit_code"] for record in records] == [
        None if word == "none" else int(word) for word in statuses
    ]
    assert [(record["rank"], record["local_rank"]) for record in records] == [(2, 0), (3, 1)]
    assert all(began <= record["started_at"] <= record["ended_at"] for record in records)


@pytest.mark.usefixtures("node_ray")
def test_ray_driver_exit_code_is_that_of_the_first_node(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with start_watch(run_dir, tmp_path, 1, sys.executable, "-c", "raise SystemExit(7)") as part:
        assert part.wait(timeout=60) == 7
    assert not (run_dir / "reason.json").exists()


def killed(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


@contextmanager
def going_on(run_dir: Path, *ranks: int) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """Workers that are the ranks of this part, once it has seen them."""
    the_place(run_dir)
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(run_dir), str(rank), "goes on"]) for rank in ranks
    ]
    try:
        for rank in ranks:
            wait_for((run_dir / "ranks" / f"rank-{rank}.json").exists, what=f"rank {rank}")
        yield workers
    finally:
        for worker in workers:
            killed(worker)


RAY_ENDED = {"reason": "ray_ended", "detail": "it said nothing"}
DRIVER = [sys.executable, "-c", "import time; time.sleep(300)"]


@pytest.mark.parametrize("driver", [[], DRIVER], ids=["worker", "head"])
def test_ray_end_fails_the_part_of_the_node(tmp_path: Path, node_ray: NodeRay, driver: list[str]) -> None:
    """A rank is still running: the starter of the part ends it."""
    run_dir = tmp_path / "run"
    with start_watch(run_dir, tmp_path, 2, *driver) as part, going_on(run_dir, 2, 3) as ranks:
        os.kill(node_ray.raylet, signal.SIGKILL)
        killed(ranks[0])
        assert part.wait(timeout=60) == 1
        assert ranks[1].poll() is None
    assert json.loads((run_dir / "reason.json").read_text()) == RAY_ENDED
    record = record_of(run_dir, 2)
    assert record["exit_code"] is None
    assert record["ended_at"]


def test_ray_end_is_named_as_cause_of_a_failed_driver(tmp_path: Path, node_ray: NodeRay) -> None:
    run_dir = tmp_path / "run"
    fails = (
        f"import os, select, signal; end = os.pidfd_open({node_ray.raylet}); "
        f"os.kill({node_ray.raylet}, signal.SIGKILL); select.select([end], [], [], 20); raise SystemExit(7)"
    )
    with start_watch(run_dir, tmp_path, 1, sys.executable, "-c", fails) as part:
        assert part.wait(timeout=60) in (7, 1), "either is seen first"
    assert json.loads((run_dir / "reason.json").read_text()) == RAY_ENDED


def test_ray_keeper_killed_does_not_end_the_run(tmp_path: Path, node_ray: NodeRay) -> None:
    run_dir = tmp_path / "run"
    with start_watch(run_dir, tmp_path, 1) as part:
        the_place(run_dir)
        os.kill(node_ray.keeper, signal.SIGKILL)
        wait_for(lambda: not daemons.running(node_ray.folder), what="the keeper's end")
        subprocess.run([sys.executable, "-c", WORKER, str(run_dir), "2", "0"], check=True)
        assert part.wait(timeout=60) == 0
    assert not (run_dir / "reason.json").exists()


@pytest.mark.parametrize("ray_ends", [True, False])
def test_ray_end_is_recorded_even_during_a_stop(tmp_path: Path, node_ray: NodeRay, ray_ends: bool) -> None:
    run_dir = tmp_path / "run"
    with start_watch(run_dir, tmp_path, 2) as part, going_on(run_dir, 2, 3) as ranks:
        os.kill(part.pid, signal.SIGSTOP)
        if ray_ends:
            os.kill(node_ray.raylet, signal.SIGKILL)
        killed(ranks[0])
        part.terminate()
        os.kill(part.pid, signal.SIGCONT)
        assert part.wait(timeout=60) == 128 + signal.SIGTERM
    assert (run_dir / "reason.json").exists() == ray_ends
    assert record_of(run_dir, 2)["ended_at"], "it is looked at once more"


@pytest.mark.usefixtures("node_ray")
def test_ray_stop_removes_the_environment_file(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with start_watch(run_dir, tmp_path, 1) as part:
        place = the_place(run_dir)
        part.terminate()
        assert part.wait(timeout=60) == 128 + signal.SIGTERM
    assert not place.exists()


class Counting(NodeHere):
    """A head that has started its daemons and admits no other node."""

    def __init__(self) -> None:
        self.machine = machine(0, "10.0.0.1")

    def call(self, command: str, request: dict[str, Any], *, timeout_s: float = 60) -> dict[str, Any]:
        return {"kept": False, "ports": {"gcs": 20100, "dashboard": 20101}, "start": "s"}

    @contextmanager
    def stream(self, command: str, request: dict[str, Any], **_: Any) -> Iterator[Any]:  # type: ignore[override]
        yield SimpleNamespace(frames=lambda: iter([({"t": "ready", "missing": ["10.0.0.1"]}, b"")]))


def test_bring_up_says_where_the_log_of_a_missing_node_is() -> None:
    with pytest.raises(RayNotReady) as raised:
        bring_up({"c-0": Counting()}, {"c-0": facts()}, "TOKEN", lambda _name, _text: None)
    assert str(raised.value) == (
        "Ray's head on c-0 did not count in c-0 in 90 s. c-0's own log may tell: gpuctl exec --rank c-0 -- "
        "'tail -n 20 ~/.gpuctl-node/ray/*/daemons-*/logs/ray.log'"
    )


def test_search_runs_its_function_in_the_working_folder_of_each_node() -> None:
    script = Script(kind="function", target="search:objective", search={"gpus": 0, "fixed": {}})
    command = ray.search(script, {"c-0": facts()}, facts(), "/home/me/.gpuctl-node/code/repo-1a/exp", ())
    assert json.loads(command[-1])["code"] == "repo-1a/exp"
