"""The options of a command that a job's file sets. Typed options win over the file."""

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
"""Stands for no file, or for no pattern."""


def job_file_options(*sections: str) -> Callable[[F], Callable[..., Any]]:
    """Give a command -f, and options that were not typed from these sections of the file.

    With `run` the command gets an argument `job`: the file, if it names the script, or None.
    """

    def decorate(function: F) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_job(app: App, **typed: Any) -> Any:  # noqa: ANN401 - whatever the command takes and returns
            return function(app, **_completed(app, typed, sections))

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
    """Return the script and its arguments, or arguments alone; and its folder. No folder: the current one.

    `words`: the typed words, which come after the words of the file. `job`: the file, if it names the script.
    """
    if job is None:
        return words, None
    script = () if job.script is None else (os.path.relpath(job.script),)
    return (*script, *job.arguments, *words), job.folder


def file_with_cluster(app: App) -> Path | None:
    """Return the project's file, if it describes the cluster of this command."""
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


def _completed(app: App, typed: dict[str, Any], sections: Collection[str]) -> dict[str, Any]:
    """Return the command's arguments, with the file's values for options that were not typed."""
    more: dict[str, Any] = {"job": None} if RUN in sections else {}
    if app.job_path is None:
        return typed | more
    from gpuctl.command_line.job_file.read import read_job

    job = read_job(app.job_path)
    named = typed.get("module") is not None or bool(typed["words"] and not typed["words"][0].startswith("-"))
    has_script = bool(job.script or job.module)
    # An earlier run names the script: a given run, or the latest if the file names no script.
    continues = typed.get("resume_from") or (typed.get("resume") and not has_script)
    says_what_runs = RUN in sections and not named and not continues
    built_in = not named and not (says_what_runs and has_script)
    left_out = _left_out(typed, built_in=built_in)
    if not says_what_runs:
        left_out |= {"module"}
    values = {
        key: value
        for key, value in job.options.items()
        if section_of(key) in sections and key.keyword in typed and key.keyword not in left_out
    }
    used = {key.path[0] for key in values}
    if says_what_runs:
        more = {"job": job}
        used |= {RUN} if job.script or job.arguments else set()
    unused = (
        {"include", "root"} & {key.keyword for key in job.options} if built_in and says_what_runs else set()
    )
    nothing = "nothing"
    if built_in and says_what_runs and not unused:
        nothing += ", and the built-in job runs: a script is named under run, as in 'script: train.py'"
    line = f"from {job.path}: {', '.join(sorted(used)) or nothing}"
    env = next((value for key, value in values.items() if key.keyword == "env"), ())
    if from_here := [word for word in env if "=" not in word]:  # some may be secrets
        line += f"; {', '.join(from_here)} with the value here"
    if unused:
        line += f"; {' and '.join(sorted(unused))} not, as it names no script and the built-in job runs"
    app.output.say(line)
    return (
        typed | {key.keyword: _merged(key, typed[key.keyword], value) for key, value in values.items()} | more
    )


def _left_out(typed: Mapping[str, Any], *, built_in: bool) -> set[str]:
    """Return the names of options in the file that typed options exclude."""
    left_out: set[str] = set()
    if typed.get("resume_from"):  # that run has all but the values of variables
        return {name for name in typed if name != "env"}
    if "python" in _typed(typed):
        left_out |= INSTALL
    if INSTALL & _typed(typed):
        left_out |= {"python"}
    if built_in:  # it brings its own code
        left_out |= {"include", "root"}
    return left_out


def _typed(names: Collection[str]) -> set[str]:
    """Return the names of the options that were typed."""
    source = click.get_current_context().get_parameter_source
    return {name for name in names if source(name) not in (None, ParameterSource.DEFAULT)}


def _merged(option: Option, typed: Any, value: Any) -> Any:  # noqa: ANN401 - an option's value is its own
    """Return the value of an option: the typed one, or for a repeatable option the file's and the typed values."""
    if not option.multiple:
        return typed if option.keyword in _typed({option.keyword}) else value
    return (*value, *typed) if typed and NONE not in (*value, *typed) else typed or value
