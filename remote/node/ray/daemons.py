"""Ray's daemons on a node: under a supervisor of their own, kept between runs, ended without a trace.

~/.gpuctl-node/ray/   node.json  token  lock  daemons-XXXX/ (the supervisor's folder)
$TMPDIR/gpuctl-ray-XXXX  r/ (its own folder) and what its processes keep for a while; in /tmp where that is too long
"""

import fcntl
import http.client
import json
import os
import re
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, List, Optional, Sequence, Tuple

from remote.node import process, run_state
from remote.node.home_folder import NODE_HOME
from remote.node.network import free_port
from remote.node.runs import supervisor
from remote.shared import frames
from remote.shared.constants import LOGS, RAY, START_LABEL
from remote.shared.files import read_json, write_json

LONGEST_TMPDIR = 18
"""Characters of a folder in which Ray's sockets still get paths that every system takes (103)."""
MARK = "GPUCTL_RAY"
"""Variable that every process of this node's Ray inherits, with the path of its folder."""
HEAD_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
ASK_S = 0.2
PORT_ASK_S = 0.05
BEAT_S = 2.0
NODES = "/api/v0/nodes?limit=10000"
"""Of the dashboard: what Ray's control service knows of the nodes at that moment; its pages' view is seconds old."""
MOST_LINES = 5
VITAL = ("gcs_server", "raylet")
"""The daemons that Ray on a node can't live without, by their processes' names."""
STARTED = "Process exit logs will be saved to:"
"""The last that `ray start --block` says before it waits for its daemons."""
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_TAIL = re.compile(r"^[^\n]*----- BEGIN .*?----- END [^\n]*\n?", re.DOTALL | re.MULTILINE)
"""The log of a daemon that ended, within that of `ray start`."""
_LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+\t[A-Z]+ [\w.]+:\d+ -- *(.*)$", re.MULTILINE)
"""What `ray start` says itself."""
HEAD, PORT, TOKEN = "FQ_RAY_IP", "RAY_PORT", "RAY_AUTH_TOKEN"
"""Variables that KubeRay gives a worker's container."""
DASHBOARD_PORT = 8265
VERSION = "/api/version"


def folder_of(node: str) -> Path:
    """Return the folder of a node's record of its Ray."""
    return NODE_HOME / RAY / node


def command_ray_start(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `ray_start` with running daemons as the request describes them: equal ones that run are reused.

    Request: identity, argv, env, path_prefix, token, node, head (HOST:PORT; `None`: this is the head), listens
    (address and name of the port that is waited for, or `None`). In argv `{NAME}` stands for the port that the node
    chooses for each name of `ports`, and `{temp_dir}` for Ray's own folder, `{start}` for a name of this start.
    Answers with `ports`, `start` and whether it was `kept`. Raises OSError with a sentence.
    """
    folder = folder_of(request["node"])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(str(folder / "lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = read_json(folder / "node.json")
        reused = bool(known) and known["identity"] == request["identity"] and _running(known)
        if not reused:
            busy_runs = run_state.active_runs()
            if busy_runs:
                raise OSError("the run {} is going on here, and its Ray is another".format(busy_runs[0]))
            _end(folder, known)
            known = _start(folder, request)
        answer = {"t": frames.STARTED, "ports": known["ports"], "start": known["start"], "kept": reused}
        frames.write(output, answer)


def _running(known: Dict[str, Any]) -> bool:
    return bool(run_state.state(Path(known["run_dir"]))["running"])


def _start(folder: Path, request: Dict[str, Any]) -> Dict[str, Any]:
    """Start the daemons; returns their record, as `node.json` keeps it."""
    ports = choose_ports(request["ports"])
    usual = tempfile.gettempdir()
    parent = usual if len(usual) <= LONGEST_TMPDIR else "/tmp"  # noqa: S108 - a folder of its own in there
    temporary = tempfile.mkdtemp(prefix="gpuctl-ray-", dir=parent)
    run_dir = Path(tempfile.mkdtemp(prefix="daemons-", dir=str(folder)))
    known = {
        "identity": request["identity"],
        "ports": ports,
        "head": request["head"] or "{}:{}".format(request["listens"][0], ports[request["listens"][1]]),
        "start": os.urandom(8).hex(),
        "temp_dir": temporary,
        "run_dir": str(run_dir),
    }  # type: Dict[str, Any]
    # Known before they are started, so that nothing that runs is ever forgotten.
    write_json(folder / "node.json", known)
    write_secret(folder / "token", request["token"])
    variables = {
        MARK: str(run_dir),
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        # Ray's dashboard leaves a folder there.
        "TMPDIR": temporary if parent == usual else usual,
    }
    # Ray lets everybody write into its folder and its sockets' one; into the one around it nobody else gets.
    words = {"temp_dir": os.path.join(temporary, "r"), "start": known["start"], **ports}
    spec = {
        "node": "ray",
        "argv": [word.format(**words) for word in request["argv"]],
        "env": dict(request["env"], **variables),
        "path_prefix": request["path_prefix"],
        "grace_s": 5,
    }
    supervisor.start(spec, run_dir)
    if request["listens"]:
        address, name = request["listens"]
        _wait_for_port(folder, address, ports[name])
    return known


def choose_ports(names: Sequence[str]) -> Dict[str, int]:
    """A free port for each name, all different."""
    chosen = {}  # type: Dict[str, int]
    while len(chosen) < len(names):
        port, why = free_port("")
        if port is None:
            raise OSError("no free port was found for Ray{}".format(": " + why if why else ""))
        if port not in chosen.values():
            chosen[names[len(chosen)]] = port
    return chosen


def write_secret(path: Path, text: str) -> None:
    """Write a file that nobody else could read at any time."""
    if path.exists():
        path.unlink()
    handle = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)


def _wait_for_port(folder: Path, address: str, port: int) -> None:
    """Return when somebody listens there. Raises OSError where Ray ended before, or after the deadline."""
    limit = time.monotonic() + HEAD_DEADLINE_S
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            if probe.connect_ex((address, port)) == 0:
                return
        check_running(folder)
        if time.monotonic() > limit:
            raise OSError(
                "Ray's head did not listen at {}:{} within {:.0f} s".format(address, port, HEAD_DEADLINE_S)
            )
        time.sleep(PORT_ASK_S)


def check_running(folder: Path) -> None:
    """Raises OSError with Ray's last words where its daemons have ended."""
    if not running(folder):
        raise OSError("Ray ended: {}".format(last_words(folder)))


def running(folder: Path) -> bool:
    """Return whether the daemons that were started last are running."""
    known = read_json(folder / "node.json")
    return bool(known) and _running(known)


def address(folder: Path) -> Optional[str]:
    """Return HOST:PORT of the control service of the daemons, if they run."""
    known = read_json(folder / "node.json")
    return known.get("head") if known and _running(known) else None


def vital_processes(folder: Path) -> Dict[int, str]:
    """Return pid and birth of the daemons that Ray can't live without (Linux; elsewhere empty)."""
    known = read_json(folder / "node.json")
    births = {pid: process.birth(pid) for pid in process.with_variable(MARK, known.get("run_dir", ""))}
    return {pid: born for pid, born in births.items() if born is not None and process.name(pid) in VITAL}


def last_words(folder: Path) -> str:
    """Return the daemons' last output, as one line."""
    known = read_json(folder / "node.json")
    try:
        log = (Path(known["run_dir"]) / LOGS / "ray.log").read_text(errors="replace")
    except (KeyError, OSError):
        return "its log is gone"
    return " / ".join(last_lines(log)) or "it said nothing"


def last_lines(log: str) -> List[str]:
    """Return the lines in the log of `ray start --block` that show its end.

    The lines after the start of its daemons, if any.
    """
    text = _TAIL.sub("", _STYLE.sub("", log))
    _, started, after = text.rpartition(STARTED)
    rest = after.partition("\n")[2] if started else text
    lines = (_LOG_LINE.findall(rest) if started else []) or rest.splitlines()
    texts = [line.strip() for line in lines if line.strip()]
    return texts[:MOST_LINES] if started else texts[-MOST_LINES:]


def command_ray_ready(request: Dict[str, Any], output: BinaryIO) -> None:
    """`ray_ready`: on the head, wait until Ray itself counts every node of `expected` as alive.

    `expected`: address → `gpus`, and `start`, the value of the label `gpuctl-start`. Answers `waiting` with the
    addresses that are `missing` now and then, at last `ready` with those still missing after `deadline_s`, and the
    `ids` by which Ray knows the others. Raises OSError where the head's daemons have ended.
    """
    folder = folder_of(request["node"])
    known = read_json(folder / "node.json")
    if not known:
        raise OSError("Ray was not started here")
    port, token = known["ports"]["dashboard"], (folder / "token").read_text()
    ready, _ = _wait_for_nodes(request, output, "127.0.0.1", port, token, lambda: check_running(folder))
    frames.write(output, ready)


def _wait_for_nodes(
    request: Dict[str, Any],
    output: BinaryIO,
    host: str,
    port: int,
    token: str,
    check: Callable[[], None] = lambda: None,
) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """Wait until Ray's dashboard has all nodes of the request, and return the answer, and the nodes alive.

    `check`: called between two looks; its errors end the wait.
    """
    limit, beat = time.monotonic() + float(request["deadline_s"]), time.monotonic()
    while True:
        nodes = alive(ask(host, port, token, NODES))
        ids = ids_of(nodes, request["expected"])
        missing = sorted(request["expected"].keys() - ids.keys())
        if not missing or time.monotonic() > limit:
            return {"t": frames.READY, "missing": missing, "ids": ids}, nodes
        check()
        if time.monotonic() - beat > BEAT_S:
            frames.write(output, {"t": frames.WAITING, "missing": missing})
            beat = time.monotonic()
        time.sleep(ASK_S)


def ask(host: str, port: int, token: str, path: str) -> Dict[str, Any]:
    """Return the answer of Ray's dashboard; empty if it sent no document, as before it is up."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request("GET", path, headers={"Authorization": "Bearer " + token})
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException):
        return {}
    finally:
        connection.close()
    if answer.status in (401, 403):
        raise OSError("Ray's dashboard does not take the cluster's token")
    try:
        document = json.loads(text.decode())
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def alive(answer: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return the nodes in the dashboard's answer on NODES that Ray counts as alive."""
    nodes = ((answer.get("data") or {}).get("result") or {}).get("result") or []
    return [node for node in nodes if node.get("state") == "ALIVE"]


def ids_of(nodes: List[Dict[str, Any]], expected: Dict[str, Dict[str, Any]]) -> Dict[str, str]:
    """By address, Ray's id of each expected node that is there as it was started last, with all of its GPUs."""
    ids = {}
    for node in nodes:
        address = str(node.get("node_ip"))
        expected_node = expected.get(address)
        labels, gpus = node.get("labels") or {}, float((node.get("resources_total") or {}).get("GPU", 0))
        if (
            expected_node
            and labels.get(START_LABEL) == expected_node.get("start")
            and gpus >= expected_node["gpus"]
        ):
            ids[address] = str(node["node_id"])
    return ids


def command_ray_state(request: Dict[str, Any], output: BinaryIO) -> None:
    """`ray_state`: whether Ray's daemons run here, on which `ports`, and what they `said` last if they have ended."""
    folder = folder_of(request["node"])
    known = read_json(folder / "node.json")
    runs = running(folder)
    last = None if runs or not known else last_words(folder)
    frames.write(output, {"t": frames.STATE, "running": runs, "ports": known.get("ports", {}), "said": last})


def command_ray_stop(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `ray_stop`: end the daemons of this node, and remove their files. Answers whether any existed."""
    folder, known = folder_of(request["node"]), {}  # type: Path, Dict[str, Any]
    if folder.is_dir():
        with open(str(folder / "lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = read_json(folder / "node.json")
            _end(folder, known)
            shutil.rmtree(str(folder))
    frames.write(output, {"t": frames.STOPPED, "was_there": bool(known)})


def _end(folder: Path, known: Dict[str, Any]) -> None:
    """End the daemons, also where their supervisor was killed; remove their folders. Raises OSError if any stay."""
    if not known:
        return
    run_dir = Path(known["run_dir"])
    if run_dir.is_dir():
        supervisor.tell_to_stop(run_dir)
        supervisor.wait_for_end(run_dir, STOP_DEADLINE_S)
    limit = time.monotonic() + STOP_DEADLINE_S
    while True:
        left = process.with_variable(MARK, str(run_dir))
        if not left:
            break
        if time.monotonic() > limit:
            raise OSError("processes of Ray's did not end: {}".format(", ".join(map(str, left))))
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    shutil.rmtree(known["temp_dir"], ignore_errors=True)
    shutil.rmtree(str(run_dir), ignore_errors=True)
    (folder / "node.json").unlink()


def command_kuberay_ready(request: Dict[str, Any], output: BinaryIO) -> None:
    """`kuberay_ready`: in a worker's pod, wait until Ray counts every node of `expected` as alive.

    `expected`: address → `gpus`. Answers `waiting` with the addresses that are `missing` now and then, at last
    `ready` with those still missing after `deadline_s`; of the others the `ids` by which Ray knows them and their
    `cpus`; the head's `address`; and Ray's `version`, empty where the head does not answer. Raises OSError in
    another pod.
    """
    try:
        host, port, token = (os.environ[name] for name in (HEAD, PORT, TOKEN))
    except KeyError as error:
        raise OSError(
            "this pod is no worker of a RayCluster with a token: it has no variable {}".format(error)
        ) from None
    ready, nodes = _wait_for_nodes(request, output, host, DASHBOARD_PORT, token)
    amounts = {str(node["node_ip"]): node.get("resources_total") or {} for node in nodes}
    cpus = {address: float(amounts[address].get("CPU", 0)) for address in ready["ids"]}
    version = str(ask(host, DASHBOARD_PORT, token, VERSION).get("ray_version", ""))
    frames.write(output, dict(ready, cpus=cpus, address="{}:{}".format(host, port), version=version))
