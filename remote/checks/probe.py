"""Do the nodes reach each other? One conversation with each: all listen, then all connect to all others at once.

A node that is dead or slow holds the others up no longer than the deadline; it is named in its own answer.
"""

import math
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from threading import Condition
from typing import Any, Generic, TypeVar

from inventories.clocks import MAX_RETRIES, Watch, awake_s, wait_awake
from inventories.codec import from_json
from remote.errors import BadAnswer, NodeFailed
from remote.fanout import fan_out
from remote.sessions.answers import answer_as, reading
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.shared import frames
from remote.shared.constants import AT_ONCE, ROUND_S

HIGH_PORTS = 2
READY_DEADLINE_S = 5.0
"""From the start until a node listens; the others then go on without it."""
SLACK_S = 2.0
"""A node that is silent for this much longer than its attempts can take is given up."""

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A connection that a node tried."""

    peer: str
    address: str
    port: int
    outcome: str
    """`connected`, or what `remote.node` names: `refused`, `timeout`, …, `stranger`, `silent`, `stalled`."""


@dataclass(frozen=True, kw_only=True)
class PortUse:
    """A port that a node could not listen on."""

    port: int
    """0: any port at all."""
    problem: str
    """`in use`, `not ours` (the address), or the system's own words."""
    holder: str | None
    """`command (pid 1)`, where it is known."""


@dataclass(frozen=True, kw_only=True)
class StaleProcess:
    """A process of a run that is over."""

    pid: int
    command: str | None
    run: str
    gpu: bool
    """Whether it has a GPU open."""
    ports: tuple[int, ...]
    """The ports on which the process listens."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """Properties of a node that may spoil a run and are not among its facts. `None`: could not be found out."""

    interface: str | None
    """The one that has the address which peers connect to."""
    mtu: int | None
    """Its MTU, bytes."""
    hostname: str
    hostname_addresses: tuple[str, ...] | None
    """The addresses of the hostname on the node itself. `None`: no answer in time."""
    free_inodes: int | None
    nccl: str | None
    """Version of the NCCL that torch's wheels bring."""
    stale: tuple[StaleProcess, ...]


@dataclass(frozen=True, kw_only=True)
class ProbeAnswer:
    """A node's answer, or the error in its place."""

    node: str
    failure: str | None = None
    """A sentence where the probe broke off on this node; the rest is then empty."""
    attempts: tuple[Attempt, ...] = ()
    taken: tuple[PortUse, ...] = ()
    health: Health | None = None
    rank_address: str | None = None
    """Address at which NCCL and gloo listen, if it is not the machine's private_ip."""


def probe(nodes: Mapping[str, Node], *, master: str, rendezvous_port: int | None) -> dict[str, ProbeAnswer]:
    """Return every node's answer. `rendezvous_port` is tried on the node `master`; `None`: on no node.

    Never raises for a node: what went wrong with it is its answer's `failure`. The nodes give up after a while
    without a word from here, so they are asked again where this process was away.
    """
    for _ in range(MAX_RETRIES):
        watch = Watch()
        answers = _ask(nodes, master=master, rendezvous_port=rendezvous_port)
        if not watch.was_away():
            break
    return answers


def _ask(nodes: Mapping[str, Node], *, master: str, rendezvous_port: int | None) -> dict[str, ProbeAnswer]:
    token = secrets.token_hex(16)
    silence_s = silence_of(len(nodes))
    # It says three things, and waits for the others twice in between.
    bounds = Bounds(total_s=3 * silence_s + 2 * READY_DEADLINE_S + silence_s)
    ready: Meeting[list[dict[str, Any]]] = Meeting(nodes, deadline_s=READY_DEADLINE_S)
    done: Meeting[None] = Meeting(nodes, deadline_s=READY_DEADLINE_S + silence_s)

    def ask_node(node: Node) -> ProbeAnswer:
        port = rendezvous_port if node.name == master else None
        request = {
            "name": node.name,
            "address": node.machine.private_ip,
            "master": nodes[master].machine.private_ip,
            "token": token,
            "rendezvous_port": port,
            "high_ports": HIGH_PORTS,
        }
        try:
            with (
                reading(node.name, "the probe's answer"),
                node.stream("probe", request, timeout_s=silence_s, bounds=bounds) as talk,
            ):
                incoming = talk.frames()
                opened = _next(incoming, frames.LISTENING, node)
                if not ready.arrive(node.name, targets_at(node, opened, port)):
                    raise NodeFailed(f"{node.name}: its probe began {READY_DEADLINE_S:.0f} s late or more.")
                addresses = ready.wait()
                talk.send(
                    {
                        "t": frames.PEERS,
                        "targets": [t for name in addresses if name != node.name for t in addresses[name]],
                    }
                )
                outcome = _next(incoming, frames.OUTCOMES, node)
                done.arrive(node.name, None)
                done.wait()
                talk.send({"t": frames.CLOSE})
                # To its end: the ranks will want the port that it listened on.
                for header, _ in incoming:
                    raise BadAnswer(f"{node.name}: the probe spoke on after its end: {header.get('t')!r}.")
            with reading(node.name, "the probe's answer"):
                answer = parse(node.name, opened, outcome)
                second = opened["address"] != node.machine.private_ip
                return replace(answer, rank_address=opened["address"]) if second else answer
        finally:
            ready.leave(node.name)
            done.leave(node.name)

    # All at once, however many they are: each waits for all others.
    outcomes = fan_out(ask_node, nodes, at_once=len(nodes))
    return {
        outcome.node: outcome.value or ProbeAnswer(node=outcome.node, failure=str(outcome.error))
        for outcome in outcomes
    }


def silence_of(nodes: int) -> float:
    """Return how long a node may stay silent, seconds; one of the nodes also listens on the rendezvous port."""
    return math.ceil(((nodes - 1) * HIGH_PORTS + 1) / AT_ONCE) * ROUND_S + SLACK_S


class Meeting(Generic[Value]):
    """A meeting point of threads: each waits until all have arrived or left, or the deadline has passed."""

    def __init__(self, names: Iterable[str], *, deadline_s: float) -> None:
        self._until = awake_s() + deadline_s
        self._expected = set(names)
        self._arrived: dict[str, Value] = {}
        self._over = False
        self._changed = Condition()

    def arrive(self, name: str, value: Value) -> bool:
        """Bring a value; False where the others have gone on without it."""
        with self._changed:
            if not self._over:
                self._arrived[name] = value
                self._changed.notify_all()
            return not self._over

    def leave(self, name: str) -> None:
        """Leave the meeting: nobody waits for `name` any longer; its value stays."""
        with self._changed:
            self._expected.discard(name)
            self._changed.notify_all()

    def wait(self) -> dict[str, Value]:
        """Return the values that arrived in time: the same for all threads."""
        with self._changed:
            wait_awake(
                lambda left_s: (
                    self._changed.wait_for(
                        lambda: self._over or self._expected <= self._arrived.keys(), left_s
                    )
                    or None
                ),
                self._until - awake_s(),
            )
            self._over = True
            self._changed.notify_all()
            return dict(self._arrived)


def targets_at(node: Node, opened: Mapping[str, Any], rendezvous_port: int | None) -> list[dict[str, Any]]:
    """Return the connections that the peers are to try to a node; the last one carries a payload."""
    ports = [int(port) for port in opened["ports"]]
    return [
        {
            "peer": node.name,
            "address": node.machine.private_ip if port == rendezvous_port else str(opened["address"]),
            "port": port,
            "payload": port == ports[-1],
        }
        for port in ports
    ]


def _next(incoming: Iterator[frames.Frame], kind: str, node: Node) -> dict[str, Any]:
    header = next(incoming, ({}, b""))[0]
    if header.get("t") != kind:
        raise BadAnswer(f"{node.name}: the probe said {header.get('t')!r} where {kind!r} was due.")
    return header


def parse(name: str, opened: Mapping[str, Any], outcomes: Mapping[str, Any]) -> ProbeAnswer:
    """Return a node's answer from its two frames. Raises KeyError, TypeError or CorruptFile for other frames."""
    attempts = [answer_as(Attempt, attempt, "an attempt") for attempt in outcomes["attempts"]]
    answer = {"node": name, "taken": opened["taken"], "health": outcomes["health"]}
    return replace(from_json(ProbeAnswer, answer, "the answer"), attempts=tuple(attempts))
