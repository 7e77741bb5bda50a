"""The machines' own firewalls: opened to the cluster's other machines, and closed again where machines stay."""

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING

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

OPENED = "firewall"
"""Event in a cluster's journal: the firewall of a node is about to be opened."""
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
    # A name that does not resolve there lets nobody in, and is the preflight's to tell.
    peers = [
        address
        for machine in inventory.machines
        if machine.name != node.name and (address := facts.addresses.get(machine.private_ip))
    ]
    if not peers:
        return
    owner = owner_of(inventory)
    plan = firewall.open_steps(facts.firewall, owner=owner, peers=peers)
    if plan.known and not plan.steps:
        return
    folder.journal.append(OPENED, node=node.name)
    try:
        done = firewall.ensure_open(node, facts.firewall, owner=owner, peers=peers)
    except NodeFailed as error:
        view.note(str(error))
        return
    where = ", ".join(done.where)
    view.node(node.name, f"firewall: {plural(len(peers), 'peer')} let in ({where})")


def restore_firewalls(app: App, folder: ClusterFolder) -> list[Leftover]:
    """Take our rules from the machines that have some, all at once; returns those that still have them."""
    from remote.fanout import fan_out

    opened = {str(entry["node"]) for entry in folder.journal.read() if entry["event"] == OPENED}
    try:
        inventory = folder.load()
    except InventoryError as error:
        return [Leftover(kind="firewall", id=name, reason=str(error)) for name in sorted(opened)]
    machines = {machine.name: machine for machine in inventory.machines if machine.name in opened}
    if not machines:
        return []

    def restore(machine: Machine) -> str:
        return _restore(machine, folder, owner_of(inventory))

    left = []
    for outcome in fan_out(restore, machines):
        if outcome.error is None:
            app.output.say(f"{outcome.node}: firewall: {outcome.value}")
        else:
            reason = f"it still lets the cluster's machines in: {outcome.error}"
            left.append(Leftover(kind="firewall", id=outcome.node, reason=reason))
    return left


def _restore(machine: Machine, folder: ClusterFolder, owner: str) -> str:
    """Take our rules from one machine; returns what was done."""
    from remote import facts, firewall
    from remote.connection import connect

    node = connect(machine, folder.known_hosts_path, timeout_s=RESTORE_TIMEOUT_S)
    try:
        found = facts.gather(node, (), firewall=True).firewall
        assert found is not None, "it was asked for"
        plan = firewall.close_steps(found, owner=owner)
        if plan.steps or not plan.known:
            firewall.apply(node, plan)
    finally:
        node.close()
    return plan.reason
