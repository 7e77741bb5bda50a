"""From machines that the provider calls running to nodes that a run can start on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuctl.options import App
from gpuctl.text import plural
from gpuctl.workflow.connect import connected
from inventories.machine import Machine
from inventories.store import ClusterFolder

if TYPE_CHECKING:
    from remote.facts import Facts
    from remote.session import Node

BOOT_TIMEOUT_S = 900.0
"""From the moment that the provider calls a machine running; bare metal takes longest."""


def reach(
    app: App, folder: ClusterFolder, machines: Sequence[Machine], *, boot_s: float
) -> tuple[Machine, ...]:
    """Connect to every machine and take its facts; returns the machines with their GPUs counted.

    `boot_s`: how long machines may take to be ready that were just made; 0: they are somebody's, and as they are.
    """
    from remote import facts
    from remote.errors import BadAnswer, DiskFull, NodeFailed
    from remote.fanout import fan_out, values
    from remote.readiness import wait_for_cloud_init
    from remote.session import Node

    def ask(node: Node) -> facts.Facts:
        try:
            if boot_s:
                set_up = wait_for_cloud_init(node, deadline_s=boot_s, say=app.output.say)
                for complaint in set_up.complaints:
                    app.output.say(f"note: {node.name}: cloud-init complains: {complaint}")
            return facts.gather(node, peers)
        except (BadAnswer, NodeFailed) as error:
            if isinstance(error, DiskFull) or "--python" in str(error):
                raise
            raise type(error)(
                f"{error} If {node.python} is no Python there, name one with --python PATH."
            ) from error

    app.output.say(f"connecting to {plural(len(machines), 'machine')} …")
    peers = tuple(machine.private_ip for machine in machines)
    with connected(folder, machines, boot_s=boot_s, say=app.output.say) as nodes:
        found = values(fan_out(ask, nodes))
        if boot_s:
            found |= _reboot_for_drivers(app, folder, nodes, found, peers)
    for name, fact in found.items():
        torch = f"torch {fact.torch}" if fact.torch else "no torch"
        gpus = plural(len(fact.gpus), "GPU")
        app.output.say(f"{name}: {fact.os}, {fact.cpus} cores, {gpus}, Python {fact.python_version}, {torch}")
    _tell_of_drivers(app, found)
    return tuple(
        replace(machine, gpus=len(found[machine.name].gpus), state="running") for machine in machines
    )


def _reboot_for_drivers(
    app: App,
    folder: ClusterFolder,
    nodes: "Mapping[str, Node]",
    found: "Mapping[str, Facts]",
    peers: tuple[str, ...],
) -> "dict[str, Facts]":
    """Reboot, once, the machines whose GPU driver waits for that; returns their new facts."""
    from remote import readiness
    from remote.fanout import fan_out, values

    def again(node: "Node") -> "Facts":
        readiness.reboot(node)
        return readiness.facts_after_reboot(
            node.machine,
            folder.known_hosts_path,
            peers,
            boot_id=found[node.name].boot_id,
            deadline_s=BOOT_TIMEOUT_S,
            say=app.output.say,
        )

    waiting = {
        name: node for name, node in nodes.items() if readiness.driver_state(found[name].driver) == "reboot"
    }
    for name in waiting:
        app.output.say(f"{name}: the GPU driver waits for a reboot; rebooting once …")
    return dict(values(fan_out(again, waiting)))


def _tell_of_drivers(app: App, found: "Mapping[str, Facts]") -> None:
    """A note for each machine whose GPUs can't be used as they are."""
    from remote.readiness import driver_problem

    for name, fact in found.items():
        if problem := driver_problem(fact.driver):
            app.output.say(f"note: {name}: {problem[0]}; {problem[1]}")
