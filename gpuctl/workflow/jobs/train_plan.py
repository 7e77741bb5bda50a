"""`train --dry-run`: exactly what would be run, set and sent, by the functions that a run uses."""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpuctl.app import App
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.runs.gpus import folder_of_part, with_parts
from gpuctl.workflow.runs.idle_nodes import connected_idle
from gpuctl.workflow.runs.launch import plan_run
from gpuctl.workflow.runs.outputs.checkpoints import ResumePoint, resume_line
from gpuctl.workflow.runs.prepare import expected_gpus
from gpuctl.workflow.runs.request.launchable import Launchable, read
from gpuctl.workflow.runs.request.request import TrainRequest, candidates_of, with_plain_strategy
from gpuctl.workflow.runs.request.what_to_install import ToInstall
from gpuctl.workflow.runs.resume import resolve
from gpuctl.workflow.runs.strategy.auto import with_strategy
from gpuctl.workflow.runs.strategy.division import Division, division_of, lines
from gpuctl.workflow.runs.strategy.fitting import machines_that_fit
from inventories.machine import Machine
from inventories.runs.run import Run
from inventories.text import plural
from remote.launchers import launcher_of
from remote.shared.constants import METRICS_VARIABLE, RANK_METRICS, RAY_JOB_CONFIG

if TYPE_CHECKING:
    from remote.findings import Finding

RUN_ID = "RUN"
"""Stands for the id that a real run is given."""
RANK = "RANK"
"""Stands for each rank's own number."""


@dataclass(frozen=True, kw_only=True)
class PlannedLaunch:
    """The plan of a launch, and its problems."""

    launchable: Launchable
    install: ToInstall
    destination: str
    """The folder on a node that receives the files."""
    run: Run
    point: ResumePoint | None
    """The run that it would resume."""
    daemons: Mapping[str, Sequence[str]]
    """Node → the command that has to run there before the ranks."""
    nodes: Sequence[Mapping[str, Any]]
    """Node, argv, env and cwd of each launch. A variable that may be a secret is `None`."""
    findings: "Sequence[Finding]"
    division: Division | None
    """The division of the built-in job's network. `None`: it is whole on every rank, or a script's own."""

    def document(self) -> dict[str, Any]:
        """Return the document of `train --dry-run --json`."""
        shown = ("node", "problem", "fix", "fatal")
        return {
            "cluster": self.run.cluster,
            "mode": self.run.mode,
            "script": self.run.script,
            "resumed_from": self.point.run.run if self.point else None,
            "nnodes": len(self.run.nodes),
            "world_size": self.run.world_size,
            "files": len(self.launchable.tree.entries),
            "bytes": self.launchable.tree.total_bytes,
            "daemons": [{"node": name, "argv": argv} for name, argv in self.daemons.items()],
            "nodes": self.nodes,
            "division": self.division,
            "findings": [{key: getattr(finding, key) for key in shown} for finding in self.findings],
        }

    def lines(self) -> Iterator[str]:
        """Return the lines for people."""
        from inventories.text import human_bytes

        tree, run = self.launchable.tree, self.run
        files = f"{plural(len(tree.entries), 'file')}, {human_bytes(tree.total_bytes)}"
        yield f"send {files}, of {tree.root} to {self.destination}"
        if self.launchable.folder != ".":
            yield f"run in its folder {self.launchable.folder}"
        yield from tree.notes
        yield from self.install.lines()
        if self.point is not None:
            yield resume_line(self.point, run)
        if self.division is not None:
            yield from lines(self.division)
        yield f"rendezvous at {run.master_addr}:{run.master_port} (a free port is chosen for each run)"
        for name, argv in self.daemons.items():
            where = f"unless {launcher_of(run.mode).title} runs there already"
            yield f"\n{name}, {where} ({{NAME}}: a free port, a folder of its own):"
            yield f"  {shlex.join(argv)}"
        for node in self.nodes:
            yield f"\n{node['node']}:"
            for key, value in sorted(node["env"].items()):
                # PATH has $PATH in it.
                yield f"  {key}={'…' if value is None else value if key == 'PATH' else _quoted(value)}"
            yield f"  {shlex.join(node['argv'])}"
        for finding in self.findings:
            yield f"\n{finding.node}: {finding.problem}. Fix: {finding.fix}."


def _quoted(value: str) -> str:
    """Return a value for a shell; zsh takes a word that begins with = for the name of a program."""
    return f"'{value}'" if value == shlex.quote(value) and value.startswith("=") else shlex.quote(value)


def show_launch(app: App, request: TrainRequest) -> dict[str, Any]:
    """Print what `train` would do, and return it as a document; nothing is sent, written or started."""
    planned = plan_launch(app, request)
    for line in planned.lines():
        app.output.say(line)
    return planned.document()


def plan_launch(app: App, request: TrainRequest) -> PlannedLaunch:
    """Ask the nodes for their facts, and plan the launch as `train` does."""
    from remote import facts
    from remote.checks import preflight
    from remote.fanout import fan_out, values
    from remote.files.sync import folder_in

    request, point = resolve(app, request)
    launchable = read(with_plain_strategy(request))
    folder = app.store.cluster(app.options.cluster)
    inventory = load_inventory(folder, empty=True)
    candidates, count = candidates_of(inventory, request, preferred=point.nodes if point else ())
    for note in launchable.notes(inventory, count):
        app.output.say(note)
    peers = tuple(sorted(machine.private_ip for machine in candidates[:count]))
    with connected_idle(
        app.store, folder, candidates, request, count, fewer=request.elastic, say=app.output.say
    ) as nodes:
        machines: Sequence[Machine] = [node.machine for node in nodes.values()]
        node_facts = values(fan_out(lambda node: facts.gather(node, peers), nodes))
    if request.on_cpu:
        node_facts = {name: facts.without_gpus(fact) for name, fact in node_facts.items()}
    node_facts = dict(with_parts(request, node_facts))
    install = launchable.packages.on(machines, same_machine=inventory.provider == "local")
    if install.note:
        app.output.say(install.note)
    if request.built_in:
        launchable = launchable.with_request(with_strategy(app, request, machines, node_facts))
    request, script = launchable.request, launchable.script
    machines, _ = machines_that_fit(request, machines, node_facts, app.output.say, fewer=request.elastic)
    node_facts = {machine.name: node_facts[machine.name] for machine in machines}
    destination = launchable.destination(inventory)
    code = {
        name: folder_in(
            folder_of_part(destination, request, fact).replace("~", fact.home, 1), launchable.folder
        )
        for name, fact in node_facts.items()
    }
    run = plan_run(
        RUN_ID,
        inventory,
        request,
        script,
        machines,
        node_facts,
        datetime.now(UTC),
        {},
        root=launchable.tree.root,
        commit=launchable.commit,
    )
    service = launcher_of(run.mode).planned(machines, node_facts)
    launches = service.launches(run, script, node_facts, code, launchable.rank_env)
    return PlannedLaunch(
        launchable=launchable,
        install=install,
        destination=destination,
        run=run,
        division=division_of(request, [node.nproc for node in run.nodes]),
        point=point,
        daemons=service.daemons,
        nodes=[
            {"node": name, "argv": launch["argv"], "env": _shown(launch, request.env), "cwd": code[name]}
            for name, launch in launches.items()
        ],
        findings=preflight.findings(
            node_facts,
            master=machines[0],
            mode=run.mode,
            installed=install.environment is None,
            env_names=request.env,
            expected=expected_gpus(inventory, on_cpu=request.on_cpu),
        ),
    )


def _shown(launch: Mapping[str, Any], secret: Collection[str]) -> dict[str, str | None]:
    """Return a node's environment, with `None` for values from the user: they may be secret."""
    hidden = {*secret, RAY_JOB_CONFIG} if secret else set()
    return {key: None if key in hidden else value for key, value in environment_of(launch).items()}


def environment_of(launch: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a node's ranks, without the variables that torchrun sets (RANK, …)."""
    environment: dict[str, str] = {
        **launch["env"],
        METRICS_VARIABLE: f"{launch['run_dir']}/{RANK_METRICS.format(RANK)}",
    }
    return environment | {"PATH": f"{launch['path_prefix']}:{environment.get('PATH', '$PATH')}"}
