"""Options of gpuctl that were typed after the script, so that the script gets them.

A script that passes over an option that it does not know would run on machines that nobody meant. So the script is
searched for the option's name before anything starts.
"""

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuctl.errors import Usage
from gpuctl.options import TYPED

if TYPE_CHECKING:
    from gpuctl.workflow.training.request import TrainRequest

DISTINCTIVE = frozenset({
    "--bring", "--cluster", "--detach", "--dry-run", "--forecast", "--hang-after", "--layouts", "--max-restarts",
    "--nnodes", "--no-install-project", "--nproc-per-node", "--on-hang", "--repeats", "--resume-from",
    "--share-outputs", "--skip-preflight", "--stop-grace",
})  # fmt: skip
"""Options whose names few scripts have. A script may well take the others by its library, such as --resume."""
MAX_SOURCE_BYTES = 1000 * 1000

_IMPORT = re.compile(r"^[ \t]*(?:from|import)\b[^\n(]*(?:\([^)]*\))?", re.MULTILINE)


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
    source = _source(request)
    unknown = [name for name in options if source is not None and not _takes(source, name)]
    if refused := [name for name in unknown if name in DISTINCTIVE]:
        raise Usage(
            f"{refused[0]} stands after {line.target[-1]}, which would get it and does not mention it. gpuctl's own "
            f"goes before it: {line.corrected} ; if it is the script's, put -- before: {line.confirmed}"
        )
    noted = unknown if source is not None else [name for name in options if name in DISTINCTIVE]
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


def _source(request: "TrainRequest") -> str | None:
    """Return the source of the script and of all that it imports of the project. Raises SyncRefused.

    Returns: None where the script is not among the files that are sent, as a module that is installed there.
    """
    from remote.files.tree import read_tree, root_of, without_links_above

    folder = request.folder
    root = root_of(folder) if request.root is None else request.root.resolve()
    tree = read_tree(root, include=[folder / path for path in request.include], allow_large=True)
    path = without_links_above(
        folder / (request.words[0] if request.module is None else request.module.replace(".", "/"))
    )
    ahead = {
        root / name
        for name, entry in tree.entries.items()
        if len(entry) > 1 and entry[0] <= MAX_SOURCE_BYTES and (name.endswith(".py") or root / name == path)
    }
    reached = {path, Path(f"{path}.py"), path / "__main__.py"} & ahead
    sources = []
    while reached:
        ahead -= reached
        text = "\n".join(file.read_text(errors="replace") for file in reached)
        sources.append(text)
        names = {name for line in _IMPORT.findall(text) for name in re.findall(r"\w+", line)}
        reached = {
            file for file in ahead if (file.parent.name if file.stem == "__init__" else file.stem) in names
        }
    return "\n".join(sources) if sources else None


def _takes(source: str, option: str) -> bool:
    """Return whether a source names the option: for argparse and the like, as a field, a parameter or a variable.

    A method of that name, as in `loss.detach()`, does not count.
    """
    name = option.removeprefix("--").replace("-", "[-_]")
    return bool(re.search(rf"--{name}|['\"]{name}\b|(?<![.\w]){name}\s*[:=]", source))
