"""`gpuctl advise`: which machines and which strategy, before anything is rented."""

from typing import Any

import click

from gpuctl.app import App
from gpuctl.command_line.options import TAIL, ScriptCommand, command_options, optional_cluster_options
from gpuctl.option_table.advise_options import AdviseSettings
from inventories.option import Option

EVERYTHING = Option(flags=("--all",), keyword="everything", kind=bool, default=False, help="Show every row.")


@click.command(
    cls=ScriptCommand,
    context_settings=TAIL,
    tail_hint="Options of the built-in job go after --: gpuctl advise --batch-tokens 0.5M -- --model gpt-1b.",
)
@optional_cluster_options
@command_options("advise", AdviseSettings, more=(EVERYTHING,))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- --model NAME [OPTIONS]...")
def command(
    app: App,
    everything: bool,
    words: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - each option has its own type
) -> int:
    """Say which machines and which strategy a model fits on, how fast, and for how much. Nothing is rented.

    \b
    gpuctl advise -- --model gpt-1b                                 all shapes, 1 to 8 machines
    gpuctl advise --batch-tokens 0.5M --tokens 20B -- --model gpt-1b --data-dir books
    gpuctl advise --shape A10,A100 --count 1,2 -- --model gpt-7b    these alone, with why a strategy does not fit
    gpuctl advise -- --model gpt-1b --strategy fsdp                 one strategy alone
    gpuctl advise --shape A10 -- --model resnet50 --dataset folder --epochs 90
    gpuctl advise --cluster work --count 1,2 -- --model gpt-1b      machines of a cluster, by the GPUs they report

    After -- are the built-in job's options: the model, --seq-len, --precision, --optimizer, a batch size, a strategy.
    Without them it is 1,024 tokens a sequence and Adam, as in the job itself. Without --precision, rows have bf16 on
    GPUs that have it, else fp16 or fp32. Networks for images are measured here, by torch and torchvision, on tensors
    that take no memory.

    The first line is the cheapest: commands to copy, which rent the machines with --ttl and --max-cost, copy the text
    to them, train, and remove them after a question. The table has what fits, by dollars for the whole training, with
    boot and set-up: 15 minutes, on bare metal 35. No row costs less than the shortest time that its cloud bills.
    MEMORY is that of the fullest rank, with the largest micro-batch that fits; the rest of the batch is accumulated.
    A step is a range: the longer of the GPU's time, with products of matrices at 47 to 75 % of its peak, and
    the host's, as it starts each kernel. Links have 50 to 80 % of their figure.
    Prices are list prices of the machines, without disks.

    It is arithmetic. Where a run on this computer's records was the same job on the same machines, the speed of its
    steady steps counts, 10 % less to 10 % more: gpuctl train and gpuctl bench make such runs. If torch is on
    this computer, it counts the memory of the first row, too, on tensors that take none; a difference above 10 % is
    told. If nothing fits, the exit status is 1.

    With --cluster, gpuctl connects to the machines of that cluster, of any provider. The first line is then the
    training alone. Prices are the cluster's, with disks and addresses, and there is no time for boot and set-up.
    `gpuctl train -- --strategy auto` takes the advice for the cluster's machines.
    """
    from gpuctl.library.options import advise_request
    from gpuctl.workflow.jobs.advise import advise, advise_cluster
    from gpuctl.workflow.runs.request.request import built_in_help

    if {"-h", "--help"} & set(words):
        return built_in_help()
    # Each of them is repeatable, and may be a list with commas.
    lists = {
        name: [word.strip() for word in ",".join(options[name]).split(",") if word.strip()]
        for name in ("shapes", "counts")
    }
    settings: Any = {**options, **lists, "check": options["check"] is not False}
    request = advise_request(words, settings)
    advice = (advise_cluster if app.cluster_named else advise)(app, request)
    if app.options.json:
        app.output.json(advice)
    else:
        from gpuctl.tables.advise import advice_table

        app.output.table(advice_table(advice.rows, everything=everything, rented=not app.cluster_named))
    return 0 if any(row.fits for row in advice.rows) else 1
