"""Dumps of torch's flight recorder after a timeout of NCCL's. The files come from the nodes, and are pickles.

They are read in a process of their own with limited CPU time for each, and limited memory: a few bytes can keep
a pickle's reader busy for ever, and nothing in Python can interrupt it.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remote.shared import flight_recorder

READ_CPU_S = 10.0
"""For one file: the largest takes some seconds."""
READ_S = 120.0
"""For one file on a machine that has no time for it."""


def read_files(paths: Mapping[int, Path], *, cpu_s: float = READ_CPU_S) -> dict[int, list[dict[str, Any]]]:
    """Return the last collectives in each file, by its rank; what can't be read, or takes too long, is left out."""
    dumps = {}
    left = {rank: path for rank, path in paths.items() if path.exists()}
    while left:
        lines = _read(list(left.values()), cpu_s)
        for rank, line in zip(left, lines, strict=False):
            if (entries := json.loads(line)) is not None:
                dumps[rank] = entries
        # The reader ended at the file after its last output.
        left = dict(list(left.items())[len(lines) + 1 :])
    return dumps


def _read(paths: list[Path], cpu_s: float) -> list[bytes]:
    """The lines of a process that reads files one after the other, until one takes it too long."""
    command = [sys.executable, "-I", flight_recorder.__file__, str(cpu_s), *map(str, paths)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=READ_S * len(paths), check=False
        ).stdout
    except subprocess.TimeoutExpired as error:
        done = error.stdout or b""
    return done.split(b"\n")[:-1]
