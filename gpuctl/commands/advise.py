"""`gpuctl advise`: which machines and which strategy, before anything is rented."""

import math
import re

import click

from gpuctl import completions
from gpuctl.options import TAIL, App, ScriptCommand, no_cluster_options
from provision.provider_registry import CLOUDS

UNITS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
MOST_COUNT = 1024


def tokens_of(_context: click.Context, _parameter: click.Parameter, given: str | None) -> float | None:
    """Read a number of tokens: `500000`, `0.5M`, `20B`."""
    if given is None:
        return None
    read = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)([KMBGT]?)", given, re.IGNORECASE)
    number = float(read[1]) * UNITS[read[2].upper()] if read else 0.0
    if not 1 <= number < math.inf:
        raise click.BadParameter(f"{given!r} is no number of tokens: give one such as 500000, 0.5M or 20B.")
    return number


def words_of(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Read a repeatable option, each of which may be a list with commas."""
    return tuple(word.strip() for one in given for word in one.split(",") if word.strip())


def counts_of(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[int, ...]:
    """Read numbers of machines."""
    words = words_of(context, parameter, given)
    if bad := next((w for w in words if not (w.isdecimal() and 1 <= int(w) <= MOST_COUNT)), None):
        raise click.BadParameter(f"{bad!r} is no number of machines from 1 to {MOST_COUNT}, such as 1,2,4.")
    return tuple(dict.fromkeys(map(int, words)))


@click.command(
    cls=ScriptCommand,
    context_settings=TAIL,
    tail_hint="Options of the built-in job go after --: gpuctl advise --batch-tokens 0.5M -- --model gpt-1b.",
)
@no_cluster_options
@click.option(
    "--batch-tokens",
    callback=tokens_of,
    metavar="N",
    help="Tokens of a step of all ranks together, about: 500000, 0.5M (default: the job's own batch on each rank).",
)
@click.option(
    "--tokens",
    callback=tokens_of,
    metavar="N",
    help="Tokens to train on in all, such as 20B: the total cost.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    callback=words_of,
    metavar="S[,S…]",
    help="Only these shapes, or those of a GPU such as A100 (default: all that have a price). Repeatable.",
    shell_complete=completions.shapes,
)
@click.option(
    "--count",
    "counts",
    multiple=True,
    callback=counts_of,
    metavar="N[,N…]",
    help="Numbers of machines (default: 1,2,4,8). Repeatable.",
)
@click.option("--provider", type=click.Choice(tuple(CLOUDS)), help="Only shapes of this provider.")
@click.option("--region", metavar="R", help="AWS region of the prices (default: us-east-1).")
@click.option(
    "--check/--no-check",
    default=True,
    help="Have torch, where it is installed here, count the memory of the first row, too (default: --check).",
)
@click.option("--all", "everything", is_flag=True, help="Show every row.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- --model NAME [OPTIONS]...")
def command(
    app: App,
    batch_tokens: float | None,
    tokens: float | None,
    shapes: tuple[str, ...],
    counts: tuple[int, ...],
    provider: str | None,
    region: str | None,
    check: bool,
    everything: bool,
    words: tuple[str, ...],
) -> int:
    """Say which machines and which strategy a model fits on, how fast, and for how much. Nothing is rented.

    \b
    gpuctl advise -- --model gpt-1b                                 all shapes, 1 to 8 machines
    gpuctl advise --batch-tokens 0.5M --tokens 20B -- --model gpt-1b --precision bf16
    gpuctl advise --shape A10,A100 --count 1,2 -- --model gpt-7b    these alone, with why a strategy does not fit
    gpuctl advise -- --model gpt-1b --strategy fsdp                 one strategy alone

    After -- are the built-in job's options: the model, --seq-len, --precision, --optimizer, a batch size, a strategy.
    Without them it is 1,024 tokens a sequence, fp32 and Adam, as in the job itself.

    The first line is the cheapest: commands to copy, which rent the machines and train on them. The table has what
    fits, by dollars for each token. MEMORY is that of the fullest rank, with the largest micro-batch that fits; what
    is left of the batch is accumulated. A step is a range: GPUs attain 30 to 48 % of their peak in large
    transformers, links 50 to 80 % of their figure. Prices are list prices of the machines, without disks.

    It is arithmetic, not a measurement: gpuctl bench measures. Where torch is installed here, it counts the memory
    of the first row, too, on tensors that take none; a difference above 10 % is told. If nothing fits, the exit
    status is 1.

    `gpuctl train -- --strategy auto` takes the advice
    for the machines that are there.
    """
    from gpuctl.workflow.advice.advise import AdviseRequest, advise
    from gpuctl.workflow.training.request import built_in_help

    if {"-h", "--help"} & set(words):
        return built_in_help()
    request = AdviseRequest(
        words=words,
        shapes=shapes,
        counts=counts,
        provider=provider,
        region=region,
        batch_tokens=batch_tokens,
        tokens=tokens,
        check=check,
    )
    advice = advise(app, request)
    if app.options.json:
        app.output.json(advice)
    else:
        from gpuctl.tables.advise import advice_table

        app.output.table(advice_table(advice.rows, everything=everything))
    return 0 if any(row.fits for row in advice.rows) else 1
