"""A launcher as mpirun is one: plain processes, told their numbers by the environment. The template for another one.

Imported by a gpuctl before its commands, it is there as `--mode plain`.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from inventories.machine import Machine
from inventories.run import Run
from inventories.store import ClusterFolder
from remote.checks.facts import Facts, cores_of_a_node
from remote.checks.finding import Finding
from remote.launchers import LAUNCHERS, Say
from remote.launchers.python_packages import same_torch
from remote.launchers.rank_command import Script
from remote.launchers.rank_environment import rank_environment
from remote.sessions import payload
from remote.sessions.session import Node

LAUNCHERS["plain"] = __name__

REQUIREMENTS = ("torch",)
PHASE: str | None = None
START = """
import os, subprocess, sys
first, count, world, address, port = sys.argv[1:6]
ranks = [
    subprocess.Popen(sys.argv[6:], env={
        **os.environ, "RANK": str(int(first) + local), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": count,
        "WORLD_SIZE": world, "MASTER_ADDR": address, "MASTER_PORT": port,
    })
    for local in range(int(count))
]
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""


def findings(facts: Mapping[str, Facts]) -> list[Finding]:
    return same_torch(facts)


def drives(*, built_in: bool, search: bool) -> bool:
    return False


def start(
    nodes: Mapping[str, Node], facts: Mapping[str, Facts], cluster: ClusterFolder, say: Say, *, most: int
) -> "Plain":
    return Plain()


def planned(machines: Sequence[Machine], facts: Mapping[str, Facts]) -> "Plain":
    return Plain()


def takes_part(node: Node) -> bool:
    return True


class Plain:
    daemons: Mapping[str, Sequence[str]] = {}

    def launches(
        self,
        run: Run,
        script: Script,
        facts: Mapping[str, Facts],
        code: Mapping[str, str],
        env: Mapping[str, str],
    ) -> dict[str, dict[str, Any]]:
        cores = cores_of_a_node(facts)
        found = {}
        for node in run.nodes:
            fact = facts[node.name]
            numbers = [node.first_rank, node.nproc, run.world_size, run.master_addr, run.master_port]
            rank = payload.argv_on_node(fact.python, fact.home, "rank", node.run_dir, code[node.name], "--")
            found[node.name] = {
                "run_dir": node.run_dir,
                "node": node.name,
                "argv": [fact.python, "-c", START, *map(str, numbers), *rank, *script.command(fact.python)],
                "env": rank_environment(run, node, fact, cores=cores[node.name], wished=env),
                "path_prefix": str(PurePosixPath(fact.python).parent),
                "grace_s": 5.0,
            }
        return found

    def join(self, nodes: Mapping[str, Node], machine: Machine, facts: Mapping[str, Facts]) -> None: ...
