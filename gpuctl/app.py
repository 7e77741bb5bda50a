"""The object that a command works with: its global options, its output and the store."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuctl.global_options import Options

if TYPE_CHECKING:
    from gpuctl.output import Output
    from inventories.disk.store import Store
    from inventories.specs.config import Config


class App:
    """The object that a command works with: its options, its output and the store."""

    def __init__(self, options: Options | None = None, output: "Output | None" = None) -> None:
        """`output`: where its output goes; `None`: to stdout and stderr."""
        self.options = options or Options()
        if output is not None:
            self.output = output
        self.cluster_named = False
        """Whether somebody typed --cluster: commands that are about all clusters are then about that one."""
        self.started_runs: set[str] = set()
        """The ids of the runs that were started with it."""
        self.asked_queues: set[str] = set()
        """Clusters whose queue it has asked for runs that have started."""

    def take_options(self, **values: str | bool | None) -> None:
        """Take over the options that were typed; `None` and False mean: not typed here.

        Part of reading the command line: `output` must not have been used before.
        """
        typed = {name: value for name, value in values.items() if value not in (None, False)}
        self.options = replace(self.options, **typed)  # type: ignore[arg-type]
        self.cluster_named |= "cluster" in typed
        self.__dict__.pop("output", None)

    @functools.cached_property
    def output(self) -> "Output":
        """The command's output."""
        from gpuctl.output import Output

        return Output(self.options)

    @functools.cached_property
    def store(self) -> "Store":
        """The store on disk, under $GPUCTL_HOME."""
        from inventories.disk.store import Store

        return Store.default()

    @property
    def config_path(self) -> Path:
        """The user's configuration, a file that may not exist."""
        from inventories.specs.config import NAME

        return self.store.home / NAME

    @functools.cached_property
    def config(self) -> "Config":
        """The values of the user's configuration. Raises InvalidInput for a file with a mistake."""
        from inventories.specs.config import read_config

        return read_config(self.config_path)

    @functools.cached_property
    def job_path(self) -> Path | None:
        """The project's gpuctl.yaml, or the file named in its place. `None`: no such file."""
        from inventories.specs.job_file import find

        return find()

    def take_cluster_of_job(self, *, reads_job: bool) -> None:
        """Take the cluster's name from the project's file, unless a user typed one. Raises InvalidInput.

        `reads_job`: True if the command reads its job from the file, too.
        """
        if self.cluster_named or self.job_path is None:
            return
        from inventories.errors import InvalidInput
        from inventories.specs.job_file import cluster_of

        try:
            name = cluster_of(self.job_path)
        except InvalidInput as error:
            without = "-f none leaves the file out" if reads_job else "--cluster NAME does without the file"
            raise InvalidInput(f"{error} {without}.") from error
        if name:
            self.options = replace(self.options, cluster=name)
            self.__dict__.pop("output", None)
