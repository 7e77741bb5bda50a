"""Packages for a run's ranks: the requested packages, and the project itself."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from inventories.machine import Machine
from remote.launchers import launcher_of

if TYPE_CHECKING:
    from gpuctl.workflow.runs.request.request import TrainRequest
    from inventories.runs.commit import Commit
    from remote.files.tree import Tree
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
    note: str
    """Note on listed packages that are not installed. Empty: all are."""

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


@dataclass(frozen=True, kw_only=True)
class Packages:
    """The packages that a request and its project's files name, before the run's machines are known."""

    request: "TrainRequest"
    listed: "Requirements | None"
    """`None`: nothing names packages, or the interpreter of --python is used as it is."""
    project: "LocalProject | None"
    """The project itself. `None`: it has no build system, or is not to be installed."""

    def on(self, machines: Sequence[Machine], *, same_machine: bool) -> ToInstall:
        """Return the packages to install on these machines. `same_machine`: they are hosts on this computer."""
        from remote.python_env.index import carried

        request, listed = self.request, self.listed
        environment, note = listed, ""
        with_python = next((machine for machine in machines if machine.python), None)
        if listed is None or (with_python is not None and not request.names_packages):
            environment = None
            if listed is not None and with_python is not None and not request.built_in:
                note = _not_installed(
                    replace(listed, always=()), with_python, self.project, same_machine=same_machine
                )
        elif with_python is not None and not any(text.strip() for _, text in listed.files):
            environment = None
        elif listed.always:
            launcher = launcher_of(request.mode)
            of_request = listed.always[len(launcher.requirements(())) :]
            environment = replace(listed, always=(*launcher.requirements(machines), *of_request))
        over_folders = request.install_project and listed is not None and bool(listed.projects)
        settled = (environment is not None and not over_folders) or request.python is not None
        return ToInstall(
            environment=environment,
            project=self.project,
            dependencies="tell" if settled else "install",
            # With wheels nothing comes from elsewhere.
            indexes={} if request.wheels else carried(os.environ, same_machine=same_machine),
            note=note,
        )


def read_packages(request: "TrainRequest", tree: "Tree", commit: "Commit | None") -> Packages:
    """Read the packages from the request and the project's files. Raises BadRequirements."""
    from remote.python_env.project import project_above, with_named, with_version
    from remote.python_env.requirements import requirements_of

    listed = project = None
    if not request.python or request.names_packages:
        listed = requirements_of(
            request.folder,
            root=tree.root,
            pip=request.pip,
            requirements=request.requirements,
            wheels=request.wheels,
            built_in=request.built_in,
            always=(*launcher_of(request.mode).requirements(()), *ENGINES.get(request.engine or "", ())),
        )
    if request.install_project and not request.built_in:
        project = project_above(request.folder, tree)
    if request.install_project:
        project = with_named(project, listed.projects if listed is not None else (), tree)
    if project is not None:
        project = with_version(project, commit, tree.root)
    return Packages(request=request, listed=listed, project=project)


def _not_installed(
    listed: "Requirements", machine: Machine, project: "LocalProject | None", *, same_machine: bool
) -> str:
    """Return the note on listed packages that are not installed because a machine's own Python is used.

    Empty: all are. `project`: the project that is installed over that Python, with its requirements.
    """
    if project is not None and listed.kind == "project" and listed.files[0] in project.files:
        return ""
    if same_machine and listed.kind in ("requirements", "project"):
        python = str(machine.python)
        packages = list(listed.named)
        lacks = "may lack"
        if python == sys.executable:
            plain = (name for name in packages if ";" not in name and "://" not in name)
            packages = [name for name in plain if not _is_installed(name)]
            lacks = "lacks"
        if not packages:
            return ""
        pip = shlex.join([python, "-m", "pip", "install", *packages])
        return f"{python}, which local hosts use, {lacks} packages that {listed.source} lists. Install them: {pip}"
    return (
        f"{listed.source} is not installed: {machine.name} uses {machine.python} as it is. `--requirements "
        f"{listed.source}` builds an environment with what it lists."
    )


def _is_installed(requirement: str) -> bool:
    """Return whether this process's Python has a package of that name, in any version."""
    from remote.python_env.project_files import project_of

    try:
        version(project_of(requirement))
    except (PackageNotFoundError, ValueError):
        return False
    return True
