"""The project of a request: files to send, script, packages to install."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gpuctl.app import App
from gpuctl.errors import Usage
from gpuctl.scripts.sources import sources_of_script
from gpuctl.workflow.machines.host_firewalls import owner_of
from gpuctl.workflow.runs.request.request import TrainRequest, check_built_in, home_note
from gpuctl.workflow.runs.request.what_to_install import ToInstall, what_to_install
from inventories.machine import Inventory, Machine
from inventories.runs.run import Commit

if TYPE_CHECKING:
    from remote.files.tree import Tree
    from remote.launchers.rank_command import Script


@dataclass(frozen=True, kw_only=True)
class Project:
    """The script of a request, the files to send, and the packages and variables that the nodes need."""

    script: "Script"
    tree: "Tree"
    """The files to send."""
    destination: str
    """The folder on a node that receives them."""
    folder: str
    """The script's folder in it: `.`, `sub/folder`."""
    install: ToInstall
    mode: str
    """The launcher's name."""
    max_nodes: int
    """Maximum number of machines during the job; 0: the number at its start."""
    on_cpu: bool
    """True: the run uses no GPUs."""
    rank_env: Mapping[str, str]
    """The variables of the ranks."""
    commit: Commit | None
    """The project's commit, not the built-in job's. `None`: no git repository, or no commit yet."""

    @cached_property
    def sources(self) -> Sequence[str]:
        """Return the sources of the user's script and of its imports. Empty: no source is among the files to send."""
        if self.script.kind == "built-in":
            return ()
        return sources_of_script(self.script, self.tree, self.tree.root / self.folder)

    def with_words(self, request: TrainRequest) -> "Project":
        """Return the project with the options that the request has for the built-in job."""
        if not request.built_in:
            return self
        return replace(self, script=replace(self.script, args=request.job_words))


def project_of(app: App, request: TrainRequest, inventory: Inventory, machines: Sequence[Machine]) -> Project:
    """Read the request's files on this computer, without asking a machine. Raises Usage and file errors."""
    from remote.files.git import commit_of

    script, tree, destination, folder = _what_to_run(app, request, inventory)
    commit = None if request.built_in else commit_of(tree.root) or commit_of(request.folder)
    install = what_to_install(
        request,
        tree,
        machines,
        app.output.say,
        same_machine=inventory.provider == "local",
        commit=commit,
    )
    of_git = install.project.version_variables if install.project and install.project.version else {}
    return Project(
        script=script,
        tree=tree,
        destination=destination,
        folder=folder,
        install=install,
        mode=request.mode,
        max_nodes=request.max_nodes,
        on_cpu=request.on_cpu,
        # A script may ask for the version, too. Its own builds of other projects must not get that version.
        rank_env={**of_git, **request.rank_env},
        commit=commit,
    )


def check_files(app: App, request: TrainRequest, inventory: Inventory) -> None:
    """Raise what reading a script of the user's and its files raises."""
    if not request.built_in:
        _what_to_run(app, request, inventory)


def _what_to_run(app: App, request: TrainRequest, inventory: Inventory) -> "tuple[Script, Tree, str, str]":
    """Return the script, the files to send, the folder on the nodes that takes them, and the one in it to run in."""
    from remote.files.sync import code_folder
    from remote.files.tree import read_tree, root_of
    from remote.launchers.rank_command import (
        BUILT_IN_FOLDER,
        BUILT_IN_TRIAL,
        Script,
        built_in,
        built_in_tree,
        user_function,
        user_script,
    )

    if request.built_in:
        if request.include or request.root is not None:
            raise Usage(
                "--root and --include are for a script of yours; the built-in job brings its own code."
            )
        words = request.job_words
        check_built_in(words)
        if note := home_note(words, inventory.provider):
            app.output.say(note)
        script = built_in(words)
        if request.search is not None:
            script = Script(kind="function", target=BUILT_IN_TRIAL, args=words, search=request.search)
        return script, built_in_tree(), BUILT_IN_FOLDER, "."
    if request.project is not None and not request.project.is_dir():
        raise Usage(
            f"The earlier run's folder {request.project} is gone. In the folder that holds the script now, name it: "
            "gpuctl train --resume SCRIPT"
        )
    folder = request.folder
    root = root_of(folder) if request.root is None else request.root.resolve()
    if not folder.is_relative_to(root):
        raise Usage(f"{root}, the folder to send, does not hold {folder}, the folder of the script.")
    tree = read_tree(
        root, include=[folder / path for path in request.include], allow_large=request.allow_large
    )
    if request.search is None:
        script = user_script(request.words, request.module, tree, folder)
    else:
        script = replace(user_function(request.words[0], tree, folder), search=request.search)
    return script, tree, code_folder(root, owner_of(inventory)), folder.relative_to(root).as_posix()
