"""This process's rank, from its launcher's variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from train.errors import BadEnvironment

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class DistributedEnvironment:
    """The rank of this process, and the number of ranks."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Rank among the processes of this host."""
    local_world_size: int = 1
    """Processes on this host."""


def read_environment(environ: Mapping[str, str] = os.environ) -> DistributedEnvironment:
    """Read the launcher's variables; without any of them, this is the only process. Raises BadEnvironment."""
    present = [name for name in LAUNCHER_VARIABLES if name in environ]
    if not {"RANK", "WORLD_SIZE"} & set(present):
        return DistributedEnvironment()
    missing = [name for name in LAUNCHER_VARIABLES if name not in present]
    if missing:
        raise BadEnvironment(
            f"{', '.join(present)} set but {', '.join(missing)} not. Start the job with torchrun, which sets all of "
            "them, or unset them to train in one process."
        )
    try:
        rank, world_size, local_rank, local_world_size = (
            int(environ[name]) for name in LAUNCHER_VARIABLES[:4]
        )
    except ValueError as error:
        raise BadEnvironment(
            f"{', '.join(LAUNCHER_VARIABLES[:4])} have to be whole numbers ({error}). Start the job with torchrun."
        ) from None
    return DistributedEnvironment(
        rank=rank, world_size=world_size, local_rank=local_rank, local_world_size=local_world_size
    )


def ranks_text(number: int) -> str:
    """Format as `1 rank`, `2 ranks`."""
    return f"{number} rank{'' if number == 1 else 's'}"
