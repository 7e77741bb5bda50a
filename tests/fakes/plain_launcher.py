"""A launcher like mpirun: plain processes that get their numbers from the environment. The template for others.

Imported by gpuctl before its commands, it adds `--mode plain`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from inventories.machine import Machine
from inventories.runs.run import Run, RunNode
from remote.facts import Facts
from remote.launchers import LAUNCHERS, Launcher, Service, launch_spec
from remote.launchers.rank_command import Script
from remote.launchers.rank_environment import rank_environment
from remote.sessions import node_payload

LAUNCHERS["plain"] = __name__

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


class Plain(Launcher):
    title = "plain"

    def planned(self, machines: Sequence[Machine], facts: Mapping[str, Facts]) -> "PlainService":
        return PlainService()


class PlainService(Service):
    def launch(
        self,
        run: Run,
        node: RunNode,
        script: Script,
        facts: Mapping[str, Facts],
        *,
        cores: Mapping[str, int],
        cwd: str,
        env: Mapping[str, str],
    ) -> dict[str, Any]:
        fact = facts[node.name]
        numbers = [node.first_rank, node.nproc, run.world_size, run.master_addr, run.master_port]
        rank = node_payload.argv_on_node(fact.python, fact.home, "rank", node.run_dir, cwd, "--")
        argv = [fact.python, "-c", START, *map(str, numbers), *rank, *script.command(fact.python)]
        environment = rank_environment(run, node, fact, cores=cores[node.name], env=env)
        return launch_spec(node, fact, argv, environment, grace_s=5.0)


launcher = Plain()
