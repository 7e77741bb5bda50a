"""Ray's commands: each node's daemons, and a run's driver on them. Pure text, as `train --dry-run` shows it."""

import hashlib
import ipaddress
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from inventories.machine import Machine
from inventories.runs.run import Run, RunNode
from remote.facts import Facts
from remote.launchers import launch_spec, nccl
from remote.launchers.rank_command import Script
from remote.launchers.rank_environment import rank_environment
from remote.sessions import node_payload
from remote.shared import constants

HEAD_PORTS = ("gcs", "dashboard", "agent", "client")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
STARTED_AT_ONCE = 8
"""Processes of Ray's workers. By default Ray starts one per core, and with few cores a rank has to wait for all
processes of Ray Train."""
WORKER_PORTS = ("agent",)
"""The daemons' ports that Ray would not choose itself, so that two nodes on one machine don't share them."""


def address_of(machine: Machine) -> str:
    """The address that Ray knows a node by.

    Ray replaces 127.0.0.1 by an address that others would reach it at, which hosts on this machine shall not be.
    """
    if ipaddress.ip_address(machine.private_ip) == ipaddress.ip_address("127.0.0.1"):
        return f"127.0.0.{2 + machine.rank}"
    return machine.private_ip


def label_of(name: str) -> str:
    """A node's name as Ray takes it for a label's value."""
    return name if _LABEL.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()[:32]


def daemons(
    machine: Machine, facts: Facts, *, cores: int, master: Machine, nodes: int, head: str | None, token: str
) -> dict[str, Any]:
    """Return the request for a node's daemons. `head`: its HOST:PORT; `None`: this node is the head itself."""
    address = address_of(machine)
    variables = (
        [
            "--head",
            "--port={gcs}",
            "--dashboard-host=127.0.0.1",
            "--dashboard-port={dashboard}",
            "--include-dashboard=true",
            "--ray-client-server-port={client}",
        ]
        if head is None
        else [f"--address={head}"]
    )
    argv = [
        facts.python,
        "-m",
        "ray.scripts.scripts",
        "start",
        *variables,
        f"--node-ip-address={address}",
        f"--num-cpus={cores}",
        f"--num-gpus={len(facts.gpus)}",
        f"--labels={constants.START_LABEL}={{start}},{constants.NAME_LABEL}={label_of(machine.name)}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port={agent}",
        "--temp-dir={temp_dir}",
        "--disable-usage-stats",
        "--block",
    ]
    environment = {
        constants.NODE_VARIABLE: machine.name,
        constants.NODE_HOME_VARIABLE: f"{facts.home}/{constants.NODE_FOLDER}",
        "RAY_AUTH_MODE": "token",
        # Ray would give its workers 15: on machines of their own that only slows them down next to Ray itself.
        "RAY_worker_niceness": "0",
        "RAY_worker_maximum_startup_concurrency": str(max(cores, STARTED_AT_ONCE)),
        **nccl.variables(facts, master_addr=master.private_ip, nodes=nodes),
    }
    if not facts.gpus:
        # Without GPUs Ray leaves the variable alone, and its workers would see hidden ones.
        environment["CUDA_VISIBLE_DEVICES"] = ""
    # An interpreter of the same path may have another Ray by now.
    versions = [facts.ray, facts.python_version]
    identity_parts = [argv, sorted(environment.items()), versions, hashlib.sha256(token.encode()).hexdigest()]
    return {
        "identity": hashlib.sha256(json.dumps(identity_parts).encode()).hexdigest(),
        "node": machine.name,
        "argv": argv,
        "env": environment,
        "path_prefix": facts.programs,
        "head": head,
        "ports": list(HEAD_PORTS if head is None else WORKER_PORTS),
        "listens": [address, "gcs"] if head is None else None,
        "token": token,
    }


def launch(
    run: Run,
    node: RunNode,
    facts: Mapping[str, Facts],
    script: Script,
    *,
    cwd: str,
    cores: Mapping[str, int],
    cpus: Mapping[str, float],
    env: Mapping[str, str],
    ids: Mapping[str, str],
    ray: Mapping[str, str],
) -> dict[str, Any]:
    """Return the launch for the node's supervisor.

    `cpus`: CPUs of each node for Ray; `ids`: Ray's ids of the nodes; `ray`: variables by which a driver finds it.

    A script is a driver, on the first node alone: what runs on the others is its own affair. The built-in job's
    driver is ours, and every node watches over its ranks.
    """
    fact = facts[node.name]
    environment = rank_environment(run, node, fact, cores=cores[node.name], env=env)
    if script.kind == "built-in":
        part = ["ray_ranks", node.run_dir, cwd, str(node.first_rank), str(node.nproc), ",".join(environment)]
        part += driver(run, facts, script, cpus, ids) if node.rank == 0 else []
    else:
        searches = script.search is not None
        command = search(script, facts, fact, cwd, env) if searches else script.command(fact.python)
        part = ["rank", node.run_dir, cwd, "--", *command]
    if node.rank == 0:
        # In the others, gpuctl itself passes them on.
        own_script = script.kind != "built-in" and script.search is None
        environment |= with_variables(ray, env) if own_script else ray
    words = node_payload.argv_on_node(fact.python, fact.home, *part)
    return launch_spec(node, fact, words, environment, grace_s=run.stop_grace_s)


def with_variables(ray: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Return a driver's variables by which Ray's workers, tasks and actors get the user's variables, too.

    A `runtime_env` of the script is merged with it, and wins.
    """
    if not env:
        return dict(ray)
    job = json.loads(ray.get(constants.RAY_JOB_CONFIG, "{}"))
    runtime_env = job.get("runtime_env", {})
    merged = {**runtime_env, "env_vars": {**runtime_env.get("env_vars", {}), **env}}
    config = json.dumps({**job, "runtime_env": merged})
    return {**ray, constants.RAY_JOB_CONFIG: config, "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}


def way_to(head: str, facts: Facts, node: str) -> dict[str, str]:
    """Variables by which a driver on a node finds the head, and is let in by it."""
    return {
        "RAY_ADDRESS": head,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": f"{facts.home}/{constants.NODE_FOLDER}/{constants.RAY}/{node}/token",
    }


def search(
    script: Script, facts: Mapping[str, Facts], driver_fact: Facts, cwd: str, env: Collection[str]
) -> list[str]:
    """Return the command that has Ray Tune search with a function.

    A trial has a GPU if the nodes have any, unless set otherwise.
    """
    # The home before it is another one on each node.
    _, _, code = cwd.rpartition(f"/{constants.NODE_FOLDER}/{constants.CODE}/")
    document = {
        **(script.search or {}),
        "function": script.target,
        "code": code,
        "env": sorted(env),
    }
    if document["gpus"] is None:
        document["gpus"] = int(any(fact.gpus for fact in facts.values()))
    return node_payload.argv_on_node(driver_fact.python, driver_fact.home, "ray_tune", json.dumps(document))


def driver(
    run: Run,
    facts: Mapping[str, Facts],
    script: Script,
    cpus: Mapping[str, float],
    ids: Mapping[str, str],
) -> list[str]:
    """The command that has Ray start the ranks of the built-in job, as the layout says."""
    python = facts[run.nodes[0].name].python
    gpus_each, cpus_each = shares(run.nodes, facts, cpus)
    return [
        python,
        "-u",
        "-m",
        "train.on_ray",
        f"--run={run.run}",
        f"--layout={','.join(f'{ids[node.name]}:{node.nproc}' for node in run.nodes)}",
        f"--names={','.join(node.name for node in run.nodes)}",
        f"--master={run.master_addr}:{run.master_port}",
        f"--gpus-per-rank={gpus_each:g}",
        f"--cpus-per-rank={cpus_each:g}",
        "--",
        *script.args,
    ]


def shares(
    nodes: Sequence[RunNode], facts: Mapping[str, Facts], cpus: Mapping[str, float]
) -> tuple[float, float]:
    """GPUs and CPUs that a rank takes of its node, so that every node's ranks find room; at most one of each.

    Ray counts in ten-thousandths.
    """

    def share(of: Mapping[str, float]) -> float:
        return min(1.0, *(int(of[node.name] / node.nproc * 10_000) / 10_000 for node in nodes))

    return share({name: len(fact.gpus) for name, fact in facts.items()}), share(cpus)
