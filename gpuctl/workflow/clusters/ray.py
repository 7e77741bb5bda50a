"""Ray on a cluster's machines: kept between runs, asked about, ended. In pods KubeRay keeps it."""

from collections.abc import Callable, Mapping
from threading import Event
from typing import Any

from gpuctl.app import App
from gpuctl.command_results.nodes import RayEnd, RayState
from gpuctl.errors import Declined, Failed, Usage
from gpuctl.workflow.machines.connect import connected, load_inventory
from gpuctl.workflow.machines.daemons import end_daemons
from gpuctl.workflow.runs.stop import stop_run
from gpuctl.workflow.runs.unfinished_runs import open_runs, state_sentence
from inventories.machine import Inventory

LAUNCHER = "ray"
USUAL_PORT = 8265


def stop(app: App) -> list[RayEnd]:
    """End Ray on every machine; return the outcome of each. Raises Usage where KubeRay keeps it."""
    from remote.launchers import kuberay

    folder = app.store.cluster(app.options.cluster)
    inventory = load_inventory(folder)
    if kuberay.keeps_ray(inventory.machines):
        raise Usage(f"KubeRay keeps Ray in the pods of {folder.name}. `gpuctl down` ends both.")
    active = [run for run in open_runs(app, folder.name) if run.folder.load_run().mode == LAUNCHER]
    if active and not app.output.confirm(f"{state_sentence(active[-1])} End Ray, and the run with it?"):
        raise Declined("Cancelled: Ray was not ended.")
    with folder.lock("ray stop", on_wait=app.output.say):
        for run in active:
            for problem in stop_run(app, run.folder)[1]:
                app.output.say(f"run {run.id}: {problem}")
        ended = end_daemons(folder, inventory.machines, [LAUNCHER])
        errors = {outcome.node: outcome.error for outcome in ended}
        if not any(errors.values()):
            folder.ray_token_path.unlink(missing_ok=True)
    for name, error in errors.items():
        app.output.say(f"{name}: {'Ray has ended' if error is None else error}")
    if not errors:
        app.output.say(f"Ray was not started on {folder.name}: `gpuctl train --mode ray` starts it")
    return [RayEnd(node=name, error=str(error) if error else None) for name, error in errors.items()]


def status(app: App) -> list[RayState]:
    """Print whether Ray runs on each machine; return the states."""
    inventory, states = _states(app)
    for name, state in states.items():
        role = "head" if "gcs" in state["ports"] else "worker"
        app.output.say(f"{name}: {f'Ray runs, as the {role}' if state['running'] else 'Ray does not run'}")
    nodes = [
        RayState(node=name, running=bool(state["running"]), ports=state["ports"])
        for name, state in states.items()
    ]
    unknown = [machine.name for machine in inventory.machines if machine.name not in states]
    return nodes + [RayState(node=name, running=None, ports={}) for name in unknown]


def _states(app: App) -> tuple[Inventory, Mapping[str, Mapping[str, Any]]]:
    """Return the cluster, and Ray's state and ports on each machine that answers."""
    from remote.fanout import fan_out, values
    from remote.launchers import kuberay

    folder = app.store.cluster(app.options.cluster)
    inventory = load_inventory(folder)
    with connected(folder, inventory.machines, at_least=1, say=app.output.say) as nodes:
        if kuberay.keeps_ray(inventory.machines):
            counted = kuberay.counted(nodes)
            return inventory, {name: {"running": name in counted.ids, "ports": {}} for name in nodes}
        return inventory, values(fan_out(lambda node: node.call("ray_state", {"node": node.name}), nodes))


def dashboard(app: App, port: int | None, on_ready: Callable[[str], None]) -> None:
    """Forward a port to Ray's dashboard, tell its address, and stay until Ctrl-C.

    `port`: of this computer; `None`: Ray's usual one, else a free one. Raises Usage where Ray does not run or the
    port is taken, Failed where the connection breaks.
    """
    from remote.errors import PortTaken
    from remote.launchers import kuberay
    from remote.transport import LOOPBACK
    from remote.transport.port_forward import forward, wait_until_lost

    inventory, states = _states(app)
    running = {name: state["ports"] for name, state in states.items() if state["running"]}
    in_pods = kuberay.keeps_ray(inventory.machines)
    name = next((name for name, ports in running.items() if in_pods or "dashboard" in ports), None)
    if name is None:
        raise Usage(f"Ray does not run on {inventory.cluster}. `gpuctl train --mode ray` starts it.")
    remote_port = USUAL_PORT if in_pods else int(running[name]["dashboard"])
    if inventory.provider == "local":
        on_ready(f"http://{LOOPBACK}:{remote_port}")
        Event().wait()
    machine = next(machine for machine in inventory.machines if machine.name == name)
    with connected(app.store.cluster(inventory.cluster), (machine,)) as nodes:
        transport = nodes[name].transport
        host = kuberay.counted(nodes).head.partition(":")[0] if in_pods else LOOPBACK
        try:
            with forward(transport, remote_port, port, usual=USUAL_PORT, host=host) as local_port:
                on_ready(f"http://{LOOPBACK}:{local_port}")
                wait_until_lost(transport)
        except PortTaken as error:
            raise Usage(f"{error} Name another with --port, or none: a free one is then found.") from error
    raise Failed(f"The connection to {name} was lost, and the way to the dashboard with it. Try again.")
