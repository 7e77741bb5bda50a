"""torchrun: one on each node, which starts the node's ranks. Nothing has to run before it."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from inventories.machine import Machine
from inventories.run import Run, RunNode
from inventories.store import ClusterFolder
from remote.checks.facts import Facts, cores_of_a_node
from remote.checks.finding import Finding
from remote.launchers import Say
from remote.launchers.python_packages import same_torch
from remote.launchers.rank_command import Script
from remote.launchers.rank_environment import rank_environment
from remote.sessions import payload
from remote.sessions.session import Node

REQUIREMENTS = ("torch",)
PHASE: str | None = None
STOP_GRACE_S = 10.0


def findings(facts: Mapping[str, Facts]) -> list[Finding]:
    """Return where torch is missing or differs."""
    return same_torch(facts)


def drives(*, built_in: bool, search: bool) -> bool:
    """Return False: torchrun starts every rank."""
    return False


def start(
    nodes: Mapping[str, Node], facts: Mapping[str, Facts], cluster: ClusterFolder, say: Say, *, most: int
) -> "TorchrunService":
    """Start nothing."""
    return TorchrunService()


def planned(machines: Sequence[Machine], facts: Mapping[str, Facts]) -> "TorchrunService":
    """Return what `start` returns."""
    return TorchrunService()


def takes_part(node: Node) -> bool:
    """Return True: there are no drivers."""
    return True


class TorchrunService:
    """torchrun on the nodes of a run."""

    daemons: Mapping[str, Sequence[str]] = MappingProxyType({})

    def launches(
        self,
        run: Run,
        script: Script,
        facts: Mapping[str, Facts],
        code: Mapping[str, str],
        env: Mapping[str, str],
    ) -> dict[str, dict[str, Any]]:
        """Return the launch of each node's torchrun."""
        cores = cores_of_a_node(facts)
        return {
            part.name: launch_spec(
                run, part, facts[part.name], script, cwd=code[part.name], cores=cores[part.name], wished=env
            )
            for part in run.nodes
        }

    def join(self, nodes: Mapping[str, Node], machine: Machine, facts: Mapping[str, Facts]) -> None:
        """Do nothing: the machine is of the next run."""


def argv(run: Run, node: RunNode, facts: Facts, script: Script, cwd: str) -> list[str]:
    """torchrun's command line on one node.

    A fixed number of nodes uses the static rendezvous at node 0's private address: it has no election that
    could hang, and gpuctl itself watches the nodes. Each rank is started through our `rank`, which
    keeps its log, metrics and exit status, in the project's folder; torchrun itself runs in the run's own
    folder, out of reach of modules in the project that are named like the standard library's.
    """
    return [
        facts.python,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        str(len(run.nodes)),
        "--nproc-per-node",
        str(node.nproc),
        "--node-rank",
        str(node.rank),
        "--master-addr",
        run.master_addr,
        "--master-port",
        str(run.master_port),
        # Else each run leaves a folder in /tmp.
        "--log-dir",
        f"{node.run_dir}/torchrun",
        "--no-python",
        *payload.argv_on_node(facts.python, facts.home, "rank", node.run_dir, cwd, "--"),
        *script.command(facts.python),
    ]


def launch_spec(
    run: Run,
    node: RunNode,
    facts: Facts,
    script: Script,
    *,
    cwd: str,
    cores: int,
    wished: Mapping[str, str],
) -> dict[str, Any]:
    """What the node's runner is given: argv, environment, folder."""
    return {
        "run_dir": node.run_dir,
        "node": node.name,
        "argv": argv(run, node, facts, script, cwd),
        "env": rank_environment(run, node, facts, cores=cores, wished=wished),
        # `python` and `torchrun` inside a script are those of the interpreter that runs it.
        "path_prefix": str(PurePosixPath(facts.python).parent),
        "grace_s": STOP_GRACE_S,
    }
