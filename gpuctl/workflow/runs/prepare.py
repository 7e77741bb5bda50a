"""Prepare nodes for a run: let peers in, build the environment, send the code. Leaves correct state as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpuctl.tables.view import View
from gpuctl.text import clean, for_cluster, shorten
from gpuctl.workflow.machines.host_firewalls import may_block, open_firewall
from gpuctl.workflow.runs.gpus import folder_of_part
from gpuctl.workflow.runs.request.build import Build, install_project
from gpuctl.workflow.runs.request.launchable import Launchable
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.disk.store import ClusterFolder
from inventories.machine import Inventory, Machine
from inventories.text import plural
from remote.shared.constants import NODE_FOLDER

if TYPE_CHECKING:
    from remote.checks.gpu_use import Expected
    from remote.facts import Facts
    from remote.files.earlier import Aside, EarlierFiles
    from remote.files.sync import Synced
    from remote.files.tree import Tree
    from remote.findings import Finding
    from remote.sessions.session import Node

NAMES_SHOWN = 3
"""Names of files in a line."""


def gather_facts(inventory: Inventory, nodes: "Mapping[str, Node]", *, on_cpu: bool) -> "Mapping[str, Facts]":
    """Ask all nodes for their facts. `on_cpu`: as if they had no GPUs."""
    from remote import facts
    from remote.fanout import fan_out, values

    # The whole cluster, so that firewalls are opened only once.
    peers = tuple(machine.private_ip for machine in inventory.machines)
    guarded = may_block(inventory.machines)
    all_facts = values(fan_out(lambda node: facts.gather(node, peers, firewall=guarded), nodes))
    return {name: facts.without_gpus(fact) for name, fact in all_facts.items()} if on_cpu else all_facts


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The nodes of a run, ready for its launch."""

    facts: Mapping[str, "Facts"]
    """With the interpreters of the ranks and, for environments, their packages."""
    code: Mapping[str, str]
    """The folder on each node in which the script runs. Empty: nothing was sent, as the preflight refuses."""
    roots: Mapping[str, str]
    """The project's folder on each node, which contains `code`. Empty likewise."""
    earlier: Mapping[str, "EarlierFiles"] = field(default_factory=dict)
    """Files of earlier runs in that folder on each node. Empty: not examined."""
    expected: "Expected | None" = None
    """The machines' GPUs by their shapes. `None`: not known."""
    aside: "Aside | None" = None
    """The backup folder for files of earlier runs that would be lost. `None`: the built-in job."""

    def aside_lines(self, cluster: ClusterFolder) -> Sequence[str]:
        """Return a line on the files that were moved to a backup folder, with the command that downloads them.

        If only some nodes moved files, each of them has a line.
        """
        moved = {name: left for name, left in self.earlier.items() if left.aside}
        if self.aside is None or not moved:
            return []
        if 1 < len(self.roots) == len(moved):
            return [self._aside_line(cluster, self.aside, moved, None)]
        return [self._aside_line(cluster, self.aside, {name: left}, name) for name, left in moved.items()]

    def _aside_line(
        self,
        cluster: ClusterFolder,
        aside: "Aside",
        moved: "Mapping[str, EarlierFiles]",
        node: str | None,
    ) -> str:
        """Return the line on these nodes' backups. `node`: the one of the command; `None`: it is for all nodes."""
        from gpuctl.run_results.outputs import pull_command, pulled_folder

        names = list(dict.fromkeys(path for left in moved.values() for path in left.aside_names))
        unnamed = max(left.aside - len(left.aside_names) for left in moved.values())
        files = some_files(names, unnamed)
        subject = f"files of earlier runs ({files})" if aside.everything else f"earlier versions of {files}"
        folder = aside.folder(self.roots[next(iter(moved))])
        place = NODE_FOLDER + folder.partition(NODE_FOLDER)[2]  # relative to ~
        home = cluster.path.parents[1]
        target = pulled_folder(home, f"aside-{aside.name}", *([node] if node else []))
        command = pull_command(cluster.name, node, place, target)
        return f"{subject} are kept on {', '.join(moved)}: {command}"


def some_files(names: Sequence[str], unnamed: int = 0) -> str:
    """`a.pt, b.pt and 4 more`. `unnamed`: number of files without names."""
    shown = [shorten(clean(name), 60) for name in names[:NAMES_SHOWN]]
    more = len(names) + unnamed - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def prepare(
    view: View,
    folder: ClusterFolder,
    inventory: Inventory,
    nodes: "Mapping[str, Node]",
    launchable: Launchable,
    facts: "Mapping[str, Facts]",
    *,
    active: "Mapping[str, Node] | None" = None,
    fresh: bool = False,
) -> Prepared:
    """Set up firewall, environment and code, on all nodes at once.

    `facts`: of `nodes` and of `active`, as `gather_facts` returns them.

    `active`: nodes of a running job that these are to join. They let these in, and their installed packages are
    installed here; nothing else on them is touched.

    If a node has an active run, nothing is done: the preflight refuses, and that run's files stay as they are. If a
    disk is full, no code is sent: the preflight refuses, and reports all other problems, too.

    Raises PreflightFailed before any change if a machine's GPUs are all unusable, unless the request uses CPUs alone.
    `fresh`: move all files of earlier runs to a backup folder, not only files that would be lost.
    """
    from remote.checks import gpu_use, preflight
    from remote.fanout import fan_out, values
    from remote.files.earlier import Aside
    from remote.files.sync import folder_in
    from remote.findings import alike_together, sentence
    from remote.python_env import compared

    request, tree = launchable.request, launchable.tree
    for note in tree.notes:
        view.note(for_cluster(note, inventory.cluster))
    everyone = {**nodes, **(active or {})}
    local = inventory.provider == "local"
    install = launchable.packages.on([node.machine for node in everyone.values()], same_machine=local)
    if install.note and active is None:
        view.note(install.note)
    expected = expected_gpus(inventory, on_cpu=request.on_cpu)
    node_facts = {name: facts[name] for name in nodes}
    if any(fact.active_runs for fact in node_facts.values()):
        return Prepared(facts=node_facts, code={}, roots={}, expected=expected)
    gpu_use.check(node_facts, expected, env_names=request.env)
    # Disk space for the environment is checked by the build itself, so only the code is checked here.
    build = Build.of(everyone, facts, install, same_machine=local)
    room = build is not None or all(preflight.has_room(facts[name]) for name in nodes)
    aside = None
    if not request.built_in:
        aside = Aside(name=f"{datetime.now(UTC):%Y%m%d-%H%M%S}", everything=fresh)
    destination = launchable.destination(inventory)

    def prepare_node(node: "Node") -> "tuple[Facts, Synced | None, Sequence[Finding]]":
        fact = facts[node.name]
        open_firewall(view, folder, inventory, node, fact)
        if build is not None:
            fact = build.on(view, node, fact)
        if not room:
            return fact, None, ()
        to = folder_of_part(destination, request, fact)
        synced = send_code(view, node, tree, to, launchable.folder, aside)
        fact, findings = install_project(view, node, fact, install, synced.root)
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
        code={name: folder_in(synced.root, launchable.folder) for name, synced in sent.items()},
        roots={name: synced.root for name, synced in sent.items()},
        earlier={name: synced.earlier for name, synced in sent.items() if synced.earlier is not None},
        expected=expected,
        aside=aside,
    )
    for line in prepared.aside_lines(folder):
        view.note(line)
    return prepared


def expected_gpus(inventory: Inventory, *, on_cpu: bool = False) -> "Expected":
    """Return the number of GPUs that each machine should have, by its shape or by the last `up`. `on_cpu`: zero."""
    from remote.checks.gpu_use import Expected

    machines, local = () if on_cpu else inventory.machines, inventory.provider == "local"
    gpus = {machine.name: machine.gpus or 0 for machine in machines}
    if not local:
        from provision.pricing.catalog import gpus_of

        for machine in machines:
            if shape := machine.shape or inventory.shape:
                gpus[machine.name] = max(gpus[machine.name], gpus_of(shape) or 0)
    return Expected(gpus=gpus, local=local)


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
    view: View, nodes: "Mapping[str, Node]", prepared: Prepared, request: TrainRequest, master: Machine
) -> None:
    """Run the preflight. Raises PreflightFailed."""
    from remote.checks import preflight
    from remote.checks.probe import probe

    facts, port = prepared.facts, prepared.facts[master.name].free_port
    busy = any(fact.active_runs for fact in facts.values())
    skip = request.skip_preflight  # then only what every launch needs is checked
    if skip and port is not None and prepared.code:
        view.note("the preflight is skipped")
        return
    probes = None if busy or skip else probe(nodes, master=master.name, rendezvous_port=port)
    preflight.check(
        facts,
        probes,
        master=master,
        note=view.note,
        mode=request.mode,
        env_names=request.env,
        expected=prepared.expected,
    )
