"""The command line: finds the command, catches every error, picks the exit status.

Commands live in `gpuctl.commands`, one module each, and are imported when they are called. This is the one
place that turns errors into a sentence and a status: our own classes carry theirs, as `exit_status`.
"""

import itertools
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from gpuctl.app import App
from gpuctl.command_line import root_help
from gpuctl.command_line.options import global_options, no_such_option
from gpuctl.errors import Attention, Declined, GpuctlError
from gpuctl.global_options import Options
from gpuctl.output import silence
from gpuctl.text import for_cluster
from inventories.text import did_you_mean

INTERRUPTED = 130
_EXTRA = re.compile(r"Got unexpected extra arguments? \((?P<words>.*)\)", re.DOTALL)
JSON_VARIABLE = "GPUCTL_JSON"
"""Set to 1 it is --json for every command."""


class Commands(click.Group):
    """The commands of the overview's table, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the overview."""
        return list(root_help.COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command of a name. None: it does not exist."""
        if cmd_name not in root_help.COMMANDS and cmd_name not in root_help.HIDDEN:
            return None
        command = import_module(root_help.module_of(cmd_name)).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command and its arguments. Raises UsageError with the nearest name."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is None and not ctx.resilient_parsing:
            raise click.UsageError(
                f"There is no command {name!r}{did_you_mean(name, root_help.COMMANDS)}", ctx
            )
        return name, command, args[1:]

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002
        """Return the overview of all commands."""
        return root_help.text()

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Return the names of commands from the table, without importing the commands; else options."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=help_line)
            for name, help_line in root_help.COMMANDS.items()
            if name.startswith(incomplete)
        ]


@click.pass_context
def _take_options(context: click.Context, /, **options: str | bool | None) -> None:
    context.ensure_object(App).take_options(**options)


def _version(context: click.Context, _parameter: click.Parameter, requested: bool) -> None:
    """Print the version and end."""
    if requested and not context.resilient_parsing:
        import gpuctl

        click.echo(f"gpuctl {gpuctl.version()}")
        context.exit()


group = Commands(
    name="gpuctl",
    callback=_take_options,
    params=[
        *global_options(),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Show the version.",
        ),
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str]) -> int:
    """Run gpuctl; returns the exit status. Every error ends here."""
    app = App(Options(json=os.environ.get(JSON_VARIABLE, "") not in ("", "0")))
    try:
        status = group.main(list(arguments), prog_name="gpuctl", standalone_mode=False, obj=app)
        if sys.stdout:
            sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except BrokenPipeError:
        silence(sys.stdout)
        return 1
    except (KeyboardInterrupt, click.Abort) as error:
        return _report(app, "Interrupted", "Interrupted.", INTERRUPTED, error)
    except click.ClickException as error:
        words = itertools.takewhile(lambda word: word != "--", arguments)  # a script's words follow
        if not app.options.json and "--json" in words:  # the line was not read to its end
            app.take_options(json=True)
        return _report(
            app, "Usage", _familiar(arguments, error) or _usage_message(arguments, error), 2, error
        )
    except Exception as error:  # noqa: BLE001 - nobody is to see a traceback who did not ask for it
        return _report(app, type(error).__name__, *_sentence(error), error)


def _sentence(error: Exception) -> tuple[str, int]:
    """Return the sentence for an error, and its exit status."""
    if isinstance(error, GpuctlError):
        return str(error), error.exit_status
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}.", 1
    import traceback  # only an error needs it

    text = " ".join(traceback.format_exception_only(error)[-1].split())
    return f"{text.rstrip('.')}. This is a bug in gpuctl; --verbose shows where.", 1


def _usage_message(arguments: Sequence[str], error: click.ClickException) -> str:
    """Return the message of click as a sentence."""
    message = (
        no_such_option(error) if isinstance(error, click.NoSuchOption) else error.format_message()
    ).strip()
    if isinstance(error, click.UsageError) and (extra := _EXTRA.fullmatch(message)):
        message = _extra_words(error, extra["words"])
    message = message if message.endswith((".", "?", "!", ")")) else message + "."
    context = getattr(error, "ctx", None)
    if context:
        path = context.command_path
    else:  # click does not name the command if an option lacks its value
        from gpuctl.command_line import other_tools

        at = other_tools.command_at(arguments)
        path = (
            "gpuctl" if at is None or arguments[at] not in root_help.COMMANDS else f"gpuctl {arguments[at]}"
        )
    return f"{message} See `{path} --help`."


def _extra_words(error: click.UsageError, words: str) -> str:
    """Return the sentence on words that are more than a command takes."""
    name = error.ctx.command_path if error.ctx else "gpuctl"
    params = error.ctx.command.params if error.ctx else ()
    names = [param.name for param in params if isinstance(param, click.Argument)]
    if not names:
        return f"{name} takes no {words!r}"
    limit = f"one {names[0]} at a time" if len(names) == 1 else f"{' and '.join(map(str, names))} alone"
    return f"{name} takes {limit}: leave out {words}"


def _familiar(arguments: Sequence[str], error: click.ClickException) -> str | None:
    """Return the answer to a line that another tool would take. None: no tool would."""
    refused = next((each for each in (error, error.__cause__) if isinstance(each, click.NoSuchOption)), None)
    if refused is None and type(error) is not click.UsageError:
        return None  # a value that can't be used, or one that is missing
    from gpuctl.command_line import other_tools

    context = refused.ctx if refused else None
    options = {name for param in context.command.params for name in param.opts} if context else ()
    option = refused.option_name if refused else None
    return other_tools.answer(arguments, root_help.COMMANDS, options, refused=option)


def _report(app: App, kind: str, message: str, status: int, error: BaseException) -> int:
    """Print an error for people, and with --json also as the one document; returns the status."""
    output, message = app.output, for_cluster(message, app.options.cluster)
    if app.options.verbose:
        import traceback

        output.say("".join(traceback.format_exception(error)).rstrip(), "dim")
    if isinstance(error, Declined):
        output.say(message)
    else:
        output.error(message)
    if app.options.json and not output.printed_document:
        document: dict[str, Any] = {"error": {"type": kind, "message": message, "exit_status": status}}
        if isinstance(error, Attention) and error.result is not None:  # the results before the error
            from inventories.codec import to_json  # only an error needs it

            document = to_json(error.result) | document
        output.json(document)
    return status
