"""The global options of the command line."""

from dataclasses import dataclass

DEFAULT_CLUSTER = "default"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The global options, as they hold for one command."""

    cluster: str = DEFAULT_CLUSTER
    json: bool = False
    yes: bool = False
    verbose: bool = False
    no_color: bool = False
