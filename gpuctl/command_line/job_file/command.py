"""What of a job's file holds for one command: what was typed wins over it."""

import functools
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from gpuctl.app import App
from gpuctl.command_line.job_file.keys import RUN, section_of
from inventories.option import Option

if TYPE_CHECKING:
    from gpuctl.command_line.job_file.read import Job

F = TypeVar("F", bound=Callable[..., Any])
INSTALL = frozenset({"pip", "requirements", "wheels"})
"""Options that exclude --python, with which nothing is installed."""
NONE = "none"
"""In place of a file, or of a pattern: there is none."""


def job_file_options(*sections: str) -> Callable[[F], Callable[..., Any]]:
    """Give a command -f, and let the file say what was not typed, as far as it is in these of its sections.

    With `run` the command gets an argument `job`: the file, if that is to say what runs, and else None.
    """

    def decorate(function: F) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_job(app: App, **given: Any) -> Any:  # noqa: ANN401 - whatever the command takes and returns
            return function(app, **_completed(app, given, sections))

        return click.option(
            "-f",
            "--file",
            "job_file",
            metavar="FILE|none",
            expose_value=False,
            callback=_take_file,
            shell_complete=lambda _context, _parameter, incomplete: [CompletionItem(incomplete, type="file")],
            help="Read the job from this file (default: the project's gpuctl.yaml). none: from no file.",
        )(with_job)

    return decorate


def what_runs(words: tuple[str, ...], job: "Job | None") -> tuple[tuple[str, ...], Path | None]:
    """The script and its arguments, or those of a module or the built-in job; and the folder to run it in.

    `words`: what was typed, which comes after the file's. `job`: None: the file has no say. A folder that is None is
    the current one.
    """
    if job is None:
        return words, None
    script = () if job.script is None else (os.path.relpath(job.script),)
    return (*script, *job.arguments, *words), job.folder


def file_with_cluster(app: App) -> Path | None:
    """The project's file, where it says what the cluster is to be that this command is about."""
    if app.job_path is None:
        return None
    from gpuctl.command_line.job_file.read import read_job
    from inventories.specs.spec import Spec

    spec = read_job(app.job_path).spec
    if spec is None or spec.cluster != app.options.cluster or spec == Spec(cluster=spec.cluster):
        return None
    app.output.say(f"from {app.job_path}: cluster")
    return app.job_path


def _take_file(context: click.Context, _parameter: click.Parameter, file: str | None) -> None:
    if file is not None:
        context.ensure_object(App).job_path = None if file == NONE else Path(file)


def _completed(app: App, given: dict[str, Any], sections: Collection[str]) -> dict[str, Any]:
    """The command's arguments, with what the file says in place of what was not typed."""
    more: dict[str, Any] = {"job": None} if RUN in sections else {}
    if app.job_path is None:
        return given | more
    from gpuctl.command_line.job_file.read import read_job

    job = read_job(app.job_path)
    named = given.get("module") is not None or bool(given["words"] and not given["words"][0].startswith("-"))
    says_what_runs = RUN in sections and not named and not _continues_another(given, job)
    built_in = not named and not (says_what_runs and (job.script or job.module))
    left_out = _left_out(given, built_in=built_in)
    if not says_what_runs:
        left_out |= {"module"}
    found = {
        key: value
        for key, value in job.options.items()
        if section_of(key) in sections and key.keyword in given and key.keyword not in left_out
    }
    used = {key.path[0] for key in found}
    if says_what_runs:
        more = {"job": job}
        used |= {RUN} if job.script or job.arguments else set()
    in_vain = (
        {"include", "root"} & {key.keyword for key in job.options} if built_in and says_what_runs else set()
    )
    nothing = "nothing"
    if built_in and says_what_runs and not in_vain:
        nothing += ", and the built-in job runs: a script is named under run, as in 'script: train.py'"
    app.output.say(
        f"from {job.path}: {', '.join(sorted(used)) or nothing}{_taken_from_here(found)}{_in_vain(in_vain)}"
    )
    return (
        given | {key.keyword: _merged(key, given[key.keyword], value) for key, value in found.items()} | more
    )


def _continues_another(given: Mapping[str, Any], job: "Job") -> bool:
    """Whether an earlier run says what is run: one that was named, or the latest where the file names no script."""
    return bool(given["resume_from"] or (given["resume"] and not (job.script or job.module)))


def _left_out(given: Mapping[str, Any], *, built_in: bool) -> set[str]:
    """Names of options that the file says in vain, beside what was typed."""
    left_out: set[str] = set()
    if given.get("resume_from"):  # all but the values of variables is that run's
        return {name for name in given if name != "env"}
    if "python" in _typed(given):
        left_out |= INSTALL
    if INSTALL & _typed(given):
        left_out |= {"python"}
    if built_in:  # it brings its own code
        left_out |= {"include", "root"}
    return left_out


def _typed(given: Mapping[str, Any]) -> set[str]:
    """Names of the options that somebody typed."""
    source = click.get_current_context().get_parameter_source
    return {name for name in given if source(name) not in (None, ParameterSource.DEFAULT)}


def _taken_from_here(found: Mapping[Option, Any]) -> str:
    """The end of the line on the file, where it asks for variables of this computer: some may be secrets."""
    names = [
        word for key, value in found.items() if key.keyword == "env" for word in value if "=" not in word
    ]
    return f"; {', '.join(names)} with the value here" if names else ""


def _in_vain(names: Collection[str]) -> str:
    """The end of the line on the file, where it says what is sent and no script that runs there."""
    return (
        f"; {' and '.join(sorted(names))} not, as it names no script and the built-in job runs"
        if names
        else ""
    )


def _merged(option: Option, typed: Any, value: Any) -> Any:  # noqa: ANN401 - an option's value is its own
    """The value of an option: of those that are repeatable what the file says and what was typed, else what was."""
    if not option.multiple:
        return typed if option.keyword in _typed({option.keyword: None}) else value
    return (*value, *typed) if typed and NONE not in (*value, *typed) else typed or value
