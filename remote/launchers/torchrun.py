"""torchrun: one on each node, which starts the node's ranks. Nothing has to run before it."""

from collections.abc import Mapping, Sequence
from typing import Any

from inventories.machine import Machine
from inventories.runs.run import Run, RunNode
from remote.facts import Facts
from remote.launchers import Launcher, Service, launch_spec
from remote.launchers.rank_command import Script
from remote.launchers.rank_environment import rank_environment
from remote.sessions import node_payload

AGENT_S = 60.0
"""How much longer than gpuctl torchrun waits for its ranks after a signal."""


class Torchrun(Launcher):
    """Starts every rank."""

    title = "torchrun"
    starts = "torchrun loads torch and starts"

    def planned(self, machines: Sequence[Machine], facts: Mapping[str, Facts]) -> "TorchrunService":
        """Return the service."""
        return TorchrunService()


class TorchrunService(Service):
    """torchrun on the nodes of a run."""

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
        """Return the launch of a node's torchrun."""
        fact = facts[node.name]
        # torchrun has a grace of its own, 30 s: gpuctl's is the one that counts.
        later = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": f"{run.stop_grace_s + AGENT_S:.0f}"}
        environment = later | rank_environment(run, node, fact, cores=cores[node.name], env=env)
        words = argv(run, node, fact, script, cwd)
        return launch_spec(node, fact, words, environment, grace_s=run.stop_grace_s)


launcher = Torchrun()


def argv(run: Run, node: RunNode, facts: Facts, script: Script, cwd: str) -> list[str]:
    """Return the command line of torchrun on one node, or of our own torchrun that forks the built-in job's ranks.

    A fixed number of nodes uses the static rendezvous at node 0's private address: it has no election that
    could hang, and gpuctl itself watches the nodes. Each rank is started through our `rank`, which
    keeps its log, metrics and exit status, in the project's folder; torchrun itself runs in the run's own
    folder, out of reach of modules in the project that are named like the standard library's.
    """
    options = [
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
    ]
    if script.kind == "built-in":
        words = ("forked_ranks", node.run_dir, cwd, *options, "--", script.target, *script.args)
        return node_payload.argv_on_node(facts.python, facts.home, *words, isolated=False)
    wrapper = node_payload.argv_on_node(facts.python, facts.home, "rank", node.run_dir, cwd, "--")
    command = script.command(facts.python)
    return [facts.python, "-m", "torch.distributed.run", *options, "--no-python", *wrapper, *command]
