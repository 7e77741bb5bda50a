"""What starts a run's ranks. A launcher is one module and one line in LAUNCHERS; nothing else asks which it is."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from remote.errors import UnknownLauncher

if TYPE_CHECKING:
    from inventories.machine import Machine
    from inventories.run import Run
    from inventories.store import ClusterFolder
    from remote.checks.facts import Facts
    from remote.checks.finding import Finding
    from remote.launchers.rank_command import Script
    from remote.sessions.session import Node

Say = Callable[[str, str], None]
"""Gets a node's name and what it does."""

LAUNCHERS = {"torchrun": "remote.launchers.torchrun", "ray": "remote.launchers.ray"}
"""Name, as `--mode` and run records have it → module."""
DEFAULT = "torchrun"


class Service(Protocol):
    """What a launcher has on the nodes of a run, or needs nothing of."""

    daemons: Mapping[str, Sequence[str]]
    """By node, the command of what has to run there before ranks are started."""

    def launches(
        self,
        run: "Run",
        script: "Script",
        facts: "Mapping[str, Facts]",
        code: Mapping[str, str],
        env: Mapping[str, str],
    ) -> dict[str, dict[str, Any]]:
        """Return what each node's supervisor is given: argv, environment, folder, by node.

        `code`: the project's folder by node; `env`: variables that the user sets for the ranks.
        """
        ...

    def join(self, nodes: "Mapping[str, Node]", machine: "Machine", facts: "Mapping[str, Facts]") -> None:
        """Let a machine take part in a run that goes on. `facts` of all nodes; `nodes` holds the machine's, too."""
        ...


class Launcher(Protocol):
    """What a launcher's module is."""

    REQUIREMENTS: tuple[str, ...]
    """What an environment that is built for it holds."""
    PHASE: str | None
    """What `start` does, for the progress display. None: nothing."""

    def findings(self, facts: "Mapping[str, Facts]") -> "list[Finding]":
        """Return what the nodes' interpreters lack for it."""
        ...

    def drives(self, *, built_in: bool, search: bool) -> bool:
        """Return whether a run is one process on the first node, which has the launcher start all others.

        `built_in`: the run is the built-in job; `search`: it tries several sets of parameters.
        """
        ...

    def start(
        self,
        nodes: "Mapping[str, Node]",
        facts: "Mapping[str, Facts]",
        cluster: "ClusterFolder",
        say: Say,
        *,
        most: int,
    ) -> Service:
        """Start what has to run before ranks do, where it is not there. `most`: nodes that there may be later."""
        ...

    def planned(self, machines: "Sequence[Machine]", facts: "Mapping[str, Facts]") -> Service:
        """Return the service as a dry run shows it; nothing is started."""
        ...

    def takes_part(self, node: "Node") -> bool:
        """Return whether a run that drives itself can use a node."""
        ...


def launcher_of(name: str) -> Launcher:
    """Return the launcher of that name. Raises UnknownLauncher: a run's record may be of a newer gpuctl."""
    if name not in LAUNCHERS:
        raise UnknownLauncher(
            f"This gpuctl has no launcher '{name}', only {', '.join(LAUNCHERS)}. Update gpuctl."
        )
    return cast(Launcher, import_module(LAUNCHERS[name]))


def drives_itself(name: str, *, built_in: bool) -> bool:
    """Return whether a run of that launcher is one process that starts others; False where it is not known."""
    return name in LAUNCHERS and launcher_of(name).drives(built_in=built_in, search=False)
