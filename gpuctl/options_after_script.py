"""Options of gpuctl that were typed after the script, so that the script gets them.

A script that passes over an option that it does not know would run on machines that nobody meant. So the script is
searched for the option's name before anything starts.
"""

import ast
import itertools
import re
import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from gpuctl.errors import Usage
from gpuctl.options import TYPED
from gpuctl.script_sources import sources_of

if TYPE_CHECKING:
    from gpuctl.workflow.training.request import TrainRequest

DISTINCTIVE = frozenset({
    "--bring", "--cluster", "--detach", "--dry-run", "--forecast", "--hang-after", "--layouts", "--max-restarts",
    "--nnodes", "--no-install-project", "--nproc-per-node", "--on-hang", "--repeats", "--resume-from",
    "--share-outputs", "--skip-preflight", "--stop-grace",
})  # fmt: skip
"""Options whose names few scripts have. A script may well take the others by its library, such as --resume."""
DECISIVE = frozenset({"--cluster", "--dry-run"})
"""Options whose loss starts a run in another cluster, or a real run: a note always says that the script gets them."""

_OF_FIELDS = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+(?:tyro|typer|fire|simple_parsing|jsonargparse|pydantic_settings|pyrallis|draccus"
    r"|chz|cyclopts|defopt)\b|\b(?:HfArgumentParser|TrlParser|LightningCLI)\b",
    re.MULTILINE,
)
"""Libraries that make options of the fields of classes or of the parameters of functions."""


@dataclass(frozen=True, kw_only=True)
class _Line:
    """A typed command line, cut at its script."""

    command: str
    before: Sequence[str]
    """Options of gpuctl."""
    target: Sequence[str]
    """The script, or `-m MODULE`."""
    after: Sequence[str]
    """All words after the script."""
    options: Mapping[str, Sequence[str]]
    """Of these, name → words of each option of gpuctl."""
    rest: Sequence[str]
    """Of these, all others."""

    @property
    def corrected(self) -> str:
        """The line with all options before the script."""
        moved = [word for words in self.options.values() for word in words]
        return f"{self.command} {shlex.join([*moved, *self.before, *self.target, *self.rest])}"

    @property
    def confirmed(self) -> str:
        """The line that leaves the options to the script."""
        return f"{self.command} {shlex.join([*self.before, '--', *self.target, *self.after])}"


def note_on_options(request: "TrainRequest", *, ignored: str = "") -> str:
    """Return the note on options of the current command after its script; empty: none needs one.

    Raises Usage for a distinctive option that the script does not know. Words after a typed `--` are the script's.
    `ignored`: an option that needs no note.
    """
    line = _cut(click.get_current_context(), request)
    options = {} if line is None else {name for name in line.options if name != ignored}
    if line is None or not options:
        return ""
    sources = _sources(request)
    unknown = [name for name in options if not _takes(sources, name)]
    # A module that is not sent may take any option.
    if refused := [name for name in unknown if name in (DISTINCTIVE if sources else DECISIVE)]:
        why = "which does not have that option" if sources else "whose source is not here"
        raise Usage(
            f"{refused[0]} stands after {line.target[-1]}, {why}. Put gpuctl's own options first: {line.corrected}\n"
            f"If the script takes the option, type: {line.confirmed}"
        )
    shown = unknown if sources else [name for name in unknown if name in DISTINCTIVE]
    noted = [name for name in options if name in shown or name in DECISIVE]
    if not noted:
        return ""
    went = "went to the script; gpuctl's own goes before it"
    return f"note: {' and '.join(noted)} after {line.target[-1]} {went}: {line.corrected}"


def _cut(context: click.Context, request: "TrainRequest") -> _Line | None:
    """Return the typed line, cut. None: no script was typed, or a `--` says whose the words after it are."""
    typed, words = context.meta[TYPED], context.params["words"]
    before = typed[: len(typed) - len(words)]
    if request.built_in or not words or "--" in before:
        return None
    target, after = words[:1], words[1:]
    if request.module is not None:
        typed_together = before[-1] != request.module  # -mMODULE
        before, target, after = before[: -1 if typed_together else -2], ("-m", request.module), words
    taken = after[: after.index("--")] if "--" in after else after
    known = {
        name: param
        for param in context.command.params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
        if name.startswith("--")
    }
    options: dict[str, list[str]] = {}
    rest: list[str] = []
    ahead = iter(taken)
    for word in ahead:
        name, equals, _ = word.partition("=")
        if name not in known:
            rest.append(word)
            continue
        takes_next = not (known[name].is_flag or equals)
        options.setdefault(name, []).extend([word, *itertools.islice(ahead, takes_next)])
    return _Line(
        command=context.command_path,
        before=before,
        target=target,
        after=after,
        options=options,
        rest=[*rest, *after[len(taken) :]],
    )


def _sources(request: "TrainRequest") -> list[str]:
    """Return the sources of the script and of all that it imports of the project. Raises SyncRefused.

    Empty: the script is not among the files that are sent, as a module that is installed on the nodes.
    """
    from remote.files.tree import read_tree, root_of

    folder = request.folder
    root = root_of(folder) if request.root is None else request.root.resolve()
    tree = read_tree(root, include=[folder / path for path in request.include], allow_large=True)
    target = request.module or request.words[0]
    return sources_of(tree, folder, target, module=request.module is not None)


def _takes(sources: Sequence[str], option: str) -> bool:
    """Return whether sources define the option: as a text `--name` or by a library that makes options of fields.

    A variable or a key of that name does not count.
    """
    name = option.removeprefix("--").replace("-", "[-_]")
    # argparse takes the beginning of an option's name, too.
    literal = re.compile(rf"['\"]--{name}|\bDEFINE_\w+\(\s*['\"]{name}['\"]")
    described = re.compile(rf"--{name}\b")
    if any(literal.search(text) or ("docopt" in text and described.search(text)) for text in sources):
        return True
    field = re.compile(name)
    by_fields = any(_OF_FIELDS.search(text) for text in sources)
    return by_fields and any(field.fullmatch(known) for text in sources for known in _fields(text))


def _fields(source: str) -> set[str]:
    """Return the names of a source's fields of classes and parameters of functions; empty for unreadable sources."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return set()
    members = (part for node in nodes if isinstance(node, ast.ClassDef) for part in node.body)
    fields = {
        part.target.id
        for part in members
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    return fields | {node.arg for node in nodes if isinstance(node, ast.arg)}
