"""Ray: daemons that are kept between runs; a built-in job's ranks are started by ours, a script drives Ray itself.

In pods KubeRay keeps Ray, and nothing is started.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inventories.disk.cluster_files import ClusterFiles
from inventories.machine import Machine
from inventories.ray_in_pods import RAY_VERSION
from inventories.runs.run import Run, RunNode
from remote.facts import Facts, cores_of_a_node
from remote.findings import Finding, not_the_first
from remote.launchers import Launcher, Say, Service, kuberay, ray_daemons
from remote.launchers import ray_commands as commands
from remote.launchers.python_packages import not_installed, older
from remote.launchers.rank_command import Script
from remote.sessions.session import Node
from remote.shared.constants import RAY_RESULTS

OLDEST = "2.60"


class Ray(Launcher):
    """Keeps a Ray cluster on the nodes."""

    title = "Ray"
    phase = "a Ray cluster of all nodes"
    home_folders = (RAY_RESULTS,)

    def requirements(self, machines: Sequence[Machine]) -> tuple[str, ...]:
        """Return torch and Ray; in pods the very Ray that they have, as others do not take part in it."""
        version = f"=={RAY_VERSION}" if kuberay.keeps_ray(machines) else f">={OLDEST}"
        return ("torch", f"ray[default,train]{version}")

    def findings(self, facts: Mapping[str, Facts]) -> list[Finding]:
        """Return where torch or Ray is missing, differs, or is too old."""
        rays = {name: fact.ray for name, fact in facts.items() if fact.ray}
        return [
            *super().findings(facts),
            *(
                not_installed(name, fact, "ray", f"'ray[default,train]>={OLDEST}'")
                for name, fact in facts.items()
                if not fact.ray
            ),
            *not_the_first(rays, "Ray is", "install the same version on all nodes", fatal=True),
            *(
                Finding(
                    node=name,
                    problem=f"Ray is {version} for {facts[name].python_below}, which is older than "
                    "what gpuctl starts",
                    fix=f"install {OLDEST} or newer there, or name it with --pip 'ray[default,train]>={OLDEST}'",
                )
                for name, version in rays.items()
                if older(version, OLDEST)
            ),
        ]

    def drives(self, *, built_in: bool, search: bool) -> bool:
        """Return True for a script or a search: they are Ray's drivers."""
        return search or not built_in

    def start(
        self,
        nodes: Mapping[str, Node],
        facts: Mapping[str, Facts],
        cluster: ClusterFiles,
        say: Say,
        *,
        most: int,
    ) -> Service:
        """Have Ray's daemons on all nodes. Raises RayNotReady, NodeFailed."""
        machines = [node.machine for node in nodes.values()]
        if kuberay.keeps_ray(machines):
            return kuberay.service(nodes, facts, say)
        token = cluster.ray_token()
        head, ids = ray_daemons.bring_up(nodes, facts, token, say, most=most)
        master = min(machines, key=lambda machine: machine.rank)
        return RayService(head=head, ids=ids, master=master, token=token, say=say, most=most)

    def planned(self, machines: Sequence[Machine], facts: Mapping[str, Facts]) -> Service:
        """Return the service, with names in braces for values that the nodes choose."""
        ids = {machine.name: f"{{{machine.name}}}" for machine in machines}
        if kuberay.keeps_ray(machines):
            return kuberay.KubeRayService(head="{head}", ids=ids, cpus={})
        cores = cores_of_a_node(facts)
        head = f"{commands.address_of(machines[0])}:{{gcs}}"
        daemons = {
            machine.name: commands.daemons(
                machine,
                facts[machine.name],
                cores=cores[machine.name],
                master=machines[0],
                nodes=len(machines),
                head=head if at else None,
                token="",
            )["argv"]
            for at, machine in enumerate(machines)
        }
        return RayService(head=head, ids=ids, master=machines[0], daemons=daemons)

    def takes_part(self, node: Node) -> bool:
        """Return whether Ray runs on a node."""
        if kuberay.keeps_ray([node.machine]):
            return node.name in kuberay.counted({node.name: node}).ids
        return bool(node.call("ray_state", {"node": node.name})["running"])

    def may_have_daemons(self, cluster: ClusterFiles, machine: Machine) -> bool:
        """Return whether Ray was ever started on the cluster: then it has a token. In pods KubeRay starts it."""
        return cluster.ray_token_path.exists() and not kuberay.keeps_ray([machine])

    def end_daemons(self, node: Node) -> bool:
        """End Ray on a node."""
        return ray_daemons.end(node)


@dataclass(frozen=True, kw_only=True)
class RayService(Service):
    """Ray's daemons on the nodes of a run."""

    head: str
    """HOST:PORT of its control service."""
    ids: dict[str, str]
    """By a node's name, what Ray calls it."""
    master: Machine
    """On which the head is."""
    daemons: Mapping[str, Sequence[str]] = field(default_factory=dict)
    token: str = ""
    say: Say = lambda _node, _text: None
    most: int = 0

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
        way = commands.way_to(self.head, facts[node.name], node.name)
        return commands.launch(
            run, node, facts, script, cwd=cwd, cores=cores, cpus=cores, env=env, ids=self.ids, ray=way
        )

    def join(self, nodes: Mapping[str, Node], machine: Machine, facts: Mapping[str, Facts]) -> None:
        """Have a worker on one more node."""
        self.ids[machine.name] = ray_daemons.join(
            nodes, machine, facts, self.head, self.master, self.token, self.say, most=self.most
        )


launcher = Ray()
