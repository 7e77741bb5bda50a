"""The environment of a run, made on its nodes: the packages, and the project itself over them."""

from _thread import LockType
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from gpuctl.tables.view import View
from gpuctl.text import duration

if TYPE_CHECKING:
    from gpuctl.workflow.runs.request.what_to_install import ToInstall
    from remote.facts import Facts
    from remote.findings import Finding
    from remote.python_env.requirements import Requirements
    from remote.sessions.session import Node


LARGE_BYTES = 1000 * 1000 * 1000
"""Size of downloads that are noted before they begin."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """The environment of a run, the same on all of its nodes."""

    environment: "Requirements"
    backend: str | None
    """The build of torch that suits all nodes. `None`: the requested packages name their own."""
    states: Mapping[str, Mapping[str, Any]]
    """Node → the existing parts of its environment."""
    constraints: tuple[str, ...]
    """Packages of a node that has it already: one that came later gets the same versions."""
    indexes: Mapping[str, str] = field(repr=False)
    """The variables that `carried` returns."""
    same_machine: bool = False
    """True: the nodes are hosts on this machine, which share downloads."""
    _to_note: LockType = field(default_factory=Lock, repr=False)
    """Taken by the first node whose download is noted."""
    _turn: LockType = field(default_factory=Lock, repr=False)
    """Held while a local host builds: the next one links to the files that this one has downloaded."""

    @classmethod
    def of(
        cls,
        nodes: "Mapping[str, Node]",
        facts: "Mapping[str, Facts]",
        install: "ToInstall",
        *,
        same_machine: bool = False,
    ) -> Self | None:
        """Choose the build, and look for its existing parts on the nodes. `None`: no packages are requested.

        Raises PreflightFailed if no build suits all nodes.
        """
        from remote.fanout import fan_out, values
        from remote.python_env.backend import backend_of
        from remote.python_env.building import environment_state, packages_of

        environment = install.environment
        if environment is None:
            return None
        gpus = {name: fact.gpus for name, fact in facts.items()}
        backend = None if environment.names_its_build else backend_of(gpus)
        states = values(fan_out(lambda node: environment_state(node, environment, backend), nodes))
        return cls(
            environment=environment,
            backend=backend,
            states=states,
            constraints=packages_of(states.values()),
            indexes=install.indexes,
            same_machine=same_machine,
        )

    def note_size(self, view: View, facts: "Facts", size: int) -> None:
        """Note a download of gigabytes, once for all nodes."""
        from inventories.text import human_bytes

        if size < LARGE_BYTES or not self._to_note.acquire(blocking=False):
            return
        where = "once for all local hosts" if self.same_machine else "on each node that does not have them"
        torch = f"with torch {facts.torch}" if facts.torch else "without torch"
        view.note(
            f"{human_bytes(size)} of packages are downloaded {where}, for the environment of "
            f"{self.environment.source}. Ranks use it in place of {facts.python}, {torch}. Later runs use it as it "
            "is."
        )

    def on(self, view: View, node: "Node", facts: "Facts") -> "Facts":
        """Return the node's facts with the environment's interpreter; build the environment if needed."""
        from inventories.text import human_bytes
        from remote.errors import PreflightFailed
        from remote.facts import with_environment
        from remote.python_env.building import ensure, which_build

        with self._turn if self.same_machine else nullcontext():
            built = ensure(
                node,
                self.environment,
                facts_of_env=self.states[node.name],
                backend=self.backend,
                constraints=self.constraints,
                indexes=self.indexes,
                on_download=partial(self.note_size, view, facts),
                say=lambda text: view.node(node.name, text.removeprefix(f"{node.name}: ")),
            )
        if built.torch is None:
            pythons = self.states[node.name].get("interpreters")
            image = f", or use what the image has: --python {pythons[0]['python']}" if pythons else ""
            raise PreflightFailed(
                f"{node.name}: the environment of {self.environment.source} has no torch, which starts the ranks. "
                f"Add it ({'list pytorch there' if self.environment.kind == 'conda' else 'uv add torch'}){image}"
            )
        if built.torch_index is not None and built.built:
            view.note(which_build(node.name, built, self.backend))
        done = (
            f"built in {duration(built.seconds)}, {human_bytes(built.size_bytes)}" if built.built else "ready"
        )
        view.node(node.name, f"environment of {self.environment.source}: {done}, torch {built.torch}")
        return with_environment(
            facts,
            python=built.python,
            python_version=built.python_version,
            torch=built.torch,
            packages=built.packages,
        )


def install_project(
    view: View, node: "Node", facts: "Facts", install: "ToInstall", root: str
) -> "tuple[Facts, Sequence[Finding]]":
    """Install the run's project on a node if the settings say so; return the facts, with the interpreter that has it.

    `root`: the folder on the node with the sent files. A failed installation is a finding, and lets the run start.
    """
    from remote.errors import NodeFailed
    from remote.python_env import project as projects

    project = install.project
    if project is None:
        return facts, ()
    say = partial(view.node, node.name)
    try:
        done = projects.install(
            node, project, root, facts, install.dependencies, indexes=install.indexes, say=say
        )
    except NodeFailed as error:
        return facts, [projects.not_installed(project, node.name, str(error), by_path=False)]
    if done.problem is None:
        state = f"installed in {duration(done.seconds)}, editable" if done.made else "ready"
        say(f"project {project.name}: {state}")
    return done.facts, projects.findings(project, node.name, done)
