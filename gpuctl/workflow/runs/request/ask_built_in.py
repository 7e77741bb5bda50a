"""Questions to the built-in job (`train.ask`), in a separate process, as gpuctl imports nothing of `train`."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from gpuctl.errors import Usage

Question: TypeAlias = Literal["advice", "check", "division", "keys", "memory", "refusals"]
Kind = TypeVar("Kind", list[Any], dict[str, Any])


def ask_built_in(
    question: Question, words: Sequence[str], details: object = None, timeout_s: float | None = None
) -> "subprocess.CompletedProcess[str]":
    """Ask the built-in job about its options. Raises Usage for options that it refuses.

    `details`: of the question, as `train.ask` describes them.
    """
    from remote.launchers.rank_command import built_in_tree

    done = subprocess.run(
        [sys.executable, "-m", "train.ask", question, *words],
        cwd=built_in_tree().root,
        input=json.dumps(details),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env={name: value for name, value in os.environ.items() if name != "RANK"},
    )
    if done.returncode == 2 and (lines := done.stderr.strip().splitlines()):
        raise Usage(lines[-1].removeprefix("error: ").replace("python -m train", "gpuctl train --"))
    return done


def last_line(done: "subprocess.CompletedProcess[str]") -> str:
    """Return the last line of the errors of a process, or its exit status."""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"it ended with status {done.returncode}"


def answer_in(printed: str, kind: type[Kind]) -> Kind:
    """Return the answer of a child process: JSON in its last line, as libraries may print before it.

    Raises ValueError for another line.
    """
    last = printed.strip().rpartition("\n")[2]
    with contextlib.suppress(json.JSONDecodeError):
        answer = json.loads(last)
        if isinstance(answer, kind):
            return answer
    shown = f'"{last}"' if last else "nothing"
    raise ValueError(f"what was printed last is no answer: {shown}")
