"""The load of the nodes: one sample of each, or all of them watched while somebody looks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event, Lock, Thread
from typing import Any, Literal, Self

from inventories import codec
from inventories.clocks import awake_s
from inventories.disk.cluster_files import ClusterFiles
from inventories.errors import CorruptFile
from inventories.machine import Machine
from remote.errors import BadAnswer, ConnectionLost, NodeFailed, RemoteError, Unreachable
from remote.fanout import fan_out
from remote.sessions.answers import answer_as, reading
from remote.sessions.connect import connect
from remote.sessions.limits import TALK_BYTES, Bounds
from remote.sessions.session import Node

SILENCE_S = 15.0
"""A node sends every second or so; the first time it may have to wake its GPUs."""
RETRY_S = 2.0
LONGEST_RETRY_S = 15.0
MAX_GPUS = 64
MAX_NAME = 100


@dataclass(frozen=True, kw_only=True)
class GpuUsage:
    """A sample of a GPU. `None`: its driver can't measure it, or did not in time."""

    index: int
    name: str
    utilization: float | None
    """The fraction of the last moment in which it worked, 0 .. 1."""
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_c: float | None
    power_w: float | None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A sample of a node. `None`: can't be known there."""

    cpus: int | None
    cpu_utilization: float | None
    """Of all CPUs together, 0 .. 1, since the sample before."""
    load_1m: float | None
    memory_used_bytes: int | None
    """What programs can't have any more: the page cache is not in it."""
    memory_total_bytes: int | None
    interfaces: tuple[str, ...]
    """The interfaces whose bytes count: on the routes to the peers, else all physical ones."""
    received_bytes_per_s: float | None
    sent_bytes_per_s: float | None
    disk_free_bytes: int | None
    """Where the home folder is."""
    gpus: tuple[GpuUsage, ...] | None
    """The usable GPUs. `None`: nvidia-smi exists, and lists no GPU."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The latest reading of a node."""

    node: str
    rank: int
    state: Literal["connecting", "ok", "lost"]
    error: str | None = None
    """Why it was lost, in whole sentences."""
    usage: Usage | None = None
    """The latest sample; `None` unless `ok`."""
    heard_s: float | None = field(default=None, metadata=codec.OMITTED)
    """Monotonic time of that sample."""


def parse(document: Mapping[str, Any]) -> Usage:
    """Read a node's sample. Raises CorruptFile for anything else."""
    usage = answer_as(Usage, document, "usage")
    names = [*usage.interfaces, *(gpu.name for gpu in usage.gpus or ())]
    if len(usage.gpus or ()) > MAX_GPUS or any(len(name) > MAX_NAME for name in names):
        raise CorruptFile(f"it has more than {MAX_GPUS} GPUs, or names of more than {MAX_NAME} characters.")
    return usage


def _watch(
    node: Node,
    all_machines: Sequence[Machine],
    take: Callable[[Usage], None],
    *,
    every_s: float,
    samples: int | None,
) -> None:
    """Ask a node for samples and take each as it comes. Raises RemoteError."""
    request = {
        "every_s": every_s,
        "samples": samples,
        "peers": sorted({peer.private_ip for peer in all_machines if peer.name != node.name}),
    }
    silence_s = SILENCE_S + every_s
    total_s = None if samples is None else silence_s * (samples + 1)
    bounds = Bounds(total_s=total_s, max_bytes=None if samples is None else TALK_BYTES)
    with node.stream("usage", request, timeout_s=silence_s, bounds=bounds) as talk:
        for header, _ in talk.frames():
            with reading(node.name, "its usage"):
                usage = parse(header["usage"])
            take(usage)


def read_once(
    machines: Sequence[Machine], all_machines: Sequence[Machine], cluster: ClusterFiles
) -> list[Reading]:
    """Take one sample of every machine, all at once; unreachable ones are `lost`."""

    def read_machine(machine: Machine) -> Usage:
        samples: list[Usage] = []
        with connect(machine, cluster) as node:
            _watch(node, all_machines, samples.append, every_s=1.0, samples=1)
        if len(samples) != 1:
            raise BadAnswer(f"{machine.name}: expected one sample, got {len(samples)}.")
        return samples[0]

    outcomes = fan_out(read_machine, {machine.name: machine for machine in machines})
    return [
        Reading(
            node=machine.name,
            rank=machine.rank,
            state="ok" if outcome.error is None else "lost",
            error=None if outcome.error is None else str(outcome.error),
            usage=outcome.value,
        )
        for machine, outcome in zip(machines, outcomes, strict=True)
    ]


class Watching:
    """A watch of all nodes, each by a thread over one connection and one conversation. A context manager.

    A node that is lost is connected to again and again, with a growing pause; one that refuses us, or talks nonsense,
    stays lost. The others go on.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        all_machines: Sequence[Machine],
        cluster: ClusterFiles,
        *,
        every_s: float,
    ) -> None:
        self._machines = tuple(machines)
        self._all_machines = tuple(all_machines)
        self._cluster = cluster
        self._every_s = every_s
        self._closed = Event()
        self._lock = Lock()
        self._readings = {
            machine.name: Reading(node=machine.name, rank=machine.rank, state="connecting")
            for machine in machines
        }
        self._nodes: dict[str, Node] = {}
        self._crash: Exception | None = None

    def __enter__(self) -> Self:
        for machine in self._machines:
            Thread(target=self._follow, args=(machine,), daemon=True, name=f"watch {machine.name}").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with self._lock:
            nodes = list(self._nodes.values())
        for node in nodes:
            node.close()

    def readings(self) -> list[Reading]:
        """Return the latest reading of each node, in the machines' order. Raises a thread's error."""
        with self._lock:
            if self._crash is not None:
                raise self._crash
            return [self._readings[machine.name] for machine in self._machines]

    def _follow(self, machine: Machine) -> None:
        """A node's thread: watch it, and connect again where that helps."""
        pause_s = RETRY_S
        while not self._closed.is_set():
            began = awake_s()
            try:
                self._follow_once(machine)
            except (ConnectionLost, Unreachable, NodeFailed) as error:
                self._put(machine, state="lost", error=str(error), usage=None, heard_s=None)
            except RemoteError as error:
                self._put(machine, state="lost", error=str(error), usage=None, heard_s=None)
                return
            except Exception as error:  # noqa: BLE001 - raised again by `readings`, in the caller's thread
                with self._lock:
                    self._crash = error
                return
            if awake_s() - began > LONGEST_RETRY_S * 2:
                pause_s = RETRY_S
            self._closed.wait(pause_s)
            pause_s = min(pause_s * 2, LONGEST_RETRY_S)

    def _follow_once(self, machine: Machine) -> None:
        node = connect(machine, self._cluster)
        with self._lock:
            self._nodes[machine.name] = node
        try:
            if self._closed.is_set():
                return
            _watch(
                node,
                self._all_machines,
                lambda usage: self._put(machine, state="ok", error=None, usage=usage, heard_s=awake_s()),
                every_s=self._every_s,
                samples=None,
            )
            raise ConnectionLost(f"{machine.name}: the node stopped telling how busy it is.")
        finally:
            with self._lock:
                self._nodes.pop(machine.name, None)
            node.close()

    def _put(self, machine: Machine, **changed: Any) -> None:  # noqa: ANN401 - Reading's own fields
        with self._lock:
            self._readings[machine.name] = replace(self._readings[machine.name], **changed)
