"""`advise`: a row for each shape, count and strategy, of list prices. Nothing is rented, and no cloud is asked.

For a cluster, rows are about its machines, by the GPUs that the nodes report.
"""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuctl.app import App
from gpuctl.command_results.runs import AdviceRow
from gpuctl.errors import Usage
from gpuctl.option_table.advise_options import AdviseSettings
from gpuctl.shape_names import find
from gpuctl.workflow.jobs.advice_command import (
    Account,
    command_of,
    command_on,
    large_folders,
    with_absolute_paths,
)
from gpuctl.workflow.machines.connect import connected, load_inventory
from gpuctl.workflow.runs.request.ask_built_in import answer_in, ask_built_in, last_line
from gpuctl.workflow.runs.request.request import value_of
from gpuctl.workflow.runs.strategy.ask import Answer, ask, machines_of_nodes, machines_of_shape
from inventories.disk.store import RunFolder
from inventories.errors import InventoryError
from inventories.machine import Inventory
from inventories.text import plural
from provision.pricing.catalog import SHAPES
from provision.pricing.prices import load

if TYPE_CHECKING:
    from remote.facts import Facts

COUNTS = (1, 2, 4, 8)
"""Of machines, where nobody says how many."""
MODEL = "--model"
CHECK_TIMEOUT_S = 120.0
"""Time limit of torch's count."""
TOLERANCE = 0.10
NEWEST = 200
"""Runs that are looked at."""


@dataclass(frozen=True, kw_only=True)
class AdviseRequest(AdviseSettings):
    """The settings of `gpuctl advise`."""

    words: tuple[str, ...]
    """The built-in job's options."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The document of `advise --json`."""

    rows: tuple[AdviceRow, ...]
    """Fitting rows by dollars, then the others by the lacking memory."""


def advise(app: App, request: AdviseRequest) -> Advice:
    """Return the rows of machines to rent; print the assumptions and torch's count.

    Raises Usage for a question without an answer.
    """
    _check_model(request)
    named = find(request.shapes) if request.shapes else None
    for note in named.notes if named else ():
        app.output.say(note)
    shapes = [
        shape
        for shape in SHAPES.values()
        if request.provider in (None, shape.provider)
        and (shape.name in named.names if named else not shape.not_launched)
    ]
    if not shapes:
        raise Usage(f"{(request.provider or '').upper()} has none of these shapes: leave out --provider.")
    prices = load(app.store.home)
    priced = [(shape, prices.of(shape.name, request.region)) for shape in shapes]
    known = [
        (shape, price.usd_per_hour if price else None) for shape, price in priced if price or request.shapes
    ]
    if not known:
        raise Usage("No shape has a price there. gpuctl shapes --refresh-prices asks for them.")
    machines = [
        machines_of_shape(shape, count, usd) for shape, usd in known for count in request.counts or COUNTS
    ]
    words = with_absolute_paths(request.words)
    answer = _answer(app, request, words, machines)
    account = Account(prices=prices, region=request.region, large_folders=large_folders(words))
    return Advice(
        rows=tuple(
            _row(row, partial(command_of, account=account), SHAPES[str(row["shape"])].not_launched)
            for row in answer.rows
        )
    )


def advise_cluster(app: App, request: AdviseRequest) -> Advice:
    """Return the rows of the cluster's machines, as `advise` does, by the GPUs that the nodes report.

    Raises Usage also if they report no GPUs, or different ones.
    """
    from remote import facts
    from remote.fanout import fan_out, values

    _check_model(request)
    if request.shapes or request.provider or request.region:
        raise Usage(
            "With --cluster, the machines are those of the cluster: leave out --shape, --provider and --region, "
            "or leave out --cluster."
        )
    folder = app.store.cluster(app.options.cluster)
    inventory = load_inventory(folder)
    counts = request.counts or (len(inventory.machines),)
    if max(counts) > len(inventory.machines):
        raise Usage(
            f"--count {max(counts)} is not possible: the cluster {inventory.cluster} has "
            f"{plural(len(inventory.machines), 'machine')}. Add some with: gpuctl up --count {max(counts)}"
        )
    with connected(folder, inventory.machines[: max(counts)]) as nodes:
        reported = values(fan_out(lambda node: facts.gather(node, ()), nodes))
    machines = [machines_of_cluster(inventory, reported, count) for count in counts]
    words = with_absolute_paths(request.words)
    answer = _answer(app, request, words, machines)
    command = partial(command_on, inventory, large=large_folders(words))
    return Advice(rows=tuple(_row(row, command) for row in answer.rows))


def machines_of_cluster(inventory: Inventory, facts: "Mapping[str, Facts]", count: int) -> dict[str, Any]:
    """Return the first machines of a cluster, as the job's arithmetic takes them.

    Raises Usage if they report no GPUs, or different ones.
    """
    machines = machines_of_nodes(inventory.machines[:count], facts, ranks=None)
    if isinstance(machines, str):
        raise Usage(
            f"gpuctl has no advice for {plural(count, 'machine')} of the cluster {inventory.cluster}: {machines}. "
            "Without --cluster, gpuctl advise shows machines to rent."
        )
    usd = inventory.hourly_usd
    return {**machines, "hourly_usd": None if usd is None else usd * count / len(inventory.machines)}


def _check_model(request: AdviseRequest) -> None:
    """Raise Usage if the options name no model."""
    if value_of(request.words, MODEL) is None:
        raise Usage("Name the model after --: gpuctl advise -- --model gpt-124m")


def _answer(
    app: App, request: AdviseRequest, words: Sequence[str], machines: Sequence[dict[str, Any]]
) -> Answer:
    """Return the answer of the job's arithmetic for the machines; print the assumptions and torch's count."""
    runs = (_measured(folder) for folder in app.store.runs()[-NEWEST:])
    answer = ask(
        words,
        machines,
        batch_tokens=request.batch_tokens,
        tokens=request.tokens,
        runs=[run for run in runs if run is not None],
        spelled_out=True,
    )
    for note in answer.notes:
        app.output.say(f"note: {note}")
    if request.check and answer.rows[0]["fits"] and answer.vocabulary is not None:
        app.output.say(compared(answer.rows[0], answer.vocabulary))
    return answer


def _row(
    row: dict[str, object], command: Callable[[Mapping[str, Any]], str], not_launched: str = ""
) -> AdviceRow:
    """Return a row of the document from a row of the job's arithmetic.

    `not_launched`: why `up` does not create such machines.
    """
    known = {name: row[name] for name in AdviceRow.__dataclass_fields__ if name in row}
    if not row["fits"]:
        return AdviceRow(**known, command=None)  # type: ignore[arg-type]  # as the job has them
    without_command = f"No command: {not_launched}." if not_launched else row["without_command"]
    if without_command is not None:
        reason = " ".join(str(part) for part in (row["reason"], without_command) if part)
        return AdviceRow(**known | {"reason": reason}, command=None)  # type: ignore[arg-type]
    return AdviceRow(**known, command=command(row))  # type: ignore[arg-type]


def compared(row: Mapping[str, Any], vocabulary: int) -> str:
    """Return a sentence on how the two counts of a row that fits agree, or why torch's is not there."""
    layout = {name: row[name] for name in ("count", "gpus", "micro_batch")} | {"vocabulary": vocabulary}
    try:
        done = ask_built_in("memory", row["words"], layout, CHECK_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"memory not checked: torch counted for longer than {CHECK_TIMEOUT_S:.0f} s"
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


def _measured(folder: RunFolder) -> dict[str, Any] | None:
    """Return a run as the job's arithmetic takes it. `None`: it had no steady step, or its record can't be read."""
    with suppress(InventoryError):
        run, result = folder.load_run(), folder.load_result()
        ranks = {node.nproc for node in run.nodes}
        if result is None or result.status != "succeeded" or run.shape is None or len(ranks) != 1:
            return None
        if not run.built_in or run.searched or not result.train.samples_per_s:
            return None
        return {
            "run": run.run,
            "shape": run.shape,
            "count": len(run.nodes),
            "ranks": ranks.pop(),
            "words": run.args,
            "samples_per_s": result.train.samples_per_s,
        }
    return None
