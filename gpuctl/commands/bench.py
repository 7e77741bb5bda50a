"""`gpuctl bench`: a script or the built-in job on each layout, how it scales, what other layouts would bring."""

from dataclasses import replace
from pathlib import Path
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
from gpuctl.command_line.options_after_script import check_options
from gpuctl.option_table.bench_options import BenchSettings
from gpuctl.option_table.train_options import TrainSettings
from inventories.option import Option

if TYPE_CHECKING:
    from gpuctl.workflow.jobs.bench import Bench

PLOT = Option(
    flags=("--plot",),
    keyword="plot",
    kind=Path,
    metavar="FILE.png",
    after="bandwidth_gb_s",
    help="Write a plot.",
)


@click.command(
    cls=ScriptCommand,
    context_settings=TAIL,
    tail_hint="Options of your script go after the script, those of the built-in job after --: "
    "gpuctl bench --layouts 1x1,1x2 -- --epochs 3.",
)
@common_options
@command_options("bench", BenchSettings, TrainSettings, more=(PLOT,))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT] [ARGS]...")
@job_file_options("environment", "")
def command(
    app: App,
    plot: Path | None,
    words: tuple[str, ...],
    **options: object,
) -> int:
    """Run a script or the built-in job on several layouts. Show how it scales, its cost, and what to change first.

    \b
    gpuctl bench                                         one process, one whole node, all nodes
    gpuctl bench --layouts 1x1,1x2,2x2 -- --model resnet18 --dataset cifar10
    gpuctl bench --forecast 2x4,4x8                      how fast would these be?
    gpuctl bench --layouts 1x1,2x1 train.py --epochs 2   your script

    Each layout has one warm-up run and then --repeats timed runs. The first epoch of a run does not count if there
    are several (the built-in job's default: --epochs 3). gpuctl runs lists every run.

    The speed of a script is that of its metrics (GPUCTL_METRICS): epochs, samples or steps. Without them, epochs or
    steps are counted in rank 0's log, over the whole run with its start.

    A bench begins with only the files that are sent. What its runs write into the project's folder, such as data
    that a script downloads, stays there for the runs after them, and is put aside on the nodes at the end. If a
    script resumes its own checkpoint, so that a timed run does less than the warm-up, each run from then on begins
    with what is sent.

    Figures that contradict themselves (a speed-up above the number of ranks, repetitions that lie far apart) are
    measured again once. If they still do, they are marked as disturbed.

    A forecast is a range. At its fast end the ranks average the gradients during the backward pass, at its slow end
    only after it. If one can't be given, the exit status is 4.

    The project's gpuctl.yaml says what is installed and sent, where no option does.

    After Ctrl-C, what was measured so far is shown.
    """
    from gpuctl.library.options import bench_request
    from gpuctl.output_files import check_picture
    from gpuctl.workflow.jobs.bench import bench
    from gpuctl.workflow.runs.request.request import built_in_help

    if plot is not None:
        check_picture(plot)
    split = {name: str(options[name]).split(",") for name in ("layouts", "forecast") if options[name]}
    request = bench_request(words, run_options(app, {**options, **split}))
    if request.job.built_in and {"-h", "--help"} & set(words):
        return built_in_help()
    request = replace(request, job=check_options(app, request.job))

    def show(done: "Bench") -> None:
        if app.options.json:
            app.output.json(done.document())
        else:
            from gpuctl.tables.bench import bench_table

            app.output.table(bench_table(done.measured, done.outlooks))
        if done.failure:
            app.output.error(done.failure)
        if plot is not None:
            # Last, as the measurement has to be reported even if the plot fails.
            from gpuctl.scaling.plot import write_bench_plot

            app.output.say(write_bench_plot(done.measured, done.outlooks, plot))

    return bench(app, request, on_end=show).exit_status
