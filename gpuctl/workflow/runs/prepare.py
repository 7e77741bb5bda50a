"""Prepare nodes for a run: let peers in, build the environment, send the code. Leaves correct state as it is."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from gpuctl.tables.view import View
from gpuctl.text import for_cluster
from gpuctl.workflow.machines.host_firewalls import may_block, open_firewall
from gpuctl.workflow.runs.outputs.earlier import aside_lines
from gpuctl.workflow.runs.prepared import Prepared
from gpuctl.workflow.runs.request.build import Build, install_project
from gpuctl.workflow.runs.request.project import Project
from inventories.disk.store import ClusterFolder
from inventories.machine import Inventory, Machine
from inventories.text import plural

if TYPE_CHECKING:
    from remote.checks.gpu_use import Expected
    from remote.facts import Facts
    from remote.files.earlier import Aside
    from remote.files.sync import Synced
    from remote.files.tree import Tree
    from remote.findings import Finding
    from remote.sessions.session import Node


def gather_facts(inventory: Inventory, nodes: "Mapping[str, Node]", *, on_cpu: bool) -> "Mapping[str, Facts]":
    """Ask all nodes for their facts. `on_cpu`: as if they had no GPUs."""
    from remote import facts
    from remote.fanout import fan_out, values

    # The whole cluster, so that firewalls are opened only once.
    peers = tuple(machine.private_ip for machine in inventory.machines)
    guarded = may_block(inventory.machines)
    all_facts = values(fan_out(lambda node: facts.gather(node, peers, firewall=guarded), nodes))
    return {name: facts.without_gpus(fact) for name, fact in all_facts.items()} if on_cpu else all_facts


def prepare(
    view: View,
    folder: ClusterFolder,
    inventory: Inventory,
    nodes: "Mapping[str, Node]",
    project: Project,
    facts: "Mapping[str, Facts]",
    *,
    active: "Mapping[str, Node] | None" = None,
    env_names: Collection[str] = (),
    aside: "Aside | None" = None,
) -> Prepared:
    """Set up firewall, environment and code, on all nodes at once.

    `facts`: of `nodes` and of `active`, as `gather_facts` returns them.

    `active`: nodes of a running job that these are to join. They let these in, and their installed packages are
    installed here; nothing else on them is touched.

    If a node has an active run, nothing is done: the preflight refuses, and that run's files stay as they are. If a
    disk is full, no code is sent: the preflight refuses, and reports all other problems, too.

    Raises PreflightFailed before any change if a machine's GPUs are all unusable, unless the project uses CPUs alone.
    `env_names`: names of the variables that the user sets. `aside`: the backup folder for files of earlier runs that
    would be lost.
    """
    from remote.checks import gpu_use, preflight
    from remote.fanout import fan_out, values
    from remote.files.sync import folder_in
    from remote.findings import alike_together, sentence
    from remote.python_env import compared

    for note in project.tree.notes:
        view.note(for_cluster(note, inventory.cluster))
    everyone = {**nodes, **(active or {})}
    expected = expected_gpus(inventory, on_cpu=project.on_cpu)
    node_facts = {name: facts[name] for name in nodes}
    if any(fact.active_runs for fact in node_facts.values()):
        return Prepared(facts=node_facts, code={}, roots={}, expected=expected)
    gpu_use.check(node_facts, expected, env_names=env_names)
    # Disk space for the environment is checked by the build itself, so only the code is checked here.
    build = Build.of(everyone, facts, project.install, same_machine=inventory.provider == "local")
    room = build is not None or all(preflight.has_room(facts[name]) for name in nodes)

    def prepare_node(node: "Node") -> "tuple[Facts, Synced | None, Sequence[Finding]]":
        fact = facts[node.name]
        open_firewall(view, folder, inventory, node, fact)
        if build is not None:
            fact = build.on(view, node, fact)
        if not room:
            return fact, None, ()
        synced = send_code(view, node, project.tree, project.destination, project.folder, aside)
        fact, findings = install_project(view, node, fact, project.install, synced.root)
        return fact, synced, findings

    done = values(fan_out(prepare_node, nodes))
    values(fan_out(lambda node: open_firewall(view, folder, inventory, node, facts[node.name]), active or {}))
    ready = {name: fact for name, (fact, _, _) in done.items()}
    of_projects = [finding for _, _, findings in done.values() for finding in findings]
    for finding in alike_together([*of_projects, *compared.findings(ready)]):
        view.note(sentence(finding))
    sent = {name: synced for name, (_, synced, _) in done.items() if synced is not None}
    prepared = Prepared(
        facts=ready,
        code={name: folder_in(synced.root, project.folder) for name, synced in sent.items()},
        roots={name: synced.root for name, synced in sent.items()},
        earlier={name: synced.earlier for name, synced in sent.items() if synced.earlier is not None},
        expected=expected,
    )
    home = folder.path.parents[1]
    for line in aside_lines(inventory.cluster, home, aside, prepared.roots, prepared.earlier):
        view.note(line)
    return prepared


def expected_gpus(inventory: Inventory, *, on_cpu: bool = False) -> "Expected":
    """Return the number of GPUs that each machine should have, by its shape or by the last `up`. `on_cpu`: zero."""
    from provision.pricing.catalog import SHAPES
    from remote.checks.gpu_use import Expected

    gpus = {}
    for machine in () if on_cpu else inventory.machines:
        shape = SHAPES.get(machine.shape or inventory.shape or "")
        gpus[machine.name] = max(machine.gpus or 0, shape.gpus if shape else 0)
    return Expected(gpus=gpus, local=inventory.provider == "local")


def send_code(
    view: View,
    node: "Node",
    tree: "Tree",
    destination: str,
    folder: str = ".",
    aside: "Aside | None" = None,
) -> "Synced":
    """Bring the code on a node up to date, with `folder` in it. `aside`: see `sync`."""
    from inventories.text import human_bytes
    from remote.files.sync import sync

    done = sync(
        node,
        tree,
        destination,
        working_folder=folder,
        aside=aside,
        say=lambda text: view.node(node.name, text),
    )
    text = (
        f"{plural(done.files, 'file')} sent, {human_bytes(done.sent_bytes)}"
        if done.files
        else "code is up to date"
    )
    view.node(node.name, text + (f", {done.removed} removed" if done.removed else ""))
    return done


def check_nodes(
    view: View,
    nodes: "Mapping[str, Node]",
    prepared: Prepared,
    master: Machine,
    *,
    mode: str,
    skip: bool = False,
    env_names: Collection[str] = (),
) -> None:
    """Run the preflight. Raises PreflightFailed.

    `skip`: check only what every launch needs. `env_names`: names of the variables that the user sets.
    """
    from remote.checks import preflight
    from remote.checks.probe import probe

    facts, port = prepared.facts, prepared.facts[master.name].free_port
    busy = any(fact.active_runs for fact in facts.values())
    if skip and port is not None and prepared.code:
        view.note("the preflight is skipped, as you said")
        return
    probes = None if busy or skip else probe(nodes, master=master.name, rendezvous_port=port)
    expected = prepared.expected
    preflight.check(
        facts, probes, master=master, note=view.note, mode=mode, env_names=env_names, expected=expected
    )
