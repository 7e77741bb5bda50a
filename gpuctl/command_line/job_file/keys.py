"""The keys of a job's file, made from the options of `gpuctl train`: what is an option there is a key here."""

from dataclasses import dataclass
from functools import cache

import click

from gpuctl.command_line.options import click_option
from gpuctl.option_table.train_options import TrainSettings
from inventories.option import options_of

ENVIRONMENT, RUN, TOP = "environment", "run", ""
SCRIPT, ARGUMENTS = "script", "arguments"
"""Keys under `run` for what is no option on a command line."""
OTHER_WORDS = {
    "args": ARGUMENTS, "command": SCRIPT, "file": SCRIPT, "nproc": "nproc_per_node", "nodes": "nnodes",
    "env": "variables", "envs": "variables", "packages": "pip", "dependencies": "requirements", "launcher": "mode",
    "bring": "outputs", "data": "include", "setup": "cluster", "resources": "cluster",
}  # fmt: skip
"""What people write who know other tools → the key that they mean."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key that says what an option says."""

    path: tuple[str, ...]
    """Where it is in the file."""
    option: click.Option

    @property
    def section(self) -> str:
        """The key that it is under; empty: it is at the top."""
        return self.path[0] if len(self.path) > 1 else TOP

    @property
    def field(self) -> str:
        """The option's name in programs: `nproc_per_node`."""
        assert self.option.name is not None
        return self.option.name

    @property
    def name(self) -> str:
        """The last part of its path in the file."""
        return self.path[-1]

    @property
    def takes_number(self) -> bool:
        """Whether text that it takes may be a number: `auto|N`."""
        return "N" in (self.option.metavar or "").replace(":", "|").split("|")

    @property
    def values(self) -> str:
        """What it takes, in words: `auto or a number`; empty where any text may do."""
        words = (self.option.metavar or "").split("|") if self.takes_number else []
        return " or ".join("a number" if word == "N" else word for word in words)


@cache
def option_keys() -> tuple[Key, ...]:
    """Return every key for an option of `gpuctl train`, in the order of its help."""
    return tuple(
        Key(path=tuple(option.key.split(".")), option=click_option(option))
        for option in options_of(TrainSettings)
        if option.key
    )
