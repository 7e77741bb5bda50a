"""`gpuctl tune`: a search for hyperparameters, with Ray Tune."""

from typing import TYPE_CHECKING

import click

from gpuctl.app import App
from gpuctl.command_line.job_file.command import job_file_options
from gpuctl.command_line.options import (
    TAIL,
    ScriptCommand,
    command_options,
    common_options,
    run_options,
)
from gpuctl.command_line.options_after_script import refuse_after_function
from gpuctl.option_table.train_options import TrainSettings
from gpuctl.option_table.tune_options import TuneSettings

if TYPE_CHECKING:
    from gpuctl.workflow.jobs.tune import Tuned


@click.command(
    cls=ScriptCommand,
    context_settings=TAIL,
    tail_hint="Options of the built-in job go after --: gpuctl tune --param 'lr=uniform(0.01,0.2)' -- --epochs 5.",
)
@common_options
@command_options("tune", TuneSettings, TrainSettings)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT.py:FUNCTION] [-- ARGS]...")
@job_file_options("environment", "")
def command(
    app: App,
    words: tuple[str, ...],
    **options: object,
) -> int:
    """Search for hyperparameters with Ray Tune, on all of the cluster's machines at once.

    \b
    gpuctl tune --param 'lr=loguniform(1e-4,1e-1)' --trials 8              the built-in job's options
    gpuctl tune --param 'lr=uniform(0.01,0.2)' --param 'optimizer=choice(sgd,adam)' --scheduler asha -- --epochs 5
    gpuctl tune --param 'lr=grid(0.1,0.01,0.001)' -- --epochs 5
    gpuctl tune --param 'width=randint(16,256)' --metric score search.py:objective

    FROM is uniform(LOW,HIGH), loguniform(LOW,HIGH), randint(LOW,HIGH), choice(A,B,…) or grid(A,B,…). randint never
    gives HIGH itself: randint(1,4) gives 1, 2 or 3. choice tries each value once before any value again; grid tries
    every combination. Put FROM in quotes: brackets have a meaning in shells. The built-in job takes each NAME as its
    option. A function gets all of them as a dict, and reports with ray.tune.report.

    The project's gpuctl.yaml says what is installed, set and sent, where no option does. Its script is not used.

    All trials come back in artifacts/trials.json, also after Ctrl-C.
    """
    from gpuctl.option_table.values import read_options
    from gpuctl.workflow.jobs.tune import TuneRequest, tune
    from gpuctl.workflow.runs.request.engine_config import with_config
    from gpuctl.workflow.runs.request.request import TrainRequest, built_in_help

    search = TuneRequest(**read_options(options, TuneSettings))
    settings = read_options(run_options(app, options), TrainSettings)
    request = with_config(TrainRequest(**settings, launcher="ray", words=words))
    if request.built_in and {"-h", "--help"} & set(words):
        return built_in_help()

    refuse_after_function(request)

    def show(tuned: "Tuned") -> None:
        if app.options.json:
            app.output.json(tuned.document())
        else:
            from gpuctl.tables.tune import tune_table

            app.output.table(tune_table(tuned.result, tuned.search, tuned.words))

    tuned = tune(app, request, search, on_end=show)
    if tuned.interrupted:
        return 130
    return 0 if tuned.result.status == "succeeded" else 1
