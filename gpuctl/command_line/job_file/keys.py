"""The keys of a job's file, made from the options of `gpuctl train`: what is an option there is a key here."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import click

from gpuctl.command_line import root_help
from gpuctl.command_line.options import env_option, install_options, project_options
from gpuctl.global_options import Options

ENVIRONMENT, RUN, TOP = "environment", "run", ""
SCRIPT, ARGUMENTS = "script", "arguments"
"""Keys under `run` for what is no option on a command line."""
NAMES = {"env": "variables", "bring": "outputs"}
"""Option → its key, where that has another name."""
ONE_RUN = frozenset({"resume", "resume_from", "fresh", "share_outputs", "skip_preflight", "dry_run"})
"""Options that are about one run, and stand in no file."""
OTHER_WORDS = {
    "args": ARGUMENTS, "command": SCRIPT, "file": SCRIPT, "nproc": "nproc_per_node", "nodes": "nnodes",
    "env": "variables", "envs": "variables", "packages": "pip", "dependencies": "requirements", "launcher": "mode",
    "bring": "outputs", "data": "include", "setup": "cluster", "resources": "cluster",
}  # fmt: skip
"""What people write who know other tools → the key that they mean."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key that says what an option says."""

    section: str
    """The key that it is under; empty: it is at the top."""
    option: click.Option

    @property
    def field(self) -> str:
        """The option's name in programs: `nproc_per_node`."""
        assert self.option.name is not None
        return self.option.name

    @property
    def name(self) -> str:
        """The last part of its path in the file."""
        return NAMES.get(self.field, self.field)

    @property
    def path(self) -> tuple[str, ...]:
        """Where it is in the file."""
        return (self.section, self.name) if self.section else (self.name,)

    @property
    def takes_number(self) -> bool:
        """Whether text that it takes may be a number: `auto|N`."""
        return "N" in (self.option.metavar or "").replace(":", "|").split("|")

    @property
    def values(self) -> str:
        """What it takes, in words: `auto or a number`; empty where any text may do."""
        words = (self.option.metavar or "").split("|") if self.takes_number else []
        return " or ".join("a number" if word == "N" else word for word in words)


def names_of(*decorators: Callable[..., Any]) -> frozenset[str]:
    """The names of the options that these give a command."""

    def nothing() -> None:
        """Take the options."""

    for decorate in decorators:
        decorate(nothing)
    return frozenset(param.name for param in nothing.__click_params__)  # type: ignore[attr-defined]


@cache
def option_keys() -> tuple[Key, ...]:
    """Every key that says what an option of `gpuctl train` says, in that order."""
    environment = names_of(install_options, env_option)
    top = names_of(project_options) | {"bring"}
    train: click.Command = import_module(root_help.module_of("train")).command
    keys = []
    for option in train.params:
        if not isinstance(option, click.Option) or not option.expose_value:
            continue
        if option.name not in ONE_RUN | frozenset(Options.__dataclass_fields__):
            section = ENVIRONMENT if option.name in environment else TOP if option.name in top else RUN
            keys.append(Key(section=section, option=option))
    return tuple(keys)
