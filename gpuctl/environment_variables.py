"""Variables for the ranks, as they are typed: `--env K=V`, or `--env K` for its value here."""

import os
from collections.abc import Mapping

from gpuctl.errors import Usage
from inventories.text import did_you_mean
from remote.shared.constants import (
    JOB_ID_VARIABLE,
    LAUNCHED_VARIABLE,
    METRICS_VARIABLE,
    RUN_DIR_VARIABLE,
    RUN_ID_VARIABLE,
)

LAUNCHER_VARIABLES = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
})  # fmt: skip
"""Variables that torchrun sets for each rank, in place of any value that it inherits."""
RUN_VARIABLES = frozenset(
    {LAUNCHED_VARIABLE, RUN_ID_VARIABLE, JOB_ID_VARIABLE, RUN_DIR_VARIABLE, METRICS_VARIABLE}
)
"""Variables that gpuctl sets for each run or rank, in place of any value that it inherits."""


def variable(word: str, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Name and value. Raises Usage for an invalid name, one that is not set here, and one that the launcher sets."""
    name, equals, value = word.partition("=")
    if not name.replace("_", "a").isalnum() or name[:1].isdigit():
        raise Usage(
            f"--env {word!r} has no valid name: write --env NAME=VALUE, or --env NAME for its value here."
        )
    if name in LAUNCHER_VARIABLES | RUN_VARIABLES:
        setter = "the launcher" if name in LAUNCHER_VARIABLES else "gpuctl"
        raise Usage(
            f"--env {name} is not possible: {setter} sets {name} for every rank. Leave it out. The number of ranks "
            "follows from --nnodes and --nproc-per-node."
        )
    if equals:
        return name, value
    if name not in environ:
        raise Usage(
            f"There is no variable {name} here{did_you_mean(name, environ) or '.'} Set it first (export {name}=…), "
            f"or write --env {name}=VALUE."
        )
    return name, environ[name]
