"""`gpuctl tune`: a search for hyperparameters, with Ray Tune."""

from typing import TYPE_CHECKING, Literal

import click

from gpuctl.app import App
from gpuctl.command_line.job_file.command import job_file_options
from gpuctl.command_line.options import (
    TAIL,
    ScriptCommand,
    common_options,
    device_option,
    env_option,
    install_options,
    project_options,
    run_options,
    stop_grace_option,
)
from gpuctl.command_line.options_after_script import refuse_after_function

if TYPE_CHECKING:
    from gpuctl.workflow.jobs.tune import Tuned


@click.command(
    cls=ScriptCommand,
    context_settings=TAIL,
    tail_hint="Options of the built-in job go after --: gpuctl tune --param 'lr=uniform(0.01,0.2)' -- --epochs 5.",
)
@common_options
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME=FROM",
    help="What to search, and where: 'lr=loguniform(1e-4,1e-1)'. Repeatable.",
)
@click.option(
    "--trials",
    type=click.IntRange(1, 10_000),
    help="Number of trials (default: 8; with grid: of each combination, default 1).",
)
@click.option(
    "--scheduler",
    type=click.Choice(["fifo", "asha"]),
    default="fifo",
    show_default=True,
    help="asha: end trials early that are behind.",
)
@click.option("--metric", metavar="NAME", help="Metric to optimize (default: the built-in job's accuracy).")
@click.option(
    "--goal",
    type=click.Choice(["max", "min"]),
    default="max",
    show_default=True,
    help="Maximize or minimize the metric.",
)
@click.option(
    "--cpus-per-trial",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="CPU cores per trial.",
)
@click.option(
    "--gpus-per-trial",
    type=click.FloatRange(0),
    metavar="N",
    help="GPUs per trial (default: 1 if there are any).",
)
@click.option(
    "--most-at-once",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of trials at a time (default: what fits).",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed for sampling trials.")
@device_option
@env_option
@install_options
@project_options
@stop_grace_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT.py:FUNCTION] [-- ARGS]...")
@job_file_options("environment", "")
def command(
    app: App,
    params: tuple[str, ...],
    trials: int | None,
    scheduler: Literal["fifo", "asha"],
    metric: str | None,
    goal: Literal["max", "min"],
    cpus_per_trial: float,
    gpus_per_trial: float | None,
    most_at_once: int | None,
    seed: int,
    words: tuple[str, ...],
    stop_grace: str | None,
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
    from gpuctl.workflow.jobs.search_space import parse_params, trials_of
    from gpuctl.workflow.jobs.tune import TuneRequest, tune
    from gpuctl.workflow.runs.request.engine_config import with_config
    from gpuctl.workflow.runs.request.request import TrainRequest, built_in_help
    from inventories.validate import check_stop_grace_s

    grace_s = None if stop_grace is None else check_stop_grace_s(stop_grace)
    space = parse_params(params)
    given = run_options(app, options)
    request = with_config(TrainRequest(launcher="ray", words=words, stop_grace_s=grace_s, **given))
    if request.built_in and {"-h", "--help"} & set(words):
        return built_in_help()

    refuse_after_function(request)

    def show(tuned: "Tuned") -> None:
        if app.options.json:
            app.output.json(tuned.document())
        else:
            from gpuctl.tables.tune import tune_table

            app.output.table(tune_table(tuned.result, tuned.search, tuned.words))

    tuned = tune(
        app,
        request,
        TuneRequest(
            params=space,
            trials=trials_of(space, trials),
            scheduler=scheduler,
            metric=metric,
            mode=goal,
            cpus=cpus_per_trial,
            gpus=gpus_per_trial,
            most_at_once=most_at_once,
            seed=seed,
        ),
        on_end=show,
    )
    if tuned.interrupted:
        return 130
    return 0 if tuned.result.status == "succeeded" else 1
