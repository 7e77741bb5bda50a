"""The machines' own firewalls: opened to the cluster's other machines, and closed again where machines stay."""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuctl.options import App
from gpuctl.text import plural
from gpuctl.view import View
from inventories.errors import InventoryError
from inventories.machine import Inventory, Machine
from inventories.store import ClusterFolder
from provision.provider import Leftover

if TYPE_CHECKING:
    from remote.facts import Facts
    from remote.session import Node

OPENED, CLOSED = "firewall", "firewall closed"
"""Events in a cluster's journal: a machine's firewall is about to be opened for an owner; ours is out of it again."""
RESTORE_TIMEOUT_S = 10.0


def crosses_a_network(peers: Sequence[str]) -> bool:
    """Whether nodes meet anywhere but on this computer's own loopback, which no firewall guards."""

    def is_loopback(peer: str) -> bool:
        try:
            return ipaddress.ip_address(peer).is_loopback
        except ValueError:
            return peer == "localhost"

    return not all(map(is_loopback, peers))


def owner_of(inventory: Inventory) -> str:
    """What a cluster's rules are known by: another cluster of the same name has others."""
    return f"{inventory.cluster} {inventory.created_at}"


def open_firewall(
    view: View, folder: ClusterFolder, inventory: Inventory, node: "Node", facts: "Facts"
) -> None:
    """Let the cluster's other machines in on a node, where its own firewall keeps them out.

    Where that can't be done it is a note: whether the nodes reach each other all the same, the preflight finds out.
    """
    from remote import firewall
    from remote.errors import NodeFailed

    if facts.firewall is None:
        return
    others = [machine.private_ip for machine in inventory.machines if machine.name != node.name]
    peers = [address for other in others if (address := facts.addresses.get(other))]
    if len(peers) < len(others):
        return  # a name that does not resolve there is the preflight's to tell; what is open stays so
    owner = owner_of(inventory)
    plan = firewall.open_steps(facts.firewall, owner=owner, peers=peers)
    if plan.known and not plan.steps:
        return
    if plan.known:
        machine = node.machine
        folder.journal.append(OPENED, node=node.name, host=machine.host, port=machine.port, owner=owner)
    try:
        done = firewall.ensure_open(node, facts.firewall, owner=owner, peers=peers)
    except NodeFailed as error:
        view.note(str(error))
        return
    where = ", ".join(done.where)
    view.node(node.name, f"firewall: {plural(len(peers), 'peer')} let in ({where})")


def restore_firewalls(app: App, folder: ClusterFolder) -> list[Leftover]:
    """Take our rules from the machines that have some, all at once; returns those that may still have them.

    The journal says which, also of machines and owners that are in the inventory no more.
    """
    from remote.fanout import fan_out

    opened: dict[str, Mapping[str, Any]] = {}
    for entry in folder.journal.read():
        if entry["event"] in (OPENED, CLOSED):
            key = f"{entry['host']}:{entry['port']} {entry['owner']}"
            opened[key] = entry
            if entry["event"] == CLOSED:
                del opened[key]
    if not opened:
        return []
    try:
        machines = {(machine.host, machine.port): machine for machine in folder.load().machines}
    except InventoryError as error:
        return [_left(entry, str(error)) for entry in opened.values()]

    def restore(entry: Mapping[str, Any]) -> str:
        done = _restore(machines[entry["host"], entry["port"]], folder, entry["owner"])
        folder.journal.append(CLOSED, **{name: entry[name] for name in ("node", "host", "port", "owner")})
        return done

    here = {key: entry for key, entry in opened.items() if (entry["host"], entry["port"]) in machines}
    left = [
        _left(entry, "the machine is in the inventory no more")
        for key, entry in opened.items()
        if key not in here
    ]
    for outcome in fan_out(restore, here):
        if outcome.error is None:
            app.output.say(f"{opened[outcome.node]['node']}: firewall: {outcome.value}")
        else:
            left.append(_left(opened[outcome.node], str(outcome.error)))
    return left


def _left(entry: Mapping[str, Any], reason: str) -> Leftover:
    return Leftover(
        kind="firewall",
        id=str(entry["node"]),
        reason=f"it may still let the cluster's machines in ({entry['host']}): {reason}",
    )


def _restore(machine: Machine, folder: ClusterFolder, owner: str) -> str:
    """Take an owner's rules from one machine, and look whether they are gone; returns what was done."""
    from remote import facts, firewall
    from remote.connection import connect
    from remote.errors import NodeFailed

    node = connect(machine, folder.known_hosts_path, timeout_s=RESTORE_TIMEOUT_S)
    try:
        found = facts.gather(node, (), firewall=True).firewall
        assert found is not None, "it was asked for"
        plan = firewall.close_steps(found, owner=owner)
        if plan.steps or not plan.known:
            left = firewall.close_steps(firewall.apply(node, plan), owner=owner)
            if left.steps or not left.known:
                raise NodeFailed(f"{machine.name}: some of its rules are there still: {left.reason}.")
    finally:
        node.close()
    return plan.reason
