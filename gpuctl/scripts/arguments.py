"""The arguments of a script, as its own parser may read them: options with their values, and other words."""

import re
import shlex
from collections.abc import Iterator, Sequence

from gpuctl.text import clean
from remote.shared.secret_arguments import without_secrets

_NUMBER = re.compile(r"-\.?\d|-(?:inf(?:inity)?|nan)$", re.IGNORECASE)


def typed_line(script: str, args: Sequence[str]) -> str:
    """Return `train.py --lr 0.1`: a script and its arguments as they would be typed, without secrets."""
    return clean(" ".join([script, shlex.join(without_secrets(args))]).rstrip(), 10_000)


def is_option(word: str) -> bool:
    """Return whether a word is an option: `--lr`, `-x`, and neither `-.5`, `-inf` nor `-`."""
    return word.startswith("-") and word != "-" and not _NUMBER.match(word)


def option_groups(words: Sequence[str]) -> list[list[str]]:
    """Return the arguments in groups: each option with the words that follow it, and other words alone."""
    groups: list[list[str]] = []
    for word in words:
        if is_option(word) or not groups or not is_option(groups[-1][0]):
            groups.append([])
        groups[-1].append(word)
    return groups


def named_values(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the value of each argument: `--lr 0.1`, `--lr=0.1` and `lr=0.1` have the same.

    Yields `None` for an option in front of its values, or without any, and an empty name for a word of no option.
    """
    for first, *values in option_groups(words):
        name, equals, value = first.lstrip("-").partition("=")
        if is_option(first):
            yield name, value if equals else None
        else:
            name, values = "", [first]
        for word in values:
            key, equals, value = word.partition("=")
            key = key.lstrip("+")
            is_assigned = equals and key.replace(".", "_").isidentifier()
            yield (key, value) if is_assigned else (name, word)
