"""Asks the built-in job's own modules, in a process of its own: gpuctl imports nothing of them."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

Kind = TypeVar("Kind", list[Any], dict[str, Any])


def ask_built_in(
    code: str, words: Sequence[str], given: str = "", timeout_s: float | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run Python with the built-in job's modules, which this package does not import. `given`: its input."""
    from remote.launchers.rank_command import built_in_tree

    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=built_in_tree().root,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env={name: value for name, value in os.environ.items() if name != "RANK"},
    )


def refusal_of(done: "subprocess.CompletedProcess[str]") -> str | None:
    """Return what the built-in job says of options that it refuses. `None`: it takes them."""
    said = done.stderr.strip().splitlines()
    if done.returncode != 2 or not said:
        return None
    return said[-1].removeprefix("error: ").replace("python -m train", "gpuctl train --")


def answer_in(printed: str, kind: type[Kind]) -> Kind:
    """Return what a child process answers: JSON in its last line, as libraries may print before it.

    Raises ValueError where that line is no such answer.
    """
    last = printed.strip().rpartition("\n")[2]
    with contextlib.suppress(json.JSONDecodeError):
        found = json.loads(last)
        if isinstance(found, kind):
            return found
    said = f'"{last}"' if last else "nothing"
    raise ValueError(f"what was printed last is no answer: {said}")
