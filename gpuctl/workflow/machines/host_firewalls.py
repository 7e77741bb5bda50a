"""The machines' own firewalls: opened to the cluster's other machines, and closed again where machines stay."""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from gpuctl.app import App
from gpuctl.tables.view import View
from inventories.codec import from_json
from inventories.disk.store import ClusterFolder
from inventories.errors import CorruptFile, InventoryError
from inventories.machine import Inventory, Machine
from inventories.text import plural

if TYPE_CHECKING:
    from provision.provider import Leftover
    from remote.facts import Facts
    from remote.sessions.session import Node

OPENED, CLOSED = "firewall", "firewall closed"
"""Events in a cluster's journal: a machine's firewall is about to be opened for an owner; the rules are removed."""
RESTORE_TIMEOUT_S = 10.0


def may_block(machines: Sequence[Machine]) -> bool:
    """Return whether the machines' own firewalls may block the cluster: never on this computer, and never in pods."""

    def is_loopback(address: str) -> bool:
        try:
            return ipaddress.ip_address(address).is_loopback
        except ValueError:
            return address == "localhost"

    return not all(machine.transport == "pod" or is_loopback(machine.private_ip) for machine in machines)


def owner_of(inventory: Inventory) -> str:
    """Return the owner in a cluster's rules, which differs from that of another cluster of the same name."""
    return f"{inventory.cluster} {inventory.created_at}"


def open_firewall(
    view: View, folder: ClusterFolder, inventory: Inventory, node: "Node", facts: "Facts"
) -> None:
    """Let the cluster's other machines in on a node if its own firewall blocks them.

    A failure is a note: the preflight finds out whether the nodes reach each other all the same.
    """
    from remote import firewall
    from remote.errors import NodeFailed

    if facts.firewall is None:
        return
    other_hosts = [machine.private_ip for machine in inventory.machines if machine.name != node.name]
    peers = [address for other in other_hosts if (address := facts.addresses.get(other))]
    if len(peers) < len(other_hosts):
        return  # the preflight reports a name that does not resolve there; the open rules stay
    owner = owner_of(inventory)
    plan = firewall.open_steps(facts.firewall, owner=owner, peers=peers)
    if plan.known and not plan.steps:
        return
    if plan.known:
        machine = node.machine
        # The whole machine: the inventory may lack it by the time its firewall is closed.
        folder.journal.append(
            OPENED, node=node.name, host=machine.host, port=machine.port, owner=owner, machine=machine
        )
    try:
        done = firewall.ensure_open(node, facts.firewall, owner=owner, peers=peers)
    except NodeFailed as error:
        view.note(str(error))
        return
    where = ", ".join(done.where)
    view.node(node.name, f"firewall: {plural(len(peers), 'peer')} let in ({where})")


def restore_firewalls(app: App, folder: ClusterFolder) -> "list[Leftover]":
    """Remove our rules from all machines at once; return the machines that may still have some.

    The machines are those of the journal, also without an entry in the inventory now.
    """
    opened = _opened(folder)
    if not opened:
        return []
    try:
        machines = folder.load().machines
    except InventoryError as error:
        return [_left(entry, str(error)) for entry in opened.values()]
    return _restore_all(app, folder, opened, machines, spare_runs=False)


def update_firewalls(
    app: App, folder: ClusterFolder, before: Inventory, inventory: Inventory, *, ended: bool
) -> None:
    """Remove our rules from machines that leave the inventory, and let them in on the others no more.

    `ended`: the leaving machines are deleted. A failure is a note: `down` tries the former again, the next `train`
    the latter.
    """
    from remote.fanout import fan_out

    stay = {(machine.host, machine.port): machine for machine in inventory.machines}
    leaving = {machine.name for machine in before.machines if (machine.host, machine.port) not in stay}
    if not leaving:
        return
    opened = _opened(folder)
    staying_rules = {key: entry for key, entry in opened.items() if (entry["host"], entry["port"]) in stay}
    leave = {key: entry for key, entry in opened.items() if key not in staying_rules}
    if ended:
        for entry in leave.values():
            _journal_closed(folder, entry)
    else:
        for left in _restore_all(app, folder, leave, before.machines, spare_runs=True):
            app.output.say(f"note: {left.id}: {left.reason} `gpuctl down` tries it again.")
    owner = owner_of(inventory)
    staying = {
        machine.name: machine
        for entry in staying_rules.values()
        if entry["owner"] == owner and (machine := stay[entry["host"], entry["port"]])
    }
    for outcome in fan_out(lambda machine: _keep_out(machine, inventory, owner), staying):
        if outcome.error is not None:
            app.output.say(
                f"note: {outcome.node}: its firewall may still let {', '.join(sorted(leaving))} in until the next "
                f"`gpuctl train`: {outcome.error}"
            )
        elif outcome.value:
            app.output.say(f"{outcome.node}: firewall: {', '.join(sorted(leaving))} no longer let in")


def _opened(folder: ClusterFolder) -> dict[str, Mapping[str, Any]]:
    """Return the open rules of the journal: an entry for each machine and owner."""
    opened: dict[str, Mapping[str, Any]] = {}
    for entry in folder.journal.read():
        if entry["event"] in (OPENED, CLOSED):
            key = f"{entry['host']}:{entry['port']} {entry['owner']}"
            opened[key] = entry
            if entry["event"] == CLOSED:
                del opened[key]
    return opened


def _journal_closed(folder: ClusterFolder, entry: Mapping[str, Any]) -> None:
    folder.journal.append(CLOSED, **{name: entry[name] for name in ("node", "host", "port", "owner")})


def _restore_all(
    app: App,
    folder: ClusterFolder,
    opened: Mapping[str, Mapping[str, Any]],
    known: Sequence[Machine],
    *,
    spare_runs: bool,
) -> "list[Leftover]":
    """Close the open rules on all machines at once; return the rules that may remain.

    `known`: the machines' current addresses. `spare_runs`: skip a machine with an active run.
    """
    from remote.fanout import fan_out

    reached = {(machine.host, machine.port): machine for machine in known}
    reachable = {
        key: machine
        for key, entry in opened.items()
        if (machine := reached.get((entry["host"], entry["port"])) or _machine_of(entry))
    }
    left = [
        _left(entry, "the machine is in the inventory no more.")
        for key, entry in opened.items()
        if key not in reachable
    ]

    def restore(key: str) -> str:
        done = _restore(reachable[key], opened[key]["owner"], spare_runs=spare_runs)
        _journal_closed(folder, opened[key])
        return done

    for outcome in fan_out(restore, {key: key for key in reachable}):
        if outcome.error is None:
            app.output.say(f"{opened[outcome.node]['node']}: firewall: {outcome.value}")
        else:
            left.append(_left(opened[outcome.node], str(outcome.error)))
    return left


def _machine_of(entry: Mapping[str, Any]) -> Machine | None:
    """Return the machine as it was when its firewall was opened. `None`: the entry does not have it."""
    try:
        return from_json(Machine, entry.get("machine"), "journal.jsonl")
    except CorruptFile:
        return None


def _left(entry: Mapping[str, Any], reason: str) -> "Leftover":
    from provision.provider import Leftover

    return Leftover(
        kind="firewall",
        id=str(entry["node"]),
        reason=f"it may still let the cluster's machines in ({entry['host']}): {reason}",
    )


def _restore(machine: Machine, owner: str, *, spare_runs: bool) -> str:
    """Remove an owner's rules from a machine and check that they are removed; return what was done."""
    from remote import facts, firewall
    from remote.errors import NodeFailed

    with _connected(machine) as node:
        node_facts = facts.gather(node, (), firewall=True)
        if spare_runs:
            _refuse_if_busy(node, node_facts)
        assert node_facts.firewall is not None, "it was asked for"
        plan = firewall.close_steps(node_facts.firewall, owner=owner)
        if plan.steps or not plan.known:
            left = firewall.close_steps(firewall.apply(node, plan), owner=owner)
            if left.steps or not left.known:
                raise NodeFailed(f"{machine.name}: some of its rules are there still: {left.reason}.")
    return plan.reason


def _keep_out(machine: Machine, inventory: Inventory, owner: str) -> bool:
    """Let only the inventory's other machines in on a machine; return whether a rule changed."""
    from remote import facts, firewall

    other_hosts = tuple(other.private_ip for other in inventory.machines if other.name != machine.name)
    with _connected(machine) as node:
        node_facts = facts.gather(node, other_hosts, firewall=True)
        _refuse_if_busy(node, node_facts)
        assert node_facts.firewall is not None, "it was asked for"
        peers = [address for other in other_hosts if (address := node_facts.addresses.get(other))]
        return bool(firewall.ensure_open(node, node_facts.firewall, owner=owner, peers=peers).steps)


def _refuse_if_busy(node: "Node", facts: "Facts") -> None:
    """Raise NodeFailed if a run is active: it needs its firewalls as they are."""
    from remote.errors import NodeFailed

    if facts.active_runs:
        raise NodeFailed(f"{node.name}: the run {facts.active_runs[0]} is still active there.")


@contextmanager
def _connected(machine: Machine) -> Iterator["Node"]:
    """Connect, trusting this machine's pinned key alone, because the inventory may lack the machine now."""
    from remote.sessions.connect import connect
    from remote.transport import known_hosts

    with TemporaryDirectory() as scratch:
        trusted = ClusterFolder(Path(scratch))
        trusted.known_hosts_path.write_text(known_hosts.render([machine]))
        node = connect(machine, trusted, timeout_s=RESTORE_TIMEOUT_S)
    with node:
        yield node
