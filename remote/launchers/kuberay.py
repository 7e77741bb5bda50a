"""Ray in pods: KubeRay keeps it, each pod's container is a Ray node, and a run is one more driver."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inventories.machine import Machine
from inventories.ray_in_pods import RAY_VERSION
from inventories.runs.run import Run, RunNode
from remote.errors import BadAnswer, RayNotReady
from remote.facts import Facts
from remote.launchers import Service, nccl
from remote.launchers import ray_commands as commands
from remote.launchers.rank_command import Script
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.shared import frames
from remote.shared.constants import NODE_FOLDER, NODE_HOME_VARIABLE, RAY_JOB_CONFIG

READY_DEADLINE_S = 90.0
SILENCE_S = 30.0


def keeps_ray(machines: Sequence[Machine]) -> bool:
    """Return whether these machines are pods: then KubeRay starts Ray, not gpuctl."""
    return all(machine.transport == "pod" for machine in machines)


@dataclass(frozen=True, kw_only=True)
class KubeRayService(Service):
    """The Ray of the pods of a run."""

    head: str
    """HOST:PORT of its control service, in the cluster's DNS."""
    ids: dict[str, str]
    """By a node's name, what Ray calls it."""
    cpus: dict[str, float]
    """Ray's CPUs by a node's name. Without a name: the number of cores."""

    def launch(
        self,
        run: Run,
        node: RunNode,
        script: Script,
        facts: Mapping[str, Facts],
        *,
        cores: Mapping[str, int],
        cwd: str,
        env: Mapping[str, str],
    ) -> dict[str, Any]:
        """Return the driver's launch, and for the built-in job one that watches over a node's ranks."""
        fact = facts[node.name]
        environment = {
            NODE_HOME_VARIABLE: f"{fact.home}/{NODE_FOLDER}",
            **nccl.variables(fact, master_addr=run.master_addr, nodes=len(run.nodes)),
        }
        return commands.launch(
            run,
            node,
            facts,
            script,
            cwd=cwd,
            cores=cores,
            cpus={**cores, **self.cpus},
            env=env,
            ids=self.ids,
            ray=way_to(self.head, fact.python, environment),
        )

    def join(self, nodes: Mapping[str, Node], machine: Machine, facts: Mapping[str, Facts]) -> None:
        """Have one more pod, once Ray counts it in."""
        joined = service({machine.name: nodes[machine.name]}, facts, lambda _node, _text: None)
        self.ids.update(joined.ids)
        self.cpus.update(joined.cpus)


def service(
    nodes: Mapping[str, Node], facts: Mapping[str, Facts], say: Callable[[str, str], None]
) -> KubeRayService:
    """Wait until Ray counts these pods in.

    Raises RayNotReady with the missing ones, or if their Ray has another version.
    """
    ray, version = _ask(nodes, {name: len(facts[name].gpus) for name in nodes}, say, READY_DEADLINE_S)
    first = next(iter(nodes))
    if missing := [name for name in nodes if name not in ray.ids]:
        namespace, _, pod = nodes[missing[0]].machine.id.partition("/")
        raise RayNotReady(
            f"Ray's head did not count in {', '.join(missing)} in {READY_DEADLINE_S:.0f} s. The pod's own log may "
            f"tell: kubectl logs -n {namespace} {pod}"
        )
    if facts[first].ray != version:
        raise RayNotReady(
            f"Ray is {facts[first].ray} for {facts[first].python_below} and "
            f"{version or 'not known'} in the "
            "pods, and takes part in a cluster of its own version alone. Install that one: "
            f"--pip 'ray[default,train]=={version or RAY_VERSION}'."
        )
    return ray


def counted(nodes: Mapping[str, Node]) -> KubeRayService:
    """Return Ray with the pods that it counts in at this moment."""
    return _ask(nodes, dict.fromkeys(nodes, 0), lambda _node, _text: None, 0.0)[0]


def way_to(head: str, python: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Variables by which a driver finds the head, and by which Ray's workers get its interpreter and variables.

    The token is in the container's own variables. The head's pod has no environment of ours; Ray's own actors that
    ask for nothing may be there, and have the image's Python.
    """
    environment = {
        "py_executable": f"$(command -v {shlex.quote(python)} || command -v python)",
        "env_vars": dict(variables),
    }
    return {
        "RAY_ADDRESS": head,
        "RAY_AUTH_MODE": "token",
        RAY_JOB_CONFIG: json.dumps({"runtime_env": environment}),
    }


def _ask(
    nodes: Mapping[str, Node], gpus: Mapping[str, int], say: Callable[[str, str], None], deadline_s: float
) -> tuple[KubeRayService, str]:
    """Ask the first pod which of the nodes Ray counts in; wait for them until the deadline.

    Returns Ray, and its version: empty where its head does not answer.
    """
    first = next(iter(nodes.values()))
    names = {node.machine.private_ip: name for name, node in nodes.items()}
    request = {
        "expected": {address: {"gpus": gpus[name]} for address, name in names.items()},
        "deadline_s": deadline_s,
    }
    missing_before: list[str] = []
    bounds = Bounds(total_s=deadline_s + SILENCE_S)
    with first.stream("kuberay_ready", request, timeout_s=SILENCE_S, bounds=bounds) as talk:
        for header, _ in talk.frames():
            if header["t"] == frames.READY:
                ids = {names[address]: str(of) for address, of in header["ids"].items()}
                cpus = {names[address]: float(count) for address, count in header["cpus"].items()}
                service = KubeRayService(head=str(header["address"]), ids=ids, cpus=cpus)
                return service, str(header["version"])
            missing = [names[address] for address in header["missing"]]
            if missing != missing_before:
                say(first.name, f"Ray waits for {', '.join(missing)}")
                missing_before = missing
    raise BadAnswer(f"{first.name}: it did not say whether Ray is ready.")
