"""`gpuctl train`: run a script, a module or the built-in job on the cluster."""

import fcntl
import os
import shlex
import stat
import termios
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

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
from gpuctl.option_table.train_options import TrainSettings
from inventories.option import Option

if TYPE_CHECKING:
    from gpuctl.command_line.job_file.read import Job
    from gpuctl.workflow.jobs.job import Job as TrainedJob
    from inventories.runs.result import Result

DRY_RUN = Option(
    flags=("--dry-run/--no-dry-run",),
    keyword="dry_run",
    kind=bool,
    after="notify",
    help="Only print what would be run and set on each node. --no-dry-run: run, and give a --dry-run after the "
    "script to the script.",
)


@click.command(
    cls=ScriptCommand,
    context_settings=TAIL,
    tail_hint="Options of your script go after the script, those of the built-in job after --: "
    "gpuctl train my.py --lr 0.1, gpuctl train -- --epochs 3.",
)
@common_options
@command_options("train", TrainSettings, more=(DRY_RUN,))
@click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[SCRIPT] [ARGS]...",
    shell_complete=lambda _context, _parameter, incomplete: [CompletionItem(incomplete, type="file")],
)
@job_file_options("environment", "", "run")
def command(
    app: App,
    dry_run: bool | None,
    words: tuple[str, ...],
    job: "Job | None",
    **options: object,
) -> int:
    """Run a script, a module or the built-in job on the cluster.

    \b
    gpuctl train                               the built-in job: a small CNN on handwritten digits
    gpuctl train -- --model mlp --epochs 3     … with its options (-- --help lists them)
    gpuctl train my.py --lr 0.1                your script; the words after it are passed to it
    gpuctl train -m pkg.mod --lr 0.1           your module
    gpuctl train --nproc-per-node 2 my.py      two processes on each node
    gpuctl train --mode ray [drive.py]         on a Ray cluster: the built-in job, or your driver

    A gpuctl.yaml in the current folder, or above it in the git repository, says what was not typed: the script and
    its arguments, what it needs, how it is started. `gpuctl init` writes one. Options on the command line win over
    it; repeatable ones, and arguments after --, are added to it. -f none leaves it out.

    The git repository of the current folder is copied to the nodes, with its submodules, without what .gitignore
    names. The script runs in the copy of the current folder. Outside a repository, the current folder is copied.
    --include adds what git ignores, such as data; --root names another folder to copy.

    What the script writes into that copy is listed at the end. Up to 64 MB from each node come back into the run's
    folder, under outputs/; --bring names what comes in any size. Files that it writes elsewhere are named.

    The next run finds there what earlier ones wrote. If the script may load files that only some of the nodes have,
    a note says so. --share-outputs copies the latest version of each file to all nodes. --fresh puts it aside on the
    nodes.

    A script gets torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, ...), GPUCTL_RUN_ID, GPUCTL_RUN_DIR (files in
    its artifacts/ come back) and GPUCTL_METRICS (a file for JSON lines such as {"step": 10, "loss": 0.4,
    "samples": 640, "time": 1700000000.5}: samples of this rank so far, and time.time()). It does not have to import
    anything of gpuctl.

    GPUs are used if there are any. A machine whose GPUs do not work is refused, with the fix. --device cpu does not
    use GPUs: it starts one process on each node, unless --nproc-per-node says otherwise.

    uv installs what the project's uv.lock, requirements.txt or pyproject.toml lists, once on each node. With
    --python, or with an interpreter in the inventory, it does not. A project that has a build system is installed,
    too, editable; the Python that it is installed over stays as it is.

    --resume and --resume-from start a new run, with the earlier run's checkpoints in $GPUCTL_RUN_DIR/checkpoints on
    every node. Script, arguments and options are the earlier run's unless you give them. Options after -- override
    the built-in job's earlier ones; a script gets them after its earlier arguments. --max-restarts resumes by itself
    if a rank dies or a node is lost. It does not after Ctrl-C, after gpuctl stop, after exit status 2, or after the
    same failure twice without a newer checkpoint.

    --nnodes MIN:MAX is elastic. The run starts with the nodes that answer. If a node is lost, the job resumes
    from its last checkpoint on the others. If nodes are added by `gpuctl up --count`, or come back, the run ends
    at its next checkpoint and the job resumes on all of them. With --mode ray and a driver, nodes join its Ray
    instead.

    If the run hangs, gpuctl says which rank the others wait for, and where it is. `gpuctl why` says so at any time.

    Ctrl-C stops the run on every node: ranks get SIGINT, as in a terminal, and 30 s or --stop-grace to save. A
    second Ctrl-C kills the ranks. A third ends the command without waiting for their end. `gpuctl stop`, the failure
    of another rank and a hang stop ranks with SIGTERM.
    """
    from gpuctl.command_line.job_file.command import what_runs
    from gpuctl.library.options import train_request
    from gpuctl.workflow.runs.request.request import built_in_help

    all_words, project = what_runs(words, job)
    request = train_request(all_words, run_options(app, {**options, "project": project}))
    if request.built_in and {"-h", "--help"} & set(words):
        return built_in_help()
    request = check_options(app, request, ignored="--dry-run" if dry_run is False else "")
    if dry_run:
        from gpuctl.workflow.jobs.train_plan import show_launch

        document = show_launch(app, request)
        if app.options.json:
            app.output.json(document)
        return 0
    if something_is_piped_in():
        app.output.say(
            "note: the ranks' standard input is empty: what is piped in is not sent. Send it as a file"
        )
    status = 0

    def show(job: "TrainedJob") -> None:
        nonlocal status
        status = report(app, job.result, interrupted=job.interrupted)

    from gpuctl.workflow.jobs.train import train

    train(app, request, on_end=show)
    return status


def something_is_piped_in(descriptor: int = 0) -> bool:
    """Return whether this command's standard input is a pipe with data, or a file that is not empty."""
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return os.lseek(descriptor, 0, os.SEEK_CUR) == 0 < status.st_size  # a loop has read a part
        if not stat.S_ISFIFO(status.st_mode):
            return False
        waiting_bytes = array("i", [0])
        fcntl.ioctl(descriptor, termios.FIONREAD, waiting_bytes)
        return waiting_bytes[0] > 0
    except OSError:  # no standard input
        return False


def report(app: App, result: "Result", *, interrupted: bool) -> int:
    """Show the result of a job, and return the command's exit status."""
    from gpuctl.workflow.jobs.job import WRONG_OPTIONS
    from inventories.runs.end_reasons import Ended, Reason

    if app.options.json:
        app.output.json(result)
    elif result.status == "running":
        app.output.say(left_behind(result.run, interrupted=interrupted))
    else:
        from gpuctl.run_results.saved_results import launch_of
        from gpuctl.tables.run import run_table
        from inventories.disk.store import RunFolder
        from remote.runs.outputs import matched_nothing

        app.output.table(run_table(result, printed=app.output.just_seen))
        run = launch_of(result)
        for pattern in matched_nothing(RunFolder(Path(result.dir)), run) if run else ():
            app.output.say(f"--bring {shlex.quote(pattern)} matched no file that the run wrote")
        hung = result.reason is Reason.STOPPED_HUNG
        if hung:
            app.output.say(
                f"it was stopped as it hung; `gpuctl why {result.run}` shows what is known of that"
            )
        if result.reason is Reason.GPUS_IDLE:
            from remote.end_sentences import sentence
            from remote.runs.run_files import read_node_records

            records = read_node_records(RunFolder(Path(result.dir)), run.nodes) if run else []
            ends = [
                record.ended for record in records if record.ended and record.ended.reason is result.reason
            ]
            app.output.say(f"it was {sentence(ends[0] if ends else Ended(reason=result.reason))}")
        if result.reason is Reason.STOPPED and not interrupted:
            app.output.say("it was stopped by another command: gpuctl stop, or gpuctl down")
        elif result.status != "succeeded":
            from gpuctl.workflow.runs.resume import resume_hint

            if advice := resume_hint(app, result):
                app.output.say(advice)
    if interrupted:
        return 130
    if result.status == "failed" and result.script == "built-in" and result.exit_code == WRONG_OPTIONS:
        return WRONG_OPTIONS
    return 0 if result.status in ("succeeded", "running") else 1


def left_behind(run: str, *, interrupted: bool) -> str:
    """The line on a run that has not ended: it was detached, or a person did not wait until it had stopped."""
    if interrupted:
        return (
            f"run {run} was told to stop, and its end was not waited for. `gpuctl results {run}` shows it; if it "
            f"still runs, `gpuctl stop {run}` ends it"
        )
    return f"run {run} continues; gpuctl logs -f {run} follows it"
