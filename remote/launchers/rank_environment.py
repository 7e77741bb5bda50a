"""The environment of the ranks on one node: NCCL, OMP, ids of run and job. Pure."""

from collections.abc import Mapping
from pathlib import PurePosixPath

from inventories.runs.run import Run, RunNode
from remote.facts import Facts
from remote.launchers import nccl
from remote.shared import constants


def rank_environment(
    run: Run, node: RunNode, facts: Facts, *, cores: int, env: Mapping[str, str]
) -> dict[str, str]:
    """Variables for the launcher, inherited by every rank of the node. The user's values win.

    The launcher adds RANK, WORLD_SIZE, MASTER_ADDR and the like; the watcher around each rank adds
    GPUCTL_METRICS, a file a rank.
    """
    environment = {
        constants.RUN_ID_VARIABLE: run.run,
        constants.JOB_ID_VARIABLE: run.job,
        constants.RUN_DIR_VARIABLE: node.run_dir,
        "OMP_NUM_THREADS": str(max(1, cores // node.nproc)),
    }
    if node.gpus:
        share = cores * len(node.gpus) // facts.driver.listed
        environment |= {
            constants.VISIBLE: ",".join(node.gpus),
            "OMP_NUM_THREADS": str(max(1, share // node.nproc)),
        }
    if run.commit is not None:
        environment[constants.COMMIT_VARIABLE] = run.commit.sha
        environment[constants.DIRTY_VARIABLE] = str(int(run.commit.dirty))
    environment |= nccl.variables(facts, master_addr=run.master_addr, nodes=len(run.nodes))
    return {**environment, **compiled_code(facts, node.name), **env}


def compiled_code(facts: Facts, name: str) -> dict[str, str]:
    """Return the variables by which torch and Triton keep compiled code in the environment of the node `name`.

    The next run finds it, also after a restart of the machine, and `gpuctl clean` deletes it with the environment.
    Nodes can share a home folder: each has a folder of its own.

    Returns:
        The variables, without variables that the node sets itself. Empty: the ranks use a Python of the machine, and
        torch keeps the code in /tmp.
    """
    environments = PurePosixPath(facts.home) / constants.NODE_FOLDER / constants.ENVIRONMENTS
    parents = PurePosixPath(facts.python).parents
    environment = next((path for path in parents if path.parent == environments), None)
    if environment is None:
        return {}
    folder = environment / "compiled" / name
    return {
        variable: f"{folder}/{kind}"
        for variable, kind in constants.COMPILED_CODE.items()
        if variable not in facts.compiled_code
    }
