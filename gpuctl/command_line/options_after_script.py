"""Options of gpuctl that were typed after the script, so that the script gets them.

A script that passes over an option that it does not know would run on machines that nobody meant. So the script is
searched for the option's name before anything starts. The run's record keeps such options for the advice on a script
that then refuses them.
"""

import ast
import itertools
import re
import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from gpuctl.app import App
from gpuctl.command_line.options import TYPED
from gpuctl.errors import Usage
from gpuctl.option_table.bench_options import BenchSettings
from gpuctl.option_table.train_options import TrainSettings
from gpuctl.scripts.misplaced import corrected_line, either_spelling, option_name, without_secrets
from gpuctl.scripts.sources import sources_of
from gpuctl.text import dashed
from inventories.option import options_of
from inventories.text import nearest

if TYPE_CHECKING:
    from gpuctl.workflow.runs.request.request import TrainRequest

DISTINCTIVE = frozenset({"--cluster", "--dry-run"}) | {
    option.flag for option in options_of(TrainSettings, BenchSettings) if option.distinctive
}
"""Options whose names few scripts have. Others, such as --resume, are often options of a script's own library."""
MIN_LIKENESS = 0.85
"""Likeness, 0 .. 1, from which a word counts as a distinctive option that is misspelt."""
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
    options: Sequence[Sequence[str]]
    """gpuctl's options in `after`: the words of each, one item for each time that it was typed."""
    spelling: Callable[[str], str]
    """Returns gpuctl's name of one of these options."""

    @property
    def names(self) -> Sequence[str]:
        """The names of these options, as they were typed."""
        return list(dict.fromkeys(map(option_name, self.options)))

    @property
    def corrected(self) -> str:
        """The line with all options before the script."""
        command = [self.command, *self.before]
        return corrected_line(command, self.target, self.after, self.options, self.spelling)

    @property
    def confirmed(self) -> str:
        """The line that leaves the options to the script."""
        return shlex.join(["gpuctl", *self.command.split(), *self.before, "--", *self.target, *self.after])


def check_options(app: App, request: "TrainRequest", *, ignored: str = "") -> "TrainRequest":
    """Say which options of the current command after its script went to the script; return the request with them.

    Raises Usage for a distinctive option that the script does not know. Words after a typed `--` are the script's.
    `ignored`: an option that needs no note.
    """
    context = click.get_current_context()
    line, misspelt = _cut(context, request), _cut(context, request, spelling=_nearest)
    if line is None or misspelt is None or not (line.options or misspelt.options):
        return request
    from remote.files.tree import read_tree, root_of

    folder = request.folder
    root = root_of(folder) if request.root is None else request.root.resolve()
    tree = read_tree(root, include=[folder / path for path in request.include], allow_large=True)
    target = request.module or request.words[0]
    sources = sources_of(tree, folder, target, module=request.module is not None)
    _refuse_misspelt(misspelt, sources)
    if not line.options:
        return request
    unknown = [name for name in line.names if name != ignored and not _takes(sources, name)]
    if note := _note(line, unknown, ignored, is_sent=bool(sources)):
        app.output.say(note)
    from inventories.runs.run import Misplaced  # completion does without it

    misplaced = Misplaced(
        command=(line.command, *without_secrets(line.before)),
        options=tuple(map(tuple, line.options)),
        unknown=tuple(unknown),
    )
    return replace(request, misplaced=misplaced)


def refuse_after_function(request: "TrainRequest") -> None:
    """Raise Usage for words after the function of `gpuctl tune`, which gets none of them."""
    if request.built_in or not request.words[1:] or ":" not in request.words[0]:
        return
    function, words = request.words[0], shlex.join(request.words[1:])
    line = _cut(click.get_current_context(), request)
    if line is not None and line.options:
        raise Usage(
            f"{line.names[0]} stands after {function}, and a function gets no options. Put gpuctl's own "
            f"options first: {line.corrected}"
        )
    raise Usage(f"{function} gets no arguments: leave out {words}, and name what it gets with --param.")


def _refuse_misspelt(line: _Line, sources: Sequence[str]) -> None:
    """Raise Usage for an option that is nearly a distinctive one of gpuctl, and that the script does not know.

    A library that makes options of fields may have more options than the sources show.
    """
    if not sources or any(map(_OF_FIELDS.search, sources)):
        return
    unknown = [words for words in line.options if not _takes(sources, option_name(words))]
    if unknown:
        name = option_name(unknown[0])
        line = replace(line, options=unknown)
        raise Usage(
            f"{name} stands after {line.target[-1]}, which does not have that option. Did you mean gpuctl's "
            f"{_nearest(name)}? {line.corrected}\nIf the script takes the option, type: {line.confirmed}"
        )


def _nearest(option: str) -> str:
    """Return the distinctive option that a misspelt one is most like. Empty: it is like none, or is one."""
    name = dashed(option)
    near = nearest(name, DISTINCTIVE, limit=1, cutoff=MIN_LIKENESS) if name.startswith("--") else []
    return near[0] if near and near[0] != name else ""


def _note(line: _Line, unknown: Sequence[str], ignored: str, *, is_sent: bool) -> str:
    """Return the note on options that the script got, or an empty text. Raises Usage as `check_options` does.

    `unknown`: options that the script does not define, as far as its source is sent.
    """
    # A module that is not sent may take any option.
    if refused := [name for name in unknown if dashed(name) in (DISTINCTIVE if is_sent else DECISIVE)]:
        why = "which does not have that option" if is_sent else "whose source is not here"
        raise Usage(
            f"{refused[0]} stands after {line.target[-1]}, {why}. Put gpuctl's own options first: {line.corrected}\n"
            f"If the script takes the option, type: {line.confirmed}"
        )
    shown = unknown if is_sent else [name for name in unknown if dashed(name) in DISTINCTIVE]
    noted = [name for name in line.names if name in shown or (name != ignored and dashed(name) in DECISIVE)]
    if not noted:
        return ""
    went = "went to the script; gpuctl's own goes before it"
    return f"note: {' and '.join(noted)} after {line.target[-1]} {went}: {line.corrected}"


def _cut(
    context: click.Context, request: "TrainRequest", *, spelling: Callable[[str], str] = dashed
) -> _Line | None:
    """Return the typed line, cut. `None`: it has no script, or a typed `--` gives the words to it.

    `spelling`: the option of gpuctl that a typed name counts as.
    """
    typed, words = context.meta[TYPED], context.params["words"]
    before = typed[: len(typed) - len(words)]
    group = context.parent
    while group is not None:
        if cluster := group.params.get("cluster"):
            before = ("--cluster", cluster, *before)
        group = group.parent
    if request.built_in or not words or "--" in before:
        return None
    target, after = words[:1], words[1:]
    if request.module is not None:
        typed_together = before[-1] != request.module  # -mMODULE
        before, target, after = before[: -1 if typed_together else -2], ("-m", request.module), words
    elif not (
        (request.folder / words[0]).exists() or (request.folder / words[0].rpartition(":")[0]).is_file()
    ):
        return None  # another error
    taken = after[: after.index("--")] if "--" in after else after
    known = {
        name: param
        for param in context.command.params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
        if param.name != "module"  # many scripts have a -m
    }
    options: list[list[str]] = []
    ahead = iter(taken)
    for word in ahead:
        name, equals, _ = word.partition("=")
        if (param := known.get(spelling(name))) is not None:
            takes_next = not (param.is_flag or equals)
            options.append([word, *itertools.islice(ahead, takes_next)])
    return _Line(
        command=context.command_path.removeprefix("gpuctl "),
        before=before,
        target=target,
        after=after,
        options=options,
        spelling=spelling,
    )


def _takes(sources: Sequence[str], option: str) -> bool:
    """Return whether sources define the option: as a text `--name` or by a library that makes options of fields.

    A variable or a key of that name does not count.
    """
    if not option.startswith("--"):
        literal = re.compile(rf"['\"]{option}['\"]|\bgetopt\b|\bdocopt\b")
        return any(literal.search(text) or _OF_FIELDS.search(text) for text in sources)
    name = either_spelling(option.removeprefix("--"))
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
