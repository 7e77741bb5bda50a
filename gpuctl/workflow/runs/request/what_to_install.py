"""Packages for a run's ranks: the requested packages, and the project itself."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from inventories.machine import Machine
from remote.launchers import launcher_of

if TYPE_CHECKING:
    from gpuctl.workflow.runs.request.request import TrainRequest
    from inventories.runs.run import Commit
    from remote.files.tree import Tree
    from remote.python_env.local_paths import NamedProject
    from remote.python_env.project import Dependencies, LocalProject
    from remote.python_env.requirements import Requirements

ENGINES = {"deepspeed": ("deepspeed>=0.19",)}
"""Engine of the built-in job → its packages, without torch."""


@dataclass(frozen=True, kw_only=True)
class ToInstall:
    """Packages to install for a run's ranks."""

    environment: "Requirements | None"
    """The environment's packages. `None`: the machines' interpreter is used as it is."""
    project: "LocalProject | None"
    """The project itself, over that interpreter. `None`: it has no build system, or is not to be installed."""
    dependencies: "Dependencies"
    """Treatment of the project's own missing requirements."""

    indexes: Mapping[str, str] = field(repr=False)
    """Variables of this computer that say where the nodes' installers find packages; they may hold passwords."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of a dry run."""
        if self.environment is not None:
            where = "on each node, where it is not there, with its Python below"
            yield f"build an environment of {self.environment.source} {where}"
        if self.project is not None:
            needs = ", with what it needs and is not there" if self.dependencies == "install" else ""
            where = "" if self.project.folder == "." else f" ({self.project.folder})"
            yield f"the project {self.project.name}{where} is installed, editable{needs}; that Python stays as it is"
        if self.indexes and (self.environment or self.project):
            yield f"what installs there is given this computer's {', '.join(sorted(self.indexes))}"


def what_to_install(
    request: "TrainRequest",
    tree: "Tree",
    machines: Sequence[Machine],
    say: Callable[[str], None],
    *,
    same_machine: bool,
    commit: "Commit | None" = None,
) -> ToInstall:
    """Read it from the request and the project's files. `same_machine`: the nodes are hosts on this one.

    Raises BadRequirements.
    """
    from remote.python_env.index import carried
    from remote.python_env.project import project_above, with_named, with_version

    project = None
    if request.install_project and not request.built_in:
        project = project_above(request.folder, tree)
    packages, named = _packages(request, tree.root, machines, say, project, same_machine=same_machine)
    named = named if request.install_project else ()
    project = with_named(project, named, tree)
    if project is not None:
        project = with_version(project, commit, tree.root)
    settled = (packages is not None and not named) or request.python is not None
    return ToInstall(
        environment=packages,
        project=project,
        dependencies="tell" if settled else "install",
        # With wheels nothing comes from elsewhere.
        indexes={} if request.wheels else carried(os.environ, same_machine=same_machine),
    )


def _packages(
    request: "TrainRequest",
    root: Path,
    machines: Sequence[Machine],
    say: Callable[[str], None],
    project: "LocalProject | None",
    *,
    same_machine: bool,
) -> "tuple[Requirements | None, tuple[NamedProject, ...]]":
    """Return the packages of the ranks' environment, and the projects that are installed over it from folders.

    `None`: the machines' interpreter is used as it is.
    """
    from remote.python_env.requirements import requirements_of

    with_python = next((machine for machine in machines if machine.python), None)
    if with_python is not None and not (request.pip or request.requirements or request.wheels):
        listed = None
        if not request.built_in and not request.python:
            listed = requirements_of(request.folder, root=root)
        if listed is None:
            return None, ()
        if note := _not_installed(listed, with_python, project, same_machine=same_machine):
            say(note)
        return None, listed.projects
    environment = requirements_of(
        request.folder,
        root=root,
        pip=request.pip,
        requirements=request.requirements,
        wheels=request.wheels,
        built_in=request.built_in,
        always=(*launcher_of(request.mode).requirements(machines), *ENGINES.get(request.engine or "", ())),
    )
    if environment is None:
        return None, ()
    lists_packages = any(text.strip() for _, text in environment.files)
    return environment if lists_packages or with_python is None else None, environment.projects


def _not_installed(
    listed: "Requirements", machine: Machine, project: "LocalProject | None", *, same_machine: bool
) -> str:
    """Return the note on listed packages that are not installed because a machine's own Python is used.

    Empty: all are. `project`: the project that is installed over that Python, with its requirements.
    """
    if project is not None and listed.kind == "project" and listed.files[0] in project.files:
        return ""
    if same_machine and listed.kind in ("requirements", "project"):
        return _not_in_python_here(listed, str(machine.python))
    return (
        f"{listed.source} is not installed: {machine.name} uses {machine.python} as it is. `--requirements "
        f"{listed.source}` builds an environment with what it lists."
    )


def _not_in_python_here(listed: "Requirements", python: str) -> str:
    """Return the note on listed packages that local hosts' Python, of this computer, may lack."""
    packages = list(listed.named)
    lacks = "may lack"
    if python == sys.executable:
        plain = (name for name in packages if ";" not in name and "://" not in name)
        packages = [name for name in plain if not _is_installed(name)]
        lacks = "lacks"
    if not packages:
        return ""
    pip = shlex.join([python, "-m", "pip", "install", *packages])
    return (
        f"{python}, which local hosts use, {lacks} packages that {listed.source} lists. Install them: {pip}"
    )


def _is_installed(requirement: str) -> bool:
    """Return whether this process's Python has a package of that name, in any version."""
    from remote.python_env.project_files import project_of

    try:
        version(project_of(requirement))
    except (PackageNotFoundError, ValueError):
        return False
    return True
