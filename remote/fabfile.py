"""The tasks of a fabfile: found as Fabric finds them, their arguments read by Invoke's own parser, run on machines.

A task's `hosts=` are not followed: it runs on the cluster's machines, whose host keys are pinned.
"""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import TextIOBase
from pathlib import Path
from typing import Any, TextIO

import fabric
from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import CollectionNotFound, CommandTimedOut, Exit, ParseError, UnexpectedExit
from invoke.loader import FilesystemLoader
from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext
from invoke.parser.parser import Parser
from invoke.runners import Runner
from invoke.tasks import Call, Task

from inventories.text import did_you_mean
from remote.errors import BadFabfile, ConnectionLost, RemoteError
from remote.transport.fabric_connection import BROKEN, Config, PinnedConnection, fresh_config

NAME = "fabfile"


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A task, as it is listed."""

    name: str
    aliases: tuple[str, ...]
    help: str
    """The first line of its docstring; empty without one."""
    arguments: tuple[tuple[str, str], ...]
    """How each is written, and the help that its task gives for it."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A task with its arguments, as it was asked for or as another one's `pre` or `post`."""

    name: str
    call: Call
    on_machines: bool
    """False: it is run once, on this computer, as Fabric does with `pre` and `post` tasks."""
    hosts: tuple[str, ...] = ()
    """The hosts that the task names itself, which are not followed."""


@dataclass(frozen=True, kw_only=True)
class Streams:
    """Destinations for the output of a task's commands."""

    out: TextIOBase | TextIO
    err: TextIOBase | TextIO


class Fabfile:
    """A fabfile that was loaded."""

    def __init__(self, path: Path, collection: Collection, config: Config) -> None:
        self.path = path
        self._collection = collection
        self._config = config

    def tasks(self) -> list[Listed]:
        """Its tasks, in the order of their names."""
        listed = []
        for context in self._contexts():
            help_line = (self._collection[context.name].__doc__ or "").strip().partition("\n")[0].strip()
            arguments = tuple((written, text or "") for written, text in context.help_tuples())
            listed.append(
                Listed(
                    name=context.name or "",
                    aliases=tuple(context.aliases),
                    help=help_line,
                    arguments=arguments,
                )
            )
        return sorted(listed, key=lambda task: task.name)

    def parse(self, words: Sequence[str]) -> tuple[list[Step], str | None]:
        """The steps that a line asks for, in order; or the name of the task whose help it asks for.

        Raises BadFabfile for a task or an argument that is not there, with the nearest one.
        """
        contexts = self._contexts()
        wants_help = Argument(names=("help",), optional=True)
        parser = Parser(contexts=contexts, initial=ParserContext(args=[wants_help]))
        try:
            result = parser.parse_argv(list(words))
        except ParseError as error:
            raise BadFabfile(self._refusal(error, contexts)) from error
        except ValueError as error:
            raise BadFabfile(f"The arguments of `{shlex.join(words)}` can't be used: {error}.") from error
        initial, *requested = result
        helped = initial.args["help"].value
        if isinstance(helped, str):
            return [], helped
        calls = [
            Call(self._collection[context.name], kwargs=context.as_kwargs, called_as=context.name)
            for context in requested
        ]
        return [step for call in calls for step in self._steps(call, asked_for=True)], None

    def run(
        self, step: Step, box: PinnedConnection, streams: Streams, *, timeout_s: float | None = None
    ) -> Any:  # noqa: ANN401 - what the task returns
        """Run a step with a connection as its context; return the task's value, or raise its error.

        `timeout_s`: for each of its commands; `None`: as the fabfile's settings have it.
        """
        box.config = self._config_of(step, streams, overrides={"run": {"in_stream": False}})
        if timeout_s is not None and box.config.timeouts.command is None:
            box.config.timeouts.command = timeout_s
        return _call(step, box)

    def run_here(self, step: Step, streams: Streams | None = None) -> Any:  # noqa: ANN401 - what the task returns
        """Run a step on this computer. `streams`: get what its commands write; `None`: the usual ones do."""
        return _call(step, Context(self._config_of(step, streams, overrides={})))

    def _contexts(self) -> list[ParserContext]:
        try:
            return list(self._collection.to_contexts(ignore_unknown_help=True))
        except ValueError as error:
            raise BadFabfile(f"{self.path} can't be used: {error}.") from error

    def _steps(self, call: "Call | Task[Any]", *, asked_for: bool) -> Iterator[Step]:
        """A call with what its task wants done before and after it."""
        call = Call(call) if isinstance(call, Task) else call
        for before in call.pre:
            yield from self._steps(before, asked_for=False)
        hosts = tuple(map(str, getattr(call.task, "hosts", None) or ()))
        yield Step(name=call.called_as or call.name, call=call, on_machines=asked_for, hosts=hosts)
        for after in call.post:
            yield from self._steps(after, asked_for=False)

    def _config_of(self, step: Step, streams: Streams | None, *, overrides: Mapping[str, Any]) -> Config:
        """Settings for one task on one machine, which it may change."""
        config = self._config.clone()
        assert isinstance(config, Config)
        if step.call.called_as is not None:
            config.load_collection(self._collection.configuration(step.call.called_as), merge=False)
        if streams is not None:
            runners = {
                "remote": _line_runner(config.runners.remote, streams),
                "local": _line_runner(config.runners.local, streams),
            }
            config.load_overrides({**overrides, "runners": runners}, merge=False)
        config.merge()
        return config

    def _refusal(self, error: ParseError, contexts: Sequence[ParserContext]) -> str:
        """The sentence for what Invoke's parser refused."""
        task, match = (
            error.context.name if error.context else None,
            re.search(r"idea what '(.*)' is", str(error)),
        )
        word = match[1] if match else ""
        see = f"`gpuctl fab {task} --help`" if task else "`gpuctl fab`"
        if not match:
            return f"{str(error).rstrip('.!')}. See {see}."
        if task and error.context and word.startswith("-"):
            meant = did_you_mean(word, error.context.flag_names()) or "."
            return f"The task {task} has no argument {word!r}{meant} See {see}."
        names = [name for context in contexts for name in (context.name or "", *context.aliases)]
        meant = did_you_mean(word, names) or "."
        return f"{self.path} has no task {word!r}{meant} `gpuctl fab` lists them."


def _line_runner(runner: type[Runner], streams: Streams) -> type[Runner]:
    """A runner of commands whose output goes to these streams, unless a task hides it or wants it elsewhere.

    A stream in the settings would count as the task's wish, and hidden output would be shown.
    """

    class LineRunner(runner):  # type: ignore[misc, valid-type] # as the settings have it
        def run(self, command: str, **kwargs: Any) -> Any:  # noqa: ANN401 - Invoke's own
            hide = kwargs.get("hide", self.context.config.run.hide)
            if hide not in (True, "both", "out", "stdout"):
                kwargs.setdefault("out_stream", streams.out)
            if hide not in (True, "both", "err", "stderr"):
                kwargs.setdefault("err_stream", streams.err)
            return super().run(command, **kwargs)

    return LineRunner


def load(folder: Path) -> Fabfile:
    """Load the fabfile of a folder or the nearest above it. Raises BadFabfile; its output goes where print goes."""
    loader = FilesystemLoader(start=str(folder), config=fresh_config())
    before = list(sys.path)
    try:
        spec = loader.find(NAME)
    except (CollectionNotFound, OSError):
        spec = None
    if spec is None or spec.origin is None:
        raise BadFabfile(
            f"There is no fabfile.py in {folder} or above it. Write one with a task: "
            "`from fabric import task`, and a function `@task def who(c): c.run('hostname')`."
        )
    path = Path(spec.origin)
    try:
        module, parent = loader.load(NAME)
    except (Exception, SystemExit) as error:
        raise BadFabfile(f"{path} can't be loaded: {describe_error(error, path)}") from error
    finally:
        # The fabfile's own folder comes last from here on: no file in it may hide a module of ours or of the
        # standard library.
        sys.path[:] = [*before, *(entry for entry in sys.path if entry not in before)]
    config = fresh_config()
    try:
        config.set_project_location(parent)
        config.load_project()
        config.load_shell_env()
        collection = Collection.from_module(
            module, loaded_from=parent, auto_dash_names=config.tasks.auto_dash_names
        )
    except Exception as error:  # their settings may be Python
        raise BadFabfile(f"{path} can't be used: {describe_error(error, path)}") from error
    if not collection.task_names:
        raise BadFabfile(
            f"{path} has no tasks. Put @task, of `from fabric import task`, before a function of {module.__name__}."
        )
    return Fabfile(path, collection, config)


def describe_error(error: BaseException, path: Path) -> str:
    """Return a sentence on an error of a fabfile's code, with the line that raised it."""
    line, at = error.__traceback__, ""
    while line is not None:
        if Path(line.tb_frame.f_code.co_filename).parent == path.parent:
            at = f" ({Path(line.tb_frame.f_code.co_filename).name}, line {line.tb_lineno})"
        line = line.tb_next
    message = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}{': ' if message else ''}{message}{at}."


def failure(error: BaseException, path: Path, box: PinnedConnection | None) -> str | None:
    """Why a task failed, in a sentence; `None`: it ended itself with status 0."""
    if isinstance(error, Exit | SystemExit):
        code = error.code
        if code in (0, None):
            return None
        return f"it ended itself: {code if isinstance(error, SystemExit) else error.message or f'status {code}'}."
    if isinstance(error, UnexpectedExit):
        result = error.result
        if result.exited >= 0:
            return f"`{result.command}` exited with status {result.exited}."
        reason = "the connection broke during" if lost(error, box) else "a signal ended"
        return f"{reason} `{result.command}`."
    if isinstance(error, CommandTimedOut):
        return f"`{error.result.command}` did not end within {error.timeout:.0f} s."
    return str(error) if isinstance(error, RemoteError) else describe_error(error, path)


def lost(error: BaseException, box: PinnedConnection | None) -> bool:
    """Return whether the end of a command is unknown: its connection broke, or nobody waited for it any longer."""
    if isinstance(error, UnexpectedExit):
        result = error.result
        on_machine = isinstance(result, fabric.Result)
        return result.exited < 0 and on_machine and (box is None or not box.is_connected)
    if isinstance(error, BROKEN):
        return box is not None and not box.is_connected
    return isinstance(error, CommandTimedOut | ConnectionLost)


def _call(step: Step, context: Context) -> Any:  # noqa: ANN401 - what the task returns
    value = step.call.task(context, *step.call.args, **step.call.kwargs)
    if step.call.autoprint:
        print(value)
    return value
