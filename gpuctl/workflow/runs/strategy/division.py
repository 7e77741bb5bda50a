"""The division of the built-in job's network among the ranks, for a dry run, by the job's own functions."""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuctl.workflow.runs.request.ask_built_in import answer_in, ask_built_in, last_line
from gpuctl.workflow.runs.request.request import STRATEGY, TrainRequest, value_of
from inventories.text import plural

TIMEOUT_S = 120.0
"""For torch to analyze the network."""
WHOLE = (None, "ddp", "dp", "zero1")
"""Strategies with the whole network on every rank."""
DIVIDING = ("--tp", "--pp", "--activation-checkpointing")
"""Options whose effect is shown with any strategy."""

Division = Mapping[str, Any]
"""The output of `train.advice.division`."""


def division_of(request: TrainRequest, ranks: Sequence[int]) -> Division | None:
    """Ask how the network is divided among these ranks per node. Raises Usage if it can't be.

    `None`: it is whole on every rank, or a script's own. Then no process is started: a dry run should be fast.
    """
    words = request.job_words if request.built_in else ()
    names = {word.partition("=")[0] for word in words}
    whole = value_of(words, STRATEGY) in WHOLE and request.engine in (None, "torch")
    if whole and not names & set(DIVIDING):
        return None
    try:
        done = ask_built_in("division", words, ranks, TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"reason": f"torch looked at the network for longer than {TIMEOUT_S:.0f} s"}
    if done.returncode:
        return {"reason": f"torch can't look at the network ({last_line(done)})"}
    try:
        return answer_in(done.stdout, dict)
    except ValueError as error:
        return {"reason": f"torch looked at the network, and {error}"}


def lines(division: Division) -> Iterator[str]:
    """Return the lines for people. Parts whose names differ in numbers alone are one: `block*`."""
    if division["reason"] is not None:
        yield f"how the network is divided can't be told here: {division['reason']}"
        return
    for note in division["notes"]:
        yield f"note: {note}"
    yield f"network of {division['weights']:,} weights, divided as {division['strategy']}"
    if (zero := division["zero"]) is not None:
        ranks = division["shard"] * division["replicate"]
        yield f"  divided among {ranks} ranks by ZeRO: {', '.join(zero)}" if zero else "  whole on every rank"
    if division["shard"] > 1:
        whole = f", whole on each of {division['replicate']} groups" if division["replicate"] > 1 else ""
        yield f"  sharded over {division['shard']} ranks{whole}"
    for pattern, parts in _alike(division["parts"]):
        smallest, largest = (end(part["weights"] for part in parts) for end in (min, max))
        weights = f"{smallest:,}" if smallest == largest else f"{smallest:,} to {largest:,}"
        yield f"  wrapped by themselves: {pattern} ({len(parts)}, of {weights} weights)"
    if division["whole"]:
        yield f"  wrapped with the whole network: {division['whole']:,} weights"
    for pattern, layers in _alike(division["split"]):
        yield f"  split by {layers[0]['by']} among {division['tp']} ranks: {pattern} ({len(layers)})"
    stages = division["stages"]
    for number, stage in enumerate(stages, 1):
        layers, ranks = stage["layers"], stage["ranks"]
        first_to_last = layers[0] if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"
        of = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        size = f"{plural(len(layers), 'layer')}, {stage['weights']:,} weights"
        yield f"  stage {number} of {len(stages)} ({of}): {first_to_last} ({size})"
    for pattern, blocks in _alike([{"name": name} for name in division["recomputed"]]):
        yield f"  computed again in the backward pass: {pattern} ({len(blocks)})"


def _alike(named: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for part in named:
        groups.setdefault(re.sub(r"\d+", "*", part["name"]), []).append(part)
    for pattern, group in groups.items():
        yield group[0]["name"] if len(group) == 1 else pattern, group
