"""Read a request once, before anything is started: its script, the files to send, its packages and arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from gpuctl.errors import Usage
from gpuctl.scripts.sources import Sources, read_sources
from gpuctl.workflow.machines.host_firewalls import owner_of
from gpuctl.workflow.runs.request.argument_paths import notes_on_paths
from gpuctl.workflow.runs.request.request import TrainRequest, check_built_in, home_note
from gpuctl.workflow.runs.request.what_to_install import Packages, read_packages
from inventories.machine import Inventory
from inventories.runs.commit import Commit
from remote.launchers import DEFAULT

if TYPE_CHECKING:
    from remote.files.tree import Tree
    from remote.launchers.rank_command import Script


@dataclass(frozen=True, kw_only=True)
class Launchable:
    """A request that was read and checked on this computer; no machine is asked for it."""

    request: TrainRequest
    script: "Script"
    tree: "Tree"
    """The files to send."""
    folder: str
    """The script's folder in it: `.`, `sub/folder`."""
    sources: Sources
    """Of the user's script."""
    packages: Packages
    commit: Commit | None
    """The project's commit, not the built-in job's. `None`: no git repository, or no commit yet."""
    by_content: bool = False
    """Whether the files get a folder on the nodes for this content alone, which no later run changes."""
    is_of_sweep: bool = False
    """Whether it was queued together with others: one notice then stands for all that succeed."""

    @property
    def rank_env(self) -> Mapping[str, str]:
        """Return the variables of the ranks."""
        project = self.packages.project
        of_git = project.version_variables if project and project.version else {}
        # A script may ask for the version, too. Its own builds of other projects must not get that version.
        return {**of_git, **self.request.rank_env}

    def destination(self, inventory: Inventory) -> str:
        """Return the folder on a node that receives the files."""
        from remote.files.sync import code_folder
        from remote.launchers.rank_command import BUILT_IN_FOLDER

        folder = (
            BUILT_IN_FOLDER if self.request.built_in else code_folder(self.tree.root, owner_of(inventory))
        )
        return f"{folder}-{sha256(self.tree.packed).hexdigest()[:8]}" if self.by_content else folder

    def notes(self, inventory: Inventory, nodes: int) -> Sequence[str]:
        """Return the notes on arguments that are no paths of the cluster's machines, and on work that is done twice.

        `nodes`: their number in the run.
        """
        request = self.request
        if request.built_in:
            return [note] if (note := home_note(request.job_words, inventory.provider)) else []
        if request.search is not None:
            return []
        local = inventory.provider == "local"
        notes = notes_on_paths(self.script.args, request.folder, self.tree.root, local=local)
        if nodes > 1 and request.mode == DEFAULT and self.sources.shares_nothing:
            note = f"note: {self.script.title} runs as a whole on each of {nodes} nodes; --nnodes 1 runs it on one"
            return [*notes, note]
        return notes

    def with_words(self, words: Sequence[str]) -> "Launchable":
        """Return the launchable with more arguments of the script, or options of the built-in job."""
        request = replace(self.request, words=(*self.request.words, *words))
        if request.built_in:
            check_built_in(request.job_words)
            return self.with_request(request)
        script = replace(self.script, args=(*self.script.args, *words))
        return replace(self, request=request, script=script)

    def with_request(self, request: TrainRequest) -> "Launchable":
        """Return the launchable with a request that differs in the options of the built-in job alone."""
        return replace(self, request=request, script=replace(self.script, args=request.job_words))


def read(request: TrainRequest) -> Launchable:
    """Read the request's files and check its arguments, without asking a machine. Raises Usage and file errors."""
    from remote.files.git import commit_of

    script, tree, folder = _what_to_run(request)
    commit = None
    if not request.built_in:
        commit = next(filter(None, map(commit_of, dict.fromkeys((tree.root, request.folder)))), None)
    return Launchable(
        request=request,
        script=script,
        tree=tree,
        folder=folder,
        sources=Sources() if script.kind == "built-in" else read_sources(script, tree, tree.root / folder),
        packages=read_packages(request, tree, commit),
        commit=commit,
    )


def _what_to_run(request: TrainRequest) -> "tuple[Script, Tree, str]":
    """Return the script, the files to send, and the folder in them to run in."""
    from remote.files.tree import read_tree, root_of
    from remote.launchers.rank_command import (
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
        script = built_in(words)
        if request.search is not None:
            script = Script(kind="function", target=BUILT_IN_TRIAL, args=words, search=request.search)
        return script, built_in_tree(), "."
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
    return script, tree, folder.relative_to(root).as_posix()
