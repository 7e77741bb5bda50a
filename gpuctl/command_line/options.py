"""Options of the command line: the global ones, and those that several commands share.

    @click.command()
    @common_options
    @click.option("--rank", type=int)
    def command(app: App, rank: int | None) -> int | None: ...

A command returns its exit status, or None for 0. Options given before and after the command's name are
put together here. For commands whose tail belongs to somebody else there are `TAIL` and `ScriptCommand`; options that
several commands which start ranks have stand here, too.
"""

import functools
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click

from gpuctl.app import App
from gpuctl.command_line import completions, root_help
from gpuctl.errors import Usage
from gpuctl.global_options import Options
from gpuctl.text import dashed
from inventories.did_you_mean import nearest

TAIL: dict[str, Any] = {"allow_interspersed_args": False, "token_normalize_func": dashed}
"""`context_settings` of a command whose first argument ends its options: the rest is left as it is.

The rest is then taken by `@click.argument("args", nargs=-1, type=click.UNPROCESSED)`. A `--` in front of it
is dropped, a later one is kept.
"""
About: TypeAlias = Literal["one", "all", "none"]
"""How many clusters a command is about."""
TYPED = "gpuctl.typed"
"""Key of a context's `meta`: the words that were typed after a `ScriptCommand`'s name."""

env_option = click.option(
    "--env",
    multiple=True,
    metavar="K=V",
    help="Set a variable for every rank. K alone takes its value from here. Repeatable.",
)
device_option = click.option(
    "--device",
    type=click.Choice(["auto", "cpu"]),
    help="cpu: do not use GPUs. auto: refuse a machine whose GPUs can't be used (default: auto).",
)
stop_grace_option = click.option(
    "--stop-grace",
    metavar="TIME",
    help="If ranks are stopped, give them this long to save before they are killed, such as 5m (default: 30s).",
)
python_option = click.option(
    "--python", metavar="PATH", help="Use this Python on the nodes, and install nothing."
)


def install_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of what its ranks find installed: python, pip, requirements, wheels, the project."""
    for option in (
        click.option(
            "--no-install-project",
            "install_project",
            is_flag=True,
            flag_value=False,
            default=True,
            help="Do not install the project that the script is in (default: where it has a build system, editable).",
        ),
        click.option(
            "--wheels",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            help="Install from this folder of wheels, for nodes without internet access.",
        ),
        click.option(
            "--requirements",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="Install what this requirements.txt, pyproject.toml, uv.lock, pylock.toml or environment.yml lists "
            "(default: the project's).",
        ),
        click.option(
            "--pip",
            multiple=True,
            metavar="REQ",
            help="Install this, and torch, for the ranks: a package, or the project's '.[EXTRA]' or '--group NAME'. "
            "Repeatable.",
        ),
        python_option,
    ):
        function = option(function)
    return function


def run_options(app: "App", given: Mapping[str, Any]) -> Any:  # noqa: ANN401 - options of any command
    """What a command was given, as the library takes it: options have the same names there."""
    from gpuctl.environment_variables import variable

    env = dict(variable(word) for word in given["env"])
    return {**given, "env": env, "allow_large": app.options.yes}


def project_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of what is sent to the nodes: root, include."""
    for option in (
        click.option(
            "--include",
            multiple=True,
            type=click.Path(path_type=Path),
            callback=lambda _context, _parameter, paths: tuple(path.absolute() for path in paths),
            metavar="PATH",
            help="Send this file or folder too, although git ignores it. Repeatable.",
        ),
        click.option(
            "--root",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            metavar="DIR",
            help="Send this folder, which holds the current one (default: its git repository, else itself).",
        ),
    ):
        function = option(function)
    return function


def common_options(function: Callable[..., Any], *, about: About = "one") -> Callable[..., Any]:
    """Give a command the global options; `function` gets an `App` in their place, as its first argument.

    `about`: how many clusters the command is about, which is what --cluster means there.
    """

    @functools.wraps(function)
    def with_app(**kwargs: Any) -> Any:  # noqa: ANN401 - whatever the command takes and returns
        context = click.get_current_context()
        app = context.ensure_object(App)
        app.give(**{name: kwargs.pop(name) for name in Options.__dataclass_fields__})
        if about == "none" and app.cluster_named:
            raise Usage(f"{context.command_path} is about no cluster: leave out --cluster.")
        if about == "one":
            app.take_cluster_of_job(reads_job="job_file" in (param.name for param in context.command.params))
        return function(app, **kwargs)

    # click shows the last in this list first: the global options come after the command's own.
    own = getattr(function, "__click_params__", [])
    with_app.__click_params__ = [*reversed(global_options(about)), *own]  # type: ignore[attr-defined]
    return with_app


every_cluster_options = functools.partial(common_options, about="all")
"""As `common_options`, for a command about all clusters, which `app.cluster_named` narrows to one."""
no_cluster_options = functools.partial(common_options, about="none")
"""As `common_options`, for a command that --cluster can mean nothing to: it is refused there."""


def global_options(about: About = "one") -> list[click.Option]:
    """The global options as click wants them, in the overview's order."""
    options = []
    for names, value, help_line in root_help.GLOBAL_OPTIONS:
        if value:  # --cluster
            only = help_line if about == "one" else "Only this cluster (default: all)."
            hidden = about == "none"
            option = click.Option(
                names, metavar=value, help=only, hidden=hidden, shell_complete=completions.clusters
            )
        else:
            option = click.Option(names, is_flag=True, help=help_line)
        options.append(option)
    return options


def json_note(app: App, command: str, what: str, words: Sequence[str]) -> str | None:
    """The note on a last --json that is not gpuctl's, where the output is for people; None: there is none.

    `command`: gpuctl's, as it is typed before the words that are another's. `what`: what these are of.
    """
    if app.options.json or words[-1:] != ("--json",):
        return None
    line = f"gpuctl {command.replace(' ', ' --json ', 1)}{shlex.join(words[:-1])}"
    return f"note: the --json at the end went to the {what}; gpuctl's own goes before it: {line.rstrip()}"


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
