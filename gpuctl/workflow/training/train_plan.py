"""`train --dry-run`: exactly what would be run, set and sent, by the functions that a run uses."""

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpuctl.options import App
from gpuctl.text import plural
from gpuctl.workflow.connect import connected, load_inventory
from gpuctl.workflow.training.checkpoints import goes_on
from gpuctl.workflow.training.prepare import expected_gpus
from gpuctl.workflow.training.request import TrainRequest, machines_of, what_to_install, what_to_run
from gpuctl.workflow.training.resume import resolve
from gpuctl.workflow.training.run_plan import plan_run
from remote.launchers import launcher_of
from remote.shared.constants import METRICS_VARIABLE, RANK_METRICS

RUN_ID = "RUN"
"""Stands for the id that a real run is given."""
RANK = "RANK"
"""Stands for each rank's own number."""


def train(app: App, request: TrainRequest) -> dict[str, Any]:
    """Ask the nodes for their facts and print the launch; nothing is sent, written or started."""
    from remote.checks import facts, preflight
    from remote.files.tree import human_bytes
    from remote.sessions.fanout import fan_out, values

    request, earlier = resolve(app, request)
    folder = app.store.cluster(app.options.cluster)
    inventory = load_inventory(folder)
    machines = machines_of(inventory, request)
    script, tree, destination = what_to_run(app, request, inventory)
    wanted = what_to_install(request, tree, machines, app.output.say)
    peers = tuple(machine.private_ip for machine in machines)
    with connected(folder, machines, at_least=request.min_nodes, say=app.output.say) as nodes:
        machines = [machine for machine in machines if machine.name in nodes]
        found = values(fan_out(lambda node: facts.gather(node, peers), nodes))
    if request.on_cpu:
        found = {name: facts.without_gpus(fact) for name, fact in found.items()}
    code = {name: destination.replace("~", fact.home, 1) for name, fact in found.items()}
    run = plan_run(RUN_ID, inventory, request, script, machines, found, datetime.now(UTC), {})
    launcher = launcher_of(run.mode)
    service = launcher.planned(machines, found)
    launches = service.launches(run, script, found, code, request.rank_env)
    environments = {name: environment_of(launch) for name, launch in launches.items()}
    problems = preflight.findings(
        found,
        master=machines[0],
        mode=run.mode,
        installed=wanted is None,
        wished=request.env,
        expected=expected_gpus(inventory, on_cpu=request.on_cpu),
    )
    say = app.output.say
    say(
        f"send {plural(len(tree.entries), 'file')}, {human_bytes(tree.total_bytes)}, of {tree.root} to {destination}"
    )
    if wanted is not None:
        say(
            f"build an environment of {wanted.source} on each node, where it is not there, with its Python below"
        )
    if earlier is not None:
        say(goes_on(earlier, run))
    say(f"rendezvous at {run.master_addr}:{run.master_port} (a free port is chosen for each run)")
    for name, argv in service.daemons.items():
        say(
            f"\n{name}, unless {launcher.title} runs there already ({{NAME}}: a free port, a folder of its own):"
        )
        say(f"  {shlex.join(argv)}")
    for name, launch in launches.items():
        say(f"\n{name}:")
        for key, value in sorted(environments[name].items()):
            # A wished value may be a secret; its name is enough to know that it is set.
            shown = value if key == "PATH" else shlex.quote(value)  # it has $PATH in it
            say(f"  {key}={'…' if key in request.env else shown}")
        say(f"  {shlex.join(launch['argv'])}")
    for finding in problems:
        say(f"\n{finding.node}: {finding.problem}. Fix: {finding.fix}.")
    return {
        "cluster": inventory.cluster,
        "mode": run.mode,
        "script": run.script,
        "resumed_from": earlier.run.run if earlier else None,
        "nnodes": len(run.nodes),
        "world_size": run.world_size,
        "files": len(tree.entries),
        "bytes": tree.total_bytes,
        "daemons": [{"node": name, "argv": argv} for name, argv in service.daemons.items()],
        "nodes": [
            {
                "node": name,
                "argv": launch["argv"],
                "env": {
                    key: None if key in request.env else value for key, value in environments[name].items()
                },
                "cwd": code[name],
            }
            for name, launch in launches.items()
        ],
        "findings": [
            {"node": finding.node, "problem": finding.problem, "fix": finding.fix, "fatal": finding.fatal}
            for finding in problems
        ],
    }


def environment_of(launch: Mapping[str, Any]) -> dict[str, str]:
    """What a node's ranks find set, with what is added where they are started, but for torchrun's own (RANK, …)."""
    environment: dict[str, str] = {
        **launch["env"],
        METRICS_VARIABLE: f"{launch['run_dir']}/{RANK_METRICS.format(RANK)}",
    }
    return environment | {"PATH": f"{launch['path_prefix']}:{environment.get('PATH', '$PATH')}"}
