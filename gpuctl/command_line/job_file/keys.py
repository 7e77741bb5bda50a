"""The keys of a job's file, made from the options of `gpuctl train`."""

from functools import cache

from gpuctl.option_table.train_options import TrainSettings
from inventories.option import Option, options_of

ENVIRONMENT, RUN, TOP = "environment", "run", ""
SCRIPT, ARGUMENTS = "script", "arguments"
"""Keys under `run` that no option has."""
OTHER_WORDS = {
    "args": ARGUMENTS, "command": SCRIPT, "file": SCRIPT, "nproc": "nproc_per_node", "nodes": "nnodes",
    "env": "variables", "envs": "variables", "packages": "pip", "dependencies": "requirements", "launcher": "mode",
    "bring": "outputs", "data": "include", "setup": "cluster", "resources": "cluster",
}  # fmt: skip
"""Word of other tools → the key that has its meaning."""


@cache
def option_keys() -> tuple[Option, ...]:
    """Return every option of `gpuctl train` that has a key, in the order of the help."""
    return tuple(option for option in options_of(TrainSettings) if option.key)


def section_of(option: Option) -> str:
    """Return the key above the key of an option, or an empty text for a key at the top."""
    return option.path[0] if len(option.path) > 1 else TOP


def words_for(option: Option) -> str:
    """Return the values of an option that may be a number: `auto or a number`. Empty: it takes any text."""
    words = (option.metavar or "").split("|")
    if "N" not in (option.metavar or "").replace(":", "|").split("|"):
        return ""
    return " or ".join("a number" if word == "N" else word for word in words)
