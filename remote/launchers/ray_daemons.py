"""Ray's daemons on the nodes of a cluster: started where they are not as they should be, ended, asked about."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from inventories.machine import Machine
from remote.errors import BadAnswer, RayNotReady
from remote.facts import Facts, cores_of_a_node
from remote.fanout import fan_out, values
from remote.launchers import ray_commands as ray
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.shared import frames
from remote.shared.constants import LOGS, NODE_FOLDER, RAY

READY_DEADLINE_S = 90.0
SILENCE_S = 30.0
START_TIMEOUT_S = 120.0


def bring_up(
    nodes: Mapping[str, Node],
    facts: Mapping[str, Facts],
    token: str,
    say: Callable[[str, str], None],
    *,
    most: int = 0,
) -> tuple[str, dict[str, str]]:
    """Have a head on the first of the nodes and workers on the others, and wait until Ray counts all of them in.

    Returns HOST:PORT of the head's control service, and Ray's id of each node.
    Daemons in the right state are kept. `say`: gets a node's name and its action. `most`: the number of nodes that
    there may be later, where that is known. Raises RayNotReady with the nodes that are missing, NodeFailed with the
    output of a node's Ray.
    """
    machines = sorted((node.machine for node in nodes.values()), key=lambda machine: machine.rank)
    start = partial(_start, facts=facts, master=machines[0], token=token, say=say, most=most)
    first = start(nodes[machines[0].name], head=None)
    head = f"{ray.address_of(machines[0])}:{int(first['ports']['gcs'])}"
    workers = values(fan_out(partial(start, head=head), {m.name: nodes[m.name] for m in machines[1:]}))
    ids = _wait_until_ready(nodes, machines[0], {machines[0].name: first, **workers}, facts, say)
    return head, ids


def join(
    nodes: Mapping[str, Node],
    joining: Machine,
    facts: Mapping[str, Facts],
    head: str,
    master: Machine,
    token: str,
    say: Callable[[str, str], None],
    *,
    most: int,
) -> str:
    """Add a worker on one more node to a running cluster, and wait like `bring_up`; returns its id.

    `facts`: of all of its nodes. `head` is on `master`.
    """
    node = nodes[joining.name]
    started = _start(node, facts=facts, head=head, master=master, token=token, say=say, most=most)
    return _wait_until_ready(nodes, master, {joining.name: started}, facts, say)[joining.name]


def _start(
    node: Node,
    *,
    facts: Mapping[str, Facts],
    head: str | None,
    master: Machine,
    token: str,
    say: Callable[[str, str], None],
    most: int,
) -> dict[str, Any]:
    """Have the daemons of one node, and return its answer. `head` `None`: it is the head itself."""
    daemons = ray.daemons(
        node.machine,
        facts[node.name],
        cores=cores_of_a_node(facts)[node.name],
        master=master,
        nodes=max(len(facts), most),
        head=head,
        token=token,
    )
    started = node.call("ray_start", daemons, timeout_s=START_TIMEOUT_S)
    part = "head" if head is None else "worker"
    suffix = "" if head is not None else ", and stays for later runs: gpuctl ray stop ends it"
    say(node.name, f"Ray's {part} {'is there' if started['kept'] else 'was started'}{suffix}")
    return started


def _wait_until_ready(
    nodes: Mapping[str, Node],
    master: Machine,
    started: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, Facts],
    say: Callable[[str, str], None],
) -> dict[str, str]:
    """Wait until the head on `master` counts in the daemons of `started` on these nodes. Returns Ray's id of each."""
    head = nodes[master.name]
    names = {ray.address_of(nodes[name].machine): name for name in started}
    request = {
        "node": head.name,
        "expected": {
            address: {"gpus": len(facts[name].gpus), "start": str(started[name]["start"])}
            for address, name in names.items()
        },
        "deadline_s": READY_DEADLINE_S,
    }
    missing_before: list[str] = []
    # Between two of its words every missing node is asked, too.
    bounds = Bounds(total_s=READY_DEADLINE_S + SILENCE_S + len(started) * SILENCE_S)
    with head.stream("ray_ready", request, timeout_s=SILENCE_S, bounds=bounds) as talk:
        for header, _ in talk.frames():
            missing = [names.get(address, str(address)) for address in header["missing"]]
            if header["t"] == frames.READY and missing:
                raise RayNotReady(
                    f"Ray's head on {head.name} did not count in {', '.join(missing)} in {READY_DEADLINE_S:.0f} s. "
                    f"{missing[0]}'s own log may tell: gpuctl exec --rank {missing[0]} -- 'tail -n 20 "
                    f"~/{NODE_FOLDER}/{RAY}/*/daemons-*/{LOGS}/ray.log'"
                )
            if header["t"] == frames.READY:
                return {names[address]: str(of) for address, of in header["ids"].items()}
            if missing != missing_before:
                say(head.name, f"Ray waits for {', '.join(missing)}")
                missing_before = missing
            for name in missing:
                state = nodes[name].call("ray_state", {"node": name})
                if not state["running"]:
                    raise RayNotReady(f"{name}: Ray ended as soon as it was started: {state['said']}.")
    raise BadAnswer(f"{head.name}: it did not say whether Ray is ready.")


def end(node: Node) -> bool:
    """End Ray's daemons on a node; True if any ran. Raises NodeFailed if some remain."""
    return bool(node.call("ray_stop", {"node": node.name}, timeout_s=START_TIMEOUT_S)["was_there"])
