"""Options of the command line, as click takes them.

    @click.command()
    @common_options
    @click.option("--rank", type=int)
    def command(app: App, rank: int | None) -> int | None: ...

A command returns its exit status; None stands for 0. `common_options` merges options before and after the command's
name. `TAIL` and `ScriptCommand` are for commands whose last arguments belong to a script. `command_options` makes the
options that `gpuctl.option_table` declares.
"""

import functools
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click

from gpuctl.app import App
from gpuctl.command_line import completions, root_help
from gpuctl.errors import Usage
from gpuctl.global_options import Options
from gpuctl.text import dashed
from inventories.option import Option, in_order, options_of
from inventories.text import nearest

TAIL: dict[str, Any] = {"allow_interspersed_args": False, "token_normalize_func": dashed}
"""`context_settings` of a command whose first argument ends its options: the rest is left as it is.

The rest is then taken by `@click.argument("args", nargs=-1, type=click.UNPROCESSED)`. A `--` in front of it
is dropped, a later one is kept.
"""
About: TypeAlias = Literal["one", "all", "optional", "none"]
"""How many clusters a command is about."""
CLUSTER_HELP: Mapping[About, str] = {
    "all": "Only this cluster (default: all).",
    "optional": "For the machines of this cluster (default: no cluster is asked).",
}
"""Help for --cluster in commands that are not about one cluster."""
TYPED = "gpuctl.typed"
"""Key of a context's `meta`: the words that were typed after a `ScriptCommand`'s name."""


def command_options(
    command: str, *classes: type, more: Sequence[Option] = (), without: Collection[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options that these classes declare for it.

    `more`: options that only the command reads. `without`: keywords of options that it does not have.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        options = in_order([*options_of(*classes, command=command), *more])
        parameters = [
            click_option(option, command)
            for option in options
            if option.flags and option.keyword not in without
        ]
        below = getattr(function, "__click_params__", [])
        function.__click_params__ = [*below, *reversed(parameters)]  # type: ignore[attr-defined]
        return function

    return decorate


def click_option(option: Option, command: str = "") -> click.Option:
    """Return click's form of an option, with its help in a command."""
    about: dict[str, Any] = {"default": option.default} if option.default not in (None, ()) else {}
    text = option.help_in.get(command, option.help)
    if option.kind is bool:
        about |= {"default": option.default}
        if not any("/" in flag for flag in option.flags):
            about |= {"is_flag": True, "flag_value": not option.default}
    else:
        about |= {"type": _type(option), "multiple": option.multiple, "metavar": option.metavar}
        about |= {"show_default": bool(about.get("default") is not None and "(default" not in text)}
    if option.completes:
        about["shell_complete"] = getattr(completions, option.completes)
    return click.Option([*option.flags, option.keyword], help=text, **about)


def _type(option: Option) -> Any:  # noqa: ANN401 - one of click's types
    """Return click's type of an option's values."""
    if isinstance(option.kind, tuple):
        return click.Choice(option.kind)
    if option.kind is Path:
        to_file, to_folder = option.exists != "folder", option.exists != "file"
        return click.Path(
            path_type=Path, exists=option.exists is not None, file_okay=to_file, dir_okay=to_folder
        )
    lowest = option.min if option.above is None else option.above
    if lowest is None and option.max is None:
        return option.kind
    bounded: Any = click.IntRange if option.kind is int else click.FloatRange
    return bounded(lowest, option.max, min_open=option.above is not None)


def run_options(app: "App", typed: Mapping[str, Any]) -> Any:  # noqa: ANN401 - keywords of any command
    """Return a command's options as the library's keywords have them."""
    from gpuctl.environment_variables import variable

    env = dict(variable(word) for word in typed["env"])
    include = [path.absolute() for path in typed["include"]]
    return {**typed, "env": env, "include": include, "allow_large": app.options.yes}


def common_options(function: Callable[..., Any], *, about: About = "one") -> Callable[..., Any]:
    """Give a command the global options; `function` gets an `App` in their place, as its first argument.

    `about`: how many clusters the command is about, which is what --cluster means there.
    """

    @functools.wraps(function)
    def with_app(**kwargs: Any) -> Any:  # noqa: ANN401 - whatever the command takes and returns
        context = click.get_current_context()
        app = context.ensure_object(App)
        app.take_options(**{name: kwargs.pop(name) for name in Options.__dataclass_fields__})
        if about == "none" and app.cluster_named:
            raise Usage(f"{context.command_path} is about no cluster: leave out --cluster.")
        if about == "one":
            app.take_cluster_of_job(reads_job="job_file" in (param.name for param in context.command.params))
        return function(app, **kwargs)

    # click shows the last in this list first: the global options come after the command's own.
    parameters = getattr(function, "__click_params__", [])
    with_app.__click_params__ = [*reversed(global_options(about)), *parameters]  # type: ignore[attr-defined]
    return with_app


every_cluster_options = functools.partial(common_options, about="all")
"""As `common_options`, for a command about all clusters, which `app.cluster_named` narrows to one."""
no_cluster_options = functools.partial(common_options, about="none")
"""As `common_options`, for a command that refuses --cluster."""
optional_cluster_options = functools.partial(common_options, about="optional")
"""As `common_options`, for a command that is about a cluster only if --cluster was typed: `app.cluster_named`."""


def region_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say where in accounts it looks: `regions`, `all_regions`, `profile`."""
    options = (
        click.option(
            "--region",
            "regions",
            multiple=True,
            metavar="R",
            help="Where to look (default: the configured one).",
        ),
        click.option("--all-regions", is_flag=True, help="Look in every region of the account."),
        click.option("--profile", metavar="NAME", help="Profile of the SDK's configuration."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def runs_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the words that choose runs, which `results_of` reads: `runs`, `last`, `tag`."""
    decorators = (
        click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=completions.runs),
        click.option("--last", type=click.IntRange(min=1), metavar="N", help="Take the last N runs."),
        click.option(
            "--tag", multiple=True, metavar="K=V", help="Take the runs with this tag. Repeatable: with all."
        ),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def global_options(about: About = "one") -> list[click.Option]:
    """The global options as click wants them, in the overview's order."""
    options = []
    for names, value, help_line in root_help.GLOBAL_OPTIONS:
        if value:  # --cluster
            about_cluster = CLUSTER_HELP.get(about, help_line)
            hidden = about == "none"
            option = click.Option(
                names, metavar=value, help=about_cluster, hidden=hidden, shell_complete=completions.clusters
            )
        else:
            option = click.Option(names, is_flag=True, help=help_line)
        options.append(option)
    return options


def json_note(app: App, command: str, owner: str, words: Sequence[str]) -> str | None:
    """Return a note on a last --json that gpuctl does not read, if the output is for people.

    `command`: the command of gpuctl, as typed before the other words. `owner`: the reader of these words.
    """
    if app.options.json or words[-1:] != ("--json",):
        return None
    line = f"gpuctl {command.replace(' ', ' --json ', 1)}{shlex.join(words[:-1])}"
    return f"note: the --json at the end went to the {owner}; gpuctl's own goes before it: {line.rstrip()}"


def no_such_option(error: click.NoSuchOption) -> str:
    """The sentence for an option that is not there, with the one that is most like it."""
    names = {name.lstrip("-"): name for name in error.possibilities or ()}
    near = nearest(error.option_name.lstrip("-"), names, limit=1, cutoff=0.7)  # dashes make no likeness
    meant = f"; did you mean '{names[near[0]]}'?" if near else ""
    return f"No such option {error.option_name!r}{meant or '.'}"


class ScriptCommand(click.Command):
    """A command that runs a script: what follows its name, or `-m MODULE`, is the script's.

    As with Python itself, `-m MODULE` ends the options. Use it with `context_settings=TAIL`, an option `-m`
    and an argument that takes the rest. `tail_hint`: where options go that are not gpuctl's, with an example.
    """

    def __init__(self, *args: Any, tail_hint: str = "", **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self.tail_hint = tail_hint

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """End the options after `-m MODULE`, then parse as usual."""
        ctx.meta[TYPED] = tuple(args)
        try:
            return super().parse_args(ctx, _end_options_after_module(args, self.params))
        except click.NoSuchOption as error:
            raise click.UsageError(f"{no_such_option(error)} {self.tail_hint}".rstrip(), ctx) from error


def _end_options_after_module(args: list[str], params: list[click.Parameter]) -> list[str]:
    """`args` with `--` put in after `-m MODULE`, where that is an option and not the script's own."""
    takes_value = {
        name: param.nargs
        for param in params
        if isinstance(param, click.Option) and not param.is_flag and not param.count
        for name in param.opts
    }
    at = 0
    while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "--"):
        word = args[at]
        at += 1 + takes_value.get(dashed(word), 0)
        if word.startswith("-m") and at <= len(args):
            return [*args[:at], "--", *args[at:]]
    if args[at : at + 2] == ["--", "-m"]:  # says that all after the module is the module's
        return [*args[:at], *args[at + 1 : at + 3], "--", *args[at + 3 :]]
    return args
