"""`advise`: a row for each shape, count and strategy, of list prices. Nothing is rented, and no cloud is asked."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuctl.app import App
from gpuctl.errors import Usage
from gpuctl.json_documents import AdviceRow
from gpuctl.option_table.advise_options import AdviseSettings
from gpuctl.shape_names import find
from gpuctl.workflow.jobs.advice_command import Account, command_of, large_folders, with_absolute_paths
from gpuctl.workflow.jobs.check import compared
from gpuctl.workflow.jobs.measured import measured_runs
from gpuctl.workflow.runs.request.request import value_of
from gpuctl.workflow.runs.strategy.ask import ask, machines_of_shape
from provision.clouds import Shape
from provision.pricing.catalog import SHAPES
from provision.pricing.prices import load

COUNTS = (1, 2, 4, 8)
"""Of machines, where nobody says how many."""
MODEL = "--model"


@dataclass(frozen=True, kw_only=True)
class AdviseRequest(AdviseSettings):
    """The settings of `gpuctl advise`."""

    words: tuple[str, ...]
    """The built-in job's options."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The document of `advise --json`."""

    rows: tuple[AdviceRow, ...]
    """What fits, by dollars; then what doesn't, by how much is lacking."""


def advise(app: App, request: AdviseRequest) -> Advice:
    """Return the rows; print the assumptions and torch's count. Raises Usage for a question without an answer."""
    if value_of(request.words, MODEL) is None:
        raise Usage("Name the model after --: gpuctl advise -- --model gpt-124m")
    prices = load(app.store.home)
    priced = [(shape, prices.of(shape.name, request.region)) for shape in _shapes(app, request)]
    known = [
        (shape, price.usd_per_hour if price else None) for shape, price in priced if price or request.shapes
    ]
    if not known:
        raise Usage("No shape has a price there. gpuctl shapes --refresh-prices asks for them.")
    machines = [
        machines_of_shape(shape, count, usd) for shape, usd in known for count in request.counts or COUNTS
    ]
    words = with_absolute_paths(request.words)
    answer = ask(
        words,
        machines,
        batch_tokens=request.batch_tokens,
        tokens=request.tokens,
        runs=measured_runs(app.store),
        spelled_out=True,
    )
    for note in answer.notes:
        app.output.say(f"note: {note}")
    if request.check and answer.rows[0]["fits"] and answer.vocabulary is not None:
        app.output.say(compared(answer.rows[0], answer.vocabulary))
    account = Account(prices=prices, region=request.region, large_folders=large_folders(words))
    return Advice(rows=tuple(_row(row, account) for row in answer.rows))


def _shapes(app: App, request: AdviseRequest) -> Sequence[Shape]:
    """Return the shapes of the request. Raises Usage for an unknown name."""
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
    return shapes


def _row(row: dict[str, object], account: Account) -> AdviceRow:
    """Return a row of the document from a row of the job's arithmetic."""
    known = {name: row[name] for name in AdviceRow.__dataclass_fields__ if name in row}
    if not row["fits"]:
        return AdviceRow(**known, command=None)  # type: ignore[arg-type]  # as the job has them
    not_launched = SHAPES[str(row["shape"])].not_launched
    without_command = f"No command: {not_launched}." if not_launched else row["without_command"]
    if without_command is not None:
        reason = " ".join(str(part) for part in (row["reason"], without_command) if part)
        return AdviceRow(**known | {"reason": reason}, command=None)  # type: ignore[arg-type]
    return AdviceRow(**known, command=command_of(row, account))  # type: ignore[arg-type]
