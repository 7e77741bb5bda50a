"""Steps of a spec that each new machine runs once, before its first run: shell lines and tasks of a fabfile."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inventories.text import shown

Kind = Literal["run", "fab"]
NO_STEP = "it should be a shell line, in quotes where it has ': ', or fab: TASK ARGS, without quotes."
_QUOTED = re.compile(r"(run|fab):\s")


@dataclass(frozen=True, kw_only=True)
class SetupStep:
    """A step of the setup."""

    kind: Kind
    """`run`: a shell line; `fab`: tasks of a fabfile with their arguments."""
    text: str
    folder: str | None = None
    """Folder of the fabfile, or a folder below it. Default: the current folder."""

    def __str__(self) -> str:
        """Show it in one line."""
        first, *more = self.text.splitlines()
        return ("gpuctl fab " if self.kind == "fab" else "") + first + (" …" if more else "")


def digest(steps: Sequence[SetupStep]) -> str:
    """Return a hash of steps, which changes with any of them."""
    import hashlib  # not for the options of a command
    import json

    return hashlib.sha256(json.dumps([[step.kind, step.text] for step in steps]).encode()).hexdigest()


def read_setup(
    value: object, problem: Callable[[tuple[int, ...], str], None], folder: Path
) -> tuple[SetupStep, ...]:
    """Read the list under `setup` of a spec. `problem` gets the place of each mistake, and a sentence.

    `folder`: the spec's, which holds its fabfile.
    """
    if not isinstance(value, list):
        problem((), f"{shown(value)} can't be used: it should be a list of shell lines, each after '- '.")
        return ()
    steps = []
    for at, item in enumerate(value):
        step = _read(item, folder)
        if isinstance(step, str):
            problem((at,), step)
        else:
            steps.append(step)
    return tuple(steps)


def _read(item: object, folder: Path) -> SetupStep | str:
    """Return the step of an item, or the sentence on its mistake."""
    kind: Kind = "run"
    text = item
    if isinstance(item, dict):
        if list(item) not in (["run"], ["fab"]):
            return f"{shown(item)} can't be used: {NO_STEP}"
        kind = "fab" if "fab" in item else "run"
        text = item[kind]
    elif isinstance(item, str) and (quoted := _QUOTED.match(item)):
        return f"{shown(item)} can't be used: write it without quotes, as in - {quoted[1]}: …"
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        return f"{shown(text)} can't be used: it should be text; put it in quotes if it is."
    if kind == "fab" and (wrong := _not_words(text)):
        return f"{shown(text)} can't be used: {wrong}."
    return SetupStep(kind=kind, text=text.strip(), folder=str(folder) if kind == "fab" else None)


def _not_words(text: str) -> str | None:
    """Return why a shell can't split a text into words. `None`: a shell can."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        return str(error).lower()
    return "it should begin with the name of a task" if not words or words[0].startswith("-") else None
