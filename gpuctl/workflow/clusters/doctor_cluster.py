"""`doctor --cluster`: the preflight of `train` alone, and the bandwidth between the nodes. Opens and sets nothing."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from gpuctl.app import App
from gpuctl.command_results.upkeep import ClusterDoctorResult, DoctorFinding
from gpuctl.tables.view import open_view
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.machines.host_firewalls import may_block
from gpuctl.workflow.runs import bandwidth
from gpuctl.workflow.runs.prepare import expected_gpus
from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from inventories.text import plural

if TYPE_CHECKING:
    from remote.checks.probe import ProbeAnswer
    from remote.facts import Facts
    from remote.fanout import Outcome
    from remote.findings import Finding
    from remote.sessions.session import Node

NO_TORCH = "gpuctl train brings it once; or name an interpreter that has it: gpuctl up --python PATH"


def doctor_cluster(app: App) -> ClusterDoctorResult:
    """Return the document of `doctor --cluster --json`."""
    from remote.checks import preflight
    from remote.checks.probe import probe

    folder = app.store.cluster(app.options.cluster)
    inventory = load_inventory(folder)
    machines = sorted(inventory.machines, key=lambda machine: machine.rank)
    rows: list[DoctorFinding] = []
    measured: list[Mapping[str, Any]] | None = None
    prepared = False
    with open_view(app.output, logs=False) as view, ExitStack() as held:
        held.enter_context(folder.lock("doctor", on_wait=view.note))
        view.phase("connect", f"connecting to {plural(len(machines), 'node')}")
        nodes, silent = _connect(folder, machines, held)
        rows += silent
        view.phase("preflight", "asking for facts, trying every connection")
        facts, mute = _facts(nodes)
        rows += mute
        answering = {name: nodes[name] for name in facts}
        if answering:
            facts, torchless = _with_environment(answering, facts)
            prepared = not torchless
            began = time.monotonic()
            master = next(iter(answering.values())).machine  # the first node that answers stands for node 0
            probes = probe(answering, master=master.name, rendezvous_port=facts[master.name].free_port)
            took_s = time.monotonic() - began
            findings = preflight.findings(
                facts, probes, master=master, installed=prepared, expected=expected_gpus(inventory)
            )
            rows += [*torchless, of_network(probes, took_s), *map(of_finding, findings)]
        healthy = prepared and len(answering) == len(machines) and all(row.ok is not False for row in rows)
        if healthy:
            view.phase("all-reduce", "measuring the bandwidth")
            measured, bandwidth_rows = bandwidth.measure(view, folder, inventory, answering, facts)
            rows += bandwidth_rows
        else:
            rows.append(DoctorFinding("all-reduce", None, "not measured", "mend what is wrong first"))
    return ClusterDoctorResult(
        ok=all(row.ok is not False for row in rows),
        cluster=inventory.cluster,
        findings=tuple(rows),
        allreduce=None if measured is None else tuple(measured),
    )


def _connect(
    folder: ClusterFolder, machines: list[Machine], held: ExitStack
) -> "tuple[dict[str, Node], list[DoctorFinding]]":
    """Connect to the machines; return the connections, closed by `held`, and a row per machine without an answer."""
    from remote.sessions.connect import connect_all

    began = time.monotonic()
    outcomes = connect_all(machines, folder)
    nodes = {outcome.node: outcome.value for outcome in outcomes if outcome.value is not None}
    for node in nodes.values():
        held.callback(node.close)
    rows = _failed(outcomes, "can't be reached")
    if nodes:
        took = f"{time.monotonic() - began:.1f} s"
        way = " and ".join(sorted({node.machine.transport for node in nodes.values()}))
        answered = f"{len(nodes)} of {plural(len(machines), 'node')} answered in {took}"
        rows.insert(0, DoctorFinding(way, True, answered))
    return nodes, rows


def _failed(outcomes: "Sequence[Outcome[Any]]", detail: str) -> list[DoctorFinding]:
    """Return a row for each node without an answer."""
    return [DoctorFinding(o.node, False, detail, str(o.error)) for o in outcomes if o.error is not None]


def _facts(nodes: "Mapping[str, Node]") -> "tuple[dict[str, Facts], list[DoctorFinding]]":
    from remote import facts
    from remote.fanout import fan_out

    peers = tuple(node.machine.private_ip for node in nodes.values())
    guarded = may_block([node.machine for node in nodes.values()])
    outcomes = fan_out(lambda node: facts.gather(node, peers, firewall=guarded), nodes)
    rows = _failed(outcomes, "did not tell its facts")
    return {outcome.node: outcome.value for outcome in outcomes if outcome.value is not None}, rows


def _with_environment(
    nodes: "Mapping[str, Node]", facts: "Mapping[str, Facts]"
) -> "tuple[dict[str, Facts], list[DoctorFinding]]":
    """Return the facts with the interpreters that a run would use, and a row for each that may lack torch.

    A machine without an interpreter of its own gets the newest environment that all such machines have.
    """
    from remote.facts import with_environment
    from remote.fanout import fan_out
    from remote.python_env.building import ready_environments

    bare = {
        name: node for name, node in nodes.items() if not node.machine.python and facts[name].torch is None
    }
    outcomes = fan_out(ready_environments, bare)
    if mute := _failed(outcomes, "did not tell which environments it has"):
        return dict(facts), mute
    environments_of = {outcome.node: outcome.value for outcome in outcomes if outcome.value is not None}
    common = set.intersection(*map(set, environments_of.values())) if environments_of else set()
    newest = next((key for key in next(iter(environments_of.values()), {}) if key in common), None)
    if newest is None:
        nowhere = DoctorFinding(
            "torch", None, "not there yet: no interpreter and no environment has it", NO_TORCH
        )
        return dict(facts), [nowhere] if bare else []
    chosen = {name: environments[newest] for name, environments in environments_of.items()}
    brought = {
        name: with_environment(
            facts[name],
            python=environment.python,
            python_version=environment.python_version,
            torch=environment.torch,
            packages=environment.packages,
        )
        for name, environment in chosen.items()
    }
    return {**facts, **brought}, []


def of_network(probes: "Mapping[str, ProbeAnswer]", took_s: float) -> DoctorFinding:
    """Return how many connections between the nodes succeeded; each failed one has a finding of its own."""
    attempts = [attempt for answer in probes.values() for attempt in answer.attempts]
    if len(probes) == 1:
        return DoctorFinding("network", True, "one node: nobody to reach")
    good = sum(attempt.outcome == "connected" for attempt in attempts)
    whole = good == len(attempts) and all(answer.failure is None for answer in probes.values())
    of = f"{plural(len(attempts), 'connection')} between {plural(len(probes), 'node')}"
    detail = f"{good} of {of}, in {took_s:.1f} s"
    return DoctorFinding(
        "network", True if whole else None, detail, None if whole else "see what is said of the nodes below"
    )


def of_finding(finding: "Finding") -> DoctorFinding:
    """Return a preflight's finding as a row."""
    return DoctorFinding(finding.node, False if finding.fatal else None, finding.problem, finding.fix)
