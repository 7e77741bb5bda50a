"""Nodes made ready for a run: the peers let in, the code sent. What is as it should be is left alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuctl.text import plural
from gpuctl.view import View
from gpuctl.workflow.firewall import crosses_a_network, open_firewall
from inventories.machine import Inventory
from inventories.store import ClusterFolder

if TYPE_CHECKING:
    from remote.facts import Facts
    from remote.session import Node
    from remote.tree import Tree


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The nodes of a run, ready for its launch."""

    facts: Mapping[str, "Facts"]
    code: Mapping[str, str]
    """The project's folder on each node."""


def prepare(
    view: View,
    folder: ClusterFolder,
    inventory: Inventory,
    nodes: "Mapping[str, Node]",
    tree: "Tree",
    destination: str,
) -> Prepared:
    """Facts, firewall and code, on all nodes at once. A node with a run that goes on is only asked for its facts."""
    from remote import facts
    from remote.fanout import fan_out, values

    # All of the cluster's, also those that take no part this time: firewalls are opened once.
    peers = tuple(machine.private_ip for machine in inventory.machines)
    for link in tree.skipped:
        view.note(
            f"{link} is not sent: a link out of the folder, credentials, a repository of its own, or no plain file"
        )

    def one(node: "Node") -> "tuple[Facts, str]":
        found = facts.gather(node, peers, firewall=crosses_a_network(peers))
        if found.active_runs:
            return found, ""  # the preflight refuses; the code of a run that is going on is left alone
        open_firewall(view, folder, inventory, node, found)
        return found, send_code(view, node, tree, destination)

    both = values(fan_out(one, nodes))
    return Prepared(
        facts={name: found for name, (found, _) in both.items()},
        code={name: root for name, (_, root) in both.items()},
    )


def send_code(view: View, node: "Node", tree: "Tree", destination: str) -> str:
    """Bring the code on a node up to date; returns its folder there."""
    from remote.sync import sync
    from remote.tree import human_bytes

    done = sync(node, tree, destination)
    text = (
        f"{plural(done.files, 'file')} sent, {human_bytes(done.sent_bytes)}"
        if done.files
        else "code is up to date"
    )
    view.node(node.name, text + (f", {done.removed} removed" if done.removed else ""))
    return done.root
