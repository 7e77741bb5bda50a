"""The program of a run, a user's or the built-in job; the command of one rank, and its environment on a node."""

import ast
import os
import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any, Literal

from inventories.text import did_you_mean
from remote.errors import ScriptNotFound, ScriptNotSynced
from remote.files.tree import Tree, tree_of, without_links_above
from remote.python_env.groups import project_file
from remote.python_env.project_files import read_toml
from remote.shared.constants import (
    CODE,
    NODE_FOLDER,
)

BUILT_IN_TRIAL = "train.on_ray.trial:trial"
BUILT_IN_FOLDER = f"~/{NODE_FOLDER}/{CODE}/built-in"
TYPED_LAUNCHERS = (
    "python",
    "python3",
    "torchrun",
    "accelerate",
    "deepspeed",
    "mpirun",
    "srun",
    "nohup",
    "bash",
    "sh",
)
ENVIRONMENT_PROGRAMS = ("uv", "poetry", "pdm", "pipenv", "pixi", "hatch", "conda")
"""Programs that run the rest of the line in an environment."""
SHELL_ENDINGS = (".sh", ".bash", ".zsh")
NOTEBOOK_ENDING = ".ipynb"


@dataclass(frozen=True, kw_only=True)
class Script:
    """The program of each rank."""

    kind: Literal["file", "module", "built-in", "function"]
    target: str
    """Path relative to the folder in which it runs, or module name, or `module:name` of a function."""
    args: tuple[str, ...] = ()
    search: Mapping[str, Any] | None = None
    """Ray Tune's search with the function; only for functions."""

    @property
    def title(self) -> str:
        """The script as results name it."""
        return {
            "file": self.target,
            "module": f"-m {self.target}",
            "built-in": "built-in",
            "function": f"tune {'built-in' if self.target == BUILT_IN_TRIAL else self.target}",
        }[self.kind]

    def command(self, python: str) -> list[str]:
        """A rank's command, run in the script's working folder on the node."""
        target = [self.target] if self.kind == "file" else ["-m", self.target]
        # -u: a rank's output is visible when it is printed.
        return [python, "-u", *target, *self.args]


def built_in(args: tuple[str, ...]) -> Script:
    """The built-in job, `train/`."""
    return Script(kind="built-in", target="train", args=args)


def built_in_tree() -> Tree:
    """The files of the built-in job. It is found next to this package and never imported here."""
    return tree_of(Path(__file__).parents[2], "train/**/*.py")


def user_function(word: str, tree: Tree, folder: Path | None = None) -> Script:
    """The function that a person named as `script.py:function`, checked as `user_script` checks a script.

    Raises as it does, and ScriptNotSynced where the script has no such name.
    """
    name, function = name_of_function(word)
    folder = Path.cwd() if folder is None else folder
    path = user_script((name,), None, tree, folder).target
    if path.startswith("../"):
        raise ScriptNotSynced(
            f"{name} is above the current folder; run the command in the script's own folder."
        )
    parts = path.removesuffix(".py").split("/")
    if not all(part.isidentifier() for part in parts):
        raise ScriptNotSynced(
            f"{path} can't be imported: its name is no module's. Rename it, with letters and _."
        )
    names = _names_in((folder / path).read_bytes())
    if names is not None and function not in names:
        raise ScriptNotSynced(f"{path} has no {function}{did_you_mean(function, names) or '.'}")
    return Script(kind="function", target=f"{'.'.join(parts)}:{function}")


def name_of_function(word: str) -> tuple[str, str]:
    """Return the script and the name of `script.py:function`. Raises ScriptNotSynced for another form."""
    name, colon, function = word.rpartition(":")
    if colon and function.isidentifier() and name.endswith(".py"):
        return name, function
    script = shlex.quote(word if word.endswith(".py") else "my.py")
    raise ScriptNotSynced(
        f"{word!r} names no function, and a search calls one for each trial: gpuctl tune … {script}:FUNCTION"
    )


def _names_in(source: bytes) -> set[str] | None:
    """The names that a script gives to anything, wherever in it.

    `None`: not known, as with `import *`, names that are made as it runs, or a newer Python's syntax.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    imports = (node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    defined = {
        node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    named = [node for node in nodes if isinstance(node, ast.Name)]
    assigned = {node.id for node in named if isinstance(node.ctx, ast.Store)}
    names = imported | defined | assigned
    unknown = {"*", "__getattr__"} & names or "globals" in {node.id for node in named}
    return None if unknown else names


def user_script(words: tuple[str, ...], module: str | None, tree: Tree, folder: Path | None = None) -> Script:
    """The script or module that a person named, checked against the sent files.

    `folder`: where it runs, a folder of the tree; `None`: the current one. Raises ScriptNotFound where it is missing,
    ScriptNotSynced where it is ignored, or outside the tree.
    """
    folder = Path.cwd() if folder is None else folder
    if module is not None:
        _check_module(module, tree, folder)
        return Script(kind="module", target=module, args=words)
    path = Path(words[0])
    absolute = without_links_above(Path.cwd() / path)
    if not absolute.exists():
        hint = f" Did you mean {near}?" if (near := _nearest(path, tree)) else ""
        if str(path) in (*TYPED_LAUNCHERS, *ENVIRONMENT_PROGRAMS):
            scripts = (at for at, word in enumerate(words) if word.endswith(".py") and Path(word).exists())
            rest = f": {shlex.join(words[at:])}" if (at := next(scripts, 0)) else "."
            hint = f" gpuctl starts the ranks itself: leave `{path}` and its options out, and begin with the script"
            hint += rest
        elif command := _command_of_project(str(path), tree, folder):
            hint = (
                f" The project's command of that name calls {command}. If the module calls it when it is run, write: "
                f"gpuctl train -m {shlex.quote(command.partition(':')[0].strip())}"
            )
        raise ScriptNotFound(f"There is no script {path}.{hint}")
    if absolute.is_dir() and not (absolute / "__main__.py").exists():
        raise ScriptNotSynced(
            f"{path} is a folder without a __main__.py; name the script in it, or run a module of it with -m."
        )
    if not absolute.is_relative_to(tree.root):
        raise ScriptNotSynced(
            f"{path} is outside {tree.root}, the folder that is sent to the nodes. "
            f"Run the command in the script's project: cd {shlex.quote(str(absolute.parent))}"
        )
    started = absolute / "__main__.py" if absolute.is_dir() else absolute
    name = started.relative_to(tree.root).as_posix()
    if name not in tree.entries:
        raise ScriptNotSynced(_not_sent(name, path, tree))
    if absolute.suffix == NOTEBOOK_ENDING:
        # `--to script` names the script .txt where the notebook does not say which language it is in.
        script = shlex.quote(str(path.with_suffix(".py")))
        raise ScriptNotSynced(
            f"{path} is a notebook, and the ranks are started with Python. Make a script of it, and run that: "
            f"jupyter nbconvert --to python {shlex.quote(str(path))} && gpuctl train {script}"
        )
    if kind := _no_python(started):
        raise ScriptNotSynced(
            f"{path} is {kind}, and the ranks are started with Python. Name the Python script that it is for."
        )
    return Script(kind="file", target=Path(os.path.relpath(absolute, folder)).as_posix(), args=words[1:])


def _not_sent(name: str, path: Path, tree: Tree) -> str:
    """Return why an existing script is not among the sent files, and the fix."""
    if why := tree.why_skipped(name):
        return f"{name} is not sent to the nodes: {why}."
    return f"{name} is not sent to the nodes, because git ignores it. Send it too: --include {shlex.quote(str(path))}"


def _nearest(path: Path, tree: Tree) -> str:
    """Return the sent file whose name is most like that of `path`, as it would be typed here; empty without one."""
    typed = os.path.normpath(path)
    paths = [os.path.relpath(tree.root / entry) for entry in tree.entries]
    if path.suffix:  # which alone makes any two short names alike
        paths = [name for name in paths if name.endswith(path.suffix)]
    stems = get_close_matches(path.stem, [Path(name).stem for name in paths], n=1)
    alike = [name for name in paths if stems and Path(name).stem == stems[0]]
    return max(alike, key=lambda name: SequenceMatcher(a=typed, b=name).ratio(), default="")


def _no_python(path: Path) -> str:
    """Return the kind of a file that Python can't run; empty for source, byte code, or an executable archive."""
    with path.open("rb") as file:
        head = file.read(4096)
    first = head.split(b"\n")[0]
    if first.startswith(b"#!") and b"python" not in first and path.suffix not in (".py", ".pyw"):
        return f"a script for {first[2:].decode(errors='replace').strip()}"
    if path.suffix in SHELL_ENDINGS:
        return "a shell script"
    if b"\0" in head and path.suffix != ".pyc":
        from zipfile import is_zipfile

        return "" if is_zipfile(path) else "a binary file"
    return ""


def _command_of_project(name: str, tree: Tree, folder: Path) -> str:
    """Return `module:function` of a command that the nearest pyproject.toml defines.

    Empty: it defines no such command.
    """
    scripts = read_toml(project_file(folder, tree.root)).get("project", {}).get("scripts", {})
    return str(scripts.get(name, ""))


def _check_module(module: str, tree: Tree, folder: Path) -> None:
    """A module of the folder must be among the files sent; any other is looked for on the nodes."""
    if module.endswith(".py") and (folder / module).is_file():
        name = os.path.normpath(module).removesuffix(".py").replace("/", ".")
        raise ScriptNotSynced(f"After -m comes the name of a module, not of its file: -m {shlex.quote(name)}")
    parts = module.split(".")
    # A name with a dash is good: no import statement can have it, but Python's -m finds the module.
    if not all(parts) or "/" in module:
        raise ScriptNotSynced(
            f"{module!r} is not a module's name; after -m comes a name such as package.module."
        )
    top = folder / parts[0]
    if not (top.is_dir() or top.with_suffix(".py").exists()):
        return
    path = folder.joinpath(*parts).relative_to(tree.root).as_posix()
    if not {f"{path}.py", f"{path}/__main__.py"} & set(tree.entries):
        raise ScriptNotSynced(
            f"The module {module} is not among the files sent to the nodes: neither {path}.py nor "
            f"{path}/__main__.py is there (files that git ignores are left out, unless --include names them)."
        )
