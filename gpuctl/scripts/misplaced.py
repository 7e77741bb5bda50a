"""Options of gpuctl that a script got and refused: the command line that gives them to gpuctl."""

import re
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpuctl.text import clean, dashed
from remote.shared.addresses import without_logins

if TYPE_CHECKING:
    from inventories.runs.result import FirstError
    from inventories.runs.run import Run


def how_to_move(run: "Run", error: "FirstError") -> str:
    """Return the line that gives gpuctl the options that the script refused. Empty: it refused no such option."""
    misplaced = run.options and run.options.misplaced
    if not misplaced:
        return ""
    names = list(dict.fromkeys(map(option_name, misplaced.options)))
    refused = [name for name in names if is_named(error, name)]
    if error.detail.lower().startswith("usage:"):  # docopt prints no other line
        refused = list(misplaced.unknown)
    if not refused:
        return ""
    moved = [words for words in misplaced.options if option_name(words) in {*refused, *misplaced.unknown}]
    line = clean(corrected_line(misplaced.command, run.script_words, run.args, moved), 10_000)
    return f"The script got {' and '.join(refused)}. gpuctl's own options go before the script: {line}"


def option_name(option: Sequence[str]) -> str:
    """Return the name of an option, as it was typed."""
    return option[0].partition("=")[0]


def is_named(error: "FirstError", option: str) -> bool:
    """Return whether an error names an option as it was typed, or a refusal of arguments without its dashes."""
    from inventories.runs.end_reasons import Cause

    words = error.detail or error.message
    bare = (
        "-{0,2}" + either_spelling(option.lstrip("-"))
        if error.cause is Cause.ARGUMENTS
        else re.escape(option)
    )
    return bool(re.search(rf"(?<![\w-]){bare}(?![\w-])", words))


def corrected_line(
    command: Sequence[str],
    target: Sequence[str],
    after: Sequence[str],
    options: Sequence[Sequence[str]],
    spelling: Callable[[str], str] = dashed,
) -> str:
    """Return the line with these options moved from behind the script to its front, in gpuctl's spelling."""
    rest, moved = list(after), []
    for words in options:
        starts = (at for at in range(len(rest)) if rest[at : at + len(words)] == list(words))
        at = next(starts, len(rest))
        del rest[at : at + len(words)]
        name, equals, value = words[0].partition("=")
        moved += [spelling(name) + equals + value, *words[1:]]
    return shlex.join(["gpuctl", *command[0].split(), *moved, *command[1:], *target, *rest])


def without_secrets(words: Sequence[str]) -> list[str]:
    """Return options without secrets: values of variables, targets of notifications, and logins in addresses.

    `--env KEY` takes its value from here.
    """
    return [_without_secret(before, word) for before, word in zip(["", *words], words, strict=False)]


def _without_secret(before: str, word: str) -> str:
    if before == "--env":
        return word.partition("=")[0]
    if before == "--notify":
        return "TARGET"
    word = re.sub("^--notify=.*", "--notify=TARGET", without_logins(word), flags=re.DOTALL)
    return re.sub(r"^(--env=[^=]*)=.*", r"\1", word, flags=re.DOTALL)


def either_spelling(name: str) -> str:
    """Return the expression for an option's name with dashes or underscores."""
    return re.sub("[-_]", "[-_]", name)
