"""Launchers, which start a run's ranks: one module and one line in LAUNCHERS each.

The module has a Launcher and its Service; both have defaults for all that a launcher need not do.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from remote.errors import UnknownLauncher

if TYPE_CHECKING:
    from inventories.disk.cluster_files import ClusterFiles
    from inventories.machine import Machine
    from inventories.runs.run import Run, RunNode
    from remote.facts import Facts
    from remote.findings import Finding
    from remote.launchers.rank_command import Script
    from remote.sessions.session import Node

Say = Callable[[str, str], None]
"""Gets a node's name and its action."""

LAUNCHERS = {"torchrun": "remote.launchers.torchrun", "ray": "remote.launchers.ray"}
"""Name, as `--mode` and run records have it → module."""
DEFAULT = "torchrun"


class Service(ABC):
    """A launcher's services on the nodes of a run."""

    daemons: Mapping[str, Sequence[str]] = MappingProxyType({})
    """By node, the command of what has to run there before ranks are started."""

    @abstractmethod
    def launch(
        self,
        run: "Run",
        node: "RunNode",
        script: "Script",
        facts: "Mapping[str, Facts]",
        *,
        cores: Mapping[str, int],
        cwd: str,
        env: Mapping[str, str],
    ) -> dict[str, Any]:
        """Return what one node's supervisor is given, as `launch_spec` makes it.

        `facts` and `cores` of all nodes; `cwd`: the project's folder on this one; `env`: variables that the user
        sets for the ranks.
        """

    def launches(
        self,
        run: "Run",
        script: "Script",
        facts: "Mapping[str, Facts]",
        code: Mapping[str, str],
        env: Mapping[str, str],
    ) -> dict[str, dict[str, Any]]:
        """Return what each node's supervisor is given, by node. `code`: the project's folder by node."""
        from remote.facts import cores_of_a_node

        cores = cores_of_a_node(facts)
        return {
            node.name: self.launch(run, node, script, facts, cores=cores, cwd=code[node.name], env=env)
            for node in run.nodes
        }

    def join(  # noqa: B027 - a default that does nothing
        self, nodes: "Mapping[str, Node]", machine: "Machine", facts: "Mapping[str, Facts]"
    ) -> None:
        """Let a machine take part in an active run; by default it waits for the next run.

        `facts` of all nodes; `nodes` holds the machine's, too.
        """


class Launcher(ABC):
    """A launcher of a run's ranks. A module in LAUNCHERS has one, `launcher`; `title` and `planned` are required."""

    title: str
    """Its name as people write it."""
    starts = "starting"
    """Start of the text that is shown until ranks run; their number follows."""
    phase: str | None = None
    """What `start` does, for the progress display. `None`: nothing."""
    home_folders: Sequence[str] = ()
    """Folders of a node's home folder in which it keeps files of scripts."""

    @abstractmethod
    def planned(self, machines: "Sequence[Machine]", facts: "Mapping[str, Facts]") -> Service:
        """Return the service as a dry run shows it; nothing is started."""

    def start(
        self,
        nodes: "Mapping[str, Node]",
        facts: "Mapping[str, Facts]",
        cluster: "ClusterFiles",
        say: Say,
        *,
        most: int,
    ) -> Service:
        """Start what has to run before ranks do, where it is not there. `most`: nodes that there may be later."""
        return self.planned([node.machine for node in nodes.values()], facts)

    def requirements(self, machines: "Sequence[Machine]") -> tuple[str, ...]:
        """Return the packages of an environment built for it on these machines."""
        return ("torch",)

    def findings(self, facts: "Mapping[str, Facts]") -> "list[Finding]":
        """Return the lack of the nodes' interpreters: torch, or the same torch on all nodes."""
        from remote.launchers.python_packages import same_torch

        return same_torch(facts)

    def drives(self, *, built_in: bool, search: bool) -> bool:
        """Return whether a run is one process on the first node, which has the launcher start all others.

        `built_in`: the run is the built-in job; `search`: it tries several sets of parameters.
        """
        return False

    def takes_part(self, node: "Node") -> bool:
        """Return whether a run that drives itself can use a node."""
        return True

    def may_have_daemons(self, cluster: "ClusterFiles", machine: "Machine") -> bool:
        """Return whether it may have left daemons on a machine of the cluster, kept for the next run."""
        return False

    def end_daemons(self, node: "Node") -> bool:
        """End its daemons on a node. Returns whether any ran; raises NodeFailed if some remain."""
        return False


def launch_spec(
    node: "RunNode",
    facts: "Facts",
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    grace_s: float,
) -> dict[str, Any]:
    """Return the launch for a node's supervisor. `grace_s`: the time that a stopped run may take to end."""
    return {
        "run_dir": node.run_dir,
        "node": node.name,
        "argv": list(argv),
        "env": dict(environment),
        # `python` and `torchrun` inside a script are the ones of its interpreter.
        "path_prefix": facts.programs,
        "grace_s": grace_s,
        # UUIDs of GPUs that no other run on the node may have; empty: all GPUs.
        "gpus": list(node.gpus),
    }


def launcher_of(name: str) -> Launcher:
    """Return the launcher of that name. Raises UnknownLauncher: a run's record may be of a newer gpuctl."""
    if name not in LAUNCHERS:
        raise UnknownLauncher(
            f"This gpuctl has no launcher '{name}', only {', '.join(LAUNCHERS)}. Update gpuctl."
        )
    return cast(Launcher, import_module(LAUNCHERS[name]).launcher)


def drives_itself(name: str, *, built_in: bool) -> bool:
    """Return whether a run of that launcher is one process that starts others; False where it is not known."""
    return name in LAUNCHERS and launcher_of(name).drives(built_in=built_in, search=False)
