"""`gpuctl queue`: runs that the cluster's first machine starts when their nodes are free, without this computer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gpuctl.app import App
from gpuctl.command_line.job_file.command import job_file_options
from gpuctl.command_line.options import (
    TAIL,
    ScriptCommand,
    command_options,
    common_options,
    global_options,
    run_options,
)
from gpuctl.command_line.options_after_script import check_options
from gpuctl.errors import Usage
from gpuctl.option_table.queue_options import NOT_QUEUED, QueueSettings
from gpuctl.option_table.train_options import TrainSettings
from inventories.text import listed, plural

if TYPE_CHECKING:
    from gpuctl.command_line.job_file.read import Job
    from inventories.runs.queue import Queue, QueueEntry


PAUSED = "The queue is paused: no entry starts until gpuctl queue resume"


@click.group(params=global_options())
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - the global options
    """Queue runs on the cluster: its first machine starts each when its nodes are free.

    \b
    gpuctl queue add my.py --lr 0.1            add a run; options and arguments are those of gpuctl train
    gpuctl queue add --sweep lr=0.1,0.01 my.py add a run for each value, as --lr V
    gpuctl queue ls                            show the entries; runs that have ended are brought here
    gpuctl queue move 7                        start entry 7 next
    gpuctl queue rm 7 8                        remove entries that wait
    gpuctl queue pause | resume                start no further entry | start entries again

    The queue is on the machine: it continues while this computer is off, and after a restart of the machine. An entry
    that fails holds up no other. With `--nnodes 1`, entries run at once on several machines. `gpuctl stop` ends an
    active run, and the next one starts.
    """
    context.ensure_object(App).take_options(**options)


@command.command(
    "add",
    cls=ScriptCommand,
    context_settings=TAIL,
    tail_hint="Options of your script go after the script, those of the built-in job after --.",
)
@common_options
@command_options("queue add", QueueSettings)
@command_options("train", TrainSettings, without=NOT_QUEUED)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT] [ARGS]...")
@job_file_options("environment", "", "run")
def add(app: App, words: tuple[str, ...], job: "Job | None", **options: Any) -> int:  # noqa: ANN401
    """Prepare a run now, and start it when its nodes are free.

    \b
    gpuctl queue add --nnodes 1 my.py --lr 0.1
    gpuctl queue add --sweep lr=0.1,0.01 --sweep batch=32,64 my.py
    gpuctl queue add --after 7 --priority 5 evaluate.py

    The files are sent as they are now, to a folder of their own: later changes are not for this run. The environment
    is built now, too. Options are those of `gpuctl train`, without those for which gpuctl would have to stay.

    A sweep with `--notify` sends messages of failures at once, and one when the queue is empty.
    """
    from gpuctl.command_line.job_file.command import what_runs
    from gpuctl.library.options import train_request
    from gpuctl.option_table.queue_options import SWEEP_TAG, queue_settings
    from gpuctl.scripts.arguments import typed_line
    from gpuctl.workflow.jobs.queue_add import add
    from gpuctl.workflow.runs.request.request import candidates_of

    settings = queue_settings(**{name: options.pop(name) for name in ("priority", "after", "sweep")})
    all_words, project = what_runs(words, job)
    request = train_request(all_words, run_options(app, {**options, "project": project}))
    request = check_options(app, request)
    queue = add(app, request, settings)
    if app.options.json:
        app.output.json({"entries": queue.entries} if settings.sweep else queue.entries[0])
        return 0
    first, last = queue.entries[0], queue.entries[-1]
    if len(queue.entries) > 1:
        machines, count = candidates_of(app.store.cluster(app.options.cluster).load(), request)
        at_once = f"{len(machines) // count} can run at once"
        app.output.say(f"{len(queue.entries)} entries are added ({first.entry} to {last.entry}), {at_once}")
    else:
        ahead = "is next" if not first.ahead else f"waits behind {plural(first.ahead, 'other')}"
        app.output.say(
            f"entry {first.entry} {ahead}: {typed_line(first.script, first.args)} (run {first.run})"
        )
    if queue.paused:
        app.output.say(PAUSED)
    local = queue.restarts is None
    app.output.say(
        "the hosts are on this computer: keep it on" if local else "you can switch this computer off"
    )
    if settings.sweep:
        if request.notify or app.config.notify:
            app.output.say("messages: failures at once, and one when the queue is empty")
        tag = f"{SWEEP_TAG}={queue.entries[0].tags[SWEEP_TAG]}"
        app.output.say(f"compare them once they have ended: gpuctl results --tag {tag}")
    return 0


@command.command("ls")
@common_options
def ls(app: App) -> None:
    """Show the queue: first the entries that have ended, then the others in their order."""
    from gpuctl.workflow.jobs.queue import show

    queue = show(app)
    _report(app, queue, queue.entries)
    if queue.entries and not app.options.json:
        app.output.say(queue.summary)


@command.command("move")
@common_options
@click.option("--before", metavar="ENTRY", help="Move in front of this entry (default: of all).")
@click.option("--last", is_flag=True, help="Move behind all entries.")
@click.argument("entries", nargs=-1, required=True, metavar="ENTRY...")
def move(app: App, entries: tuple[str, ...], before: str | None, last: bool) -> None:
    """Move entries that wait; they take the priority of their new place."""
    if before and last:
        raise Usage("--before and --last exclude each other: name one place.")
    place = before or ("last" if last else "first")
    done = f"in front of entry {before}" if before else "to the end" if last else "to the front"
    _change(app, f"moved {_named(entries)} {done}", "move", entries, place)


@command.command("rm")
@common_options
@click.argument("entries", nargs=-1, required=True, metavar="ENTRY...")
def rm(app: App, entries: tuple[str, ...]) -> None:
    """Remove entries that wait. The run of an active entry is ended by `gpuctl stop`."""
    _change(app, f"removed {_named(entries)}", "remove", entries)


@command.command("pause")
@common_options
def pause(app: App) -> None:
    """Start no further entry. Active runs continue."""
    _change(app, "paused the queue", "pause")


@command.command("resume")
@common_options
def resume(app: App) -> None:
    """Start entries again after `gpuctl queue pause`."""
    _change(app, "resumed the queue", "resume")


def _named(entries: Sequence[str]) -> str:
    return f"{'entry' if len(entries) == 1 else 'entries'} {listed([*entries])}"


def _change(app: App, done: str, action: Any, entries: tuple[str, ...] = (), place: str = "") -> None:  # noqa: ANN401
    """Change the queue, and print it. `done`: a line on it for people."""
    from gpuctl.workflow.jobs.queue import change

    queue = change(app, action, entries, place)
    app.output.say(done)
    _report(app, queue, queue.open_entries)


def _report(app: App, queue: "Queue", entries: "Sequence[QueueEntry]") -> None:
    """Print the queue, as a table of these entries or as the document of --json."""
    if app.options.json:
        app.output.json(queue)
        return
    if entries:
        from gpuctl.tables.lists import queue_table

        app.output.table(queue_table(entries))
    else:
        app.output.say("The queue is empty. Add a run: gpuctl queue add my.py")
    errors: dict[str, list[str]] = {}
    for entry in entries:
        if entry.error:
            errors.setdefault(entry.error, []).append(entry.entry)
    for error, numbers in errors.items():
        app.output.say(f"{_named(numbers)}: {error}")
    if queue.paused:
        app.output.say(PAUSED)
