"""Compares the arithmetic's memory of a row with torch's own count, where torch is installed on this computer."""

import subprocess
from collections.abc import Mapping
from typing import Any

from gpuctl.errors import Usage
from gpuctl.workflow.runs.request.ask_built_in import answer_in, ask_built_in, last_line

TIMEOUT_S = 120.0
"""Time limit of torch's count."""
TOLERANCE = 0.10


def compared(row: Mapping[str, Any], vocabulary: int) -> str:
    """Return a sentence on how the two counts of a row that fits agree, or why torch's is not there."""
    layout = {name: row[name] for name in ("count", "gpus", "micro_batch")} | {"vocabulary": vocabulary}
    try:
        done = ask_built_in("memory", row["words"], layout, TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"memory not checked: torch counted for longer than {TIMEOUT_S:.0f} s"
    except Usage as error:
        return f"memory not checked: torch can't count it ({error})"
    if done.returncode:
        return f"memory not checked: torch can't count it ({last_line(done)})"
    try:
        answer = answer_in(done.stdout, dict)
    except ValueError as error:
        return f"memory not checked: {error}"
    if "left_out" in answer:
        return f"memory not checked: {answer['left_out']}"
    return verdict(answer["arithmetic_gb"], answer["torch_gb"])


def verdict(arithmetic_gb: float, torch_gb: float) -> str:
    """Return a sentence on both counts."""
    difference = arithmetic_gb / torch_gb - 1
    counts = f"{arithmetic_gb:.2f} GB by arithmetic, {torch_gb:.2f} GB by torch's tracker"
    if abs(difference) <= TOLERANCE:
        return f"memory checked on a few blocks: {counts}"
    return (
        f"warning: the memory is uncertain: on a few blocks it is {counts} ({difference:+.0%}). Leave room, or try "
        "with gpuctl bench"
    )
