"""The torchrun launcher: what is started on each node. Pure text, shown by `train --dry-run` as it is run."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from inventories.run import Run, RunNode
from remote import payload
from remote.environment import rank_environment
from remote.facts import Facts
from remote.script import Script

STOP_GRACE_S = 10.0


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
