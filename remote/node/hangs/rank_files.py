"""Files through which a rank and its node talk: the rank's hook, and the files of its stacks."""

import os
from pathlib import Path
from typing import Dict, Mapping, Optional

from remote.node.hangs.rank_hook.sitecustomize import ALONE, HOOK_VARIABLE, JOINED
from remote.shared.constants import HANG_AFTER_VARIABLE, HANG_OFF, HANGS, RANK_DUMP

HOOK_FOLDER = str(Path(__file__).parent / "rank_hook")
STACKS = ".stacks"
"""The stacks that a rank's process writes of its threads, on request."""
RECORDED = "TORCH_FR_BUFFER_SIZE"
"""How many collectives torch's flight recorder keeps in mind."""
OLDER_NAMES = {
    RECORDED: "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}
"""Torch takes the value of the newer name where both are set."""


def rank_files(run_dir: Path, rank: int) -> str:
    """Return the path of a rank's files without their suffixes, in a folder that no other user sees."""
    return str(run_dir / HANGS / "rank-{}".format(rank))


def has_joined(run_dir: Path, rank: int) -> Optional[bool]:
    """Return whether a rank's process made a store of torch for several ranks. `None`: its hook wrote no note."""
    files = rank_files(run_dir, rank)
    return True if os.path.exists(files + JOINED) else False if os.path.exists(files + ALONE) else None


def hook_environment(environment: Mapping[str, str], run_dir: Path, rank: int) -> Dict[str, str]:
    """Return the variables of a rank's process in addition to `environment`, so that it reports its activity.

    The user's settings win. Makes the folder of its files.
    """
    variables = recorder_environment(environment, run_dir)
    if not variables:
        return {}
    paths = environment.get("PYTHONPATH")
    variables["PYTHONPATH"] = HOOK_FOLDER + os.pathsep + paths if paths else HOOK_FOLDER
    variables[HOOK_VARIABLE] = rank_files(run_dir, rank)
    return variables


def recorder_environment(environment: Mapping[str, str], run_dir: Path) -> Dict[str, str]:
    """Return what makes torch's flight recorder record; nothing where the run is not watched. Makes the folder."""
    if environment.get(HANG_AFTER_VARIABLE) == HANG_OFF:
        return {}
    (run_dir / HANGS).mkdir(mode=0o700, exist_ok=True)
    recorder = {
        RECORDED: "2000",
        # NCCL's own watch writes the recorder's content at its timeout. With stacks in it, it could wait for
        # Python's lock for ever.
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_INCLUDE_STACK_TRACE": "False",
        "TORCH_FR_DUMP_TEMP_FILE": str(run_dir / RANK_DUMP.format("")),
    }
    return {
        name: value
        for name, value in recorder.items()
        if name not in environment and OLDER_NAMES.get(name, name) not in environment
    }


def hook_for_ranks(run_dir: Path) -> Dict[str, str]:
    """Return where ranks that others start find the hook's module, and their files, with `{}` for the rank."""
    return {"module": HOOK_FOLDER + "/sitecustomize.py", "files": str(run_dir / HANGS / "rank-{}")}
