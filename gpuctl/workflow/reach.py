"""From machines that the provider calls running to nodes that a run can start on."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuctl.options import App
from gpuctl.text import dollars, plural
from inventories.driver import DriverPlan
from inventories.errors import InventoryError
from inventories.files import write_atomic
from inventories.machine import Machine
from inventories.store import ClusterFolder

if TYPE_CHECKING:
    from remote.errors import RemoteError
    from remote.facts import Facts
    from remote.session import Node

BOOT_TIMEOUT_S = 900.0
"""From the moment that the provider calls a machine running; bare metal takes longest."""
MOST_SHOWN = 3
"""Consoles of which lines are shown; many machines mostly fail alike."""


@dataclass(frozen=True, kw_only=True)
class Boot:
    """How rented machines are waited for, and what can be said of those that do not come up."""

    timeout_s: float
    """For each boot: until SSH answers, cloud-init has ended and the facts are there."""
    console: Callable[[Machine], str | None]
    """As `Provider.console`."""
    hourly_usd: float | None
    """Price of all machines. None: not known."""
    driver: DriverPlan
    made: frozenset[str]
    """Names of the machines that were made just now: nobody is at work there, so that they may be rebooted."""


def reach(
    app: App, folder: ClusterFolder, machines: Sequence[Machine], *, boot: Boot | None
) -> tuple[Machine, ...]:
    """Connect to every machine and take its facts; returns the machines with their GPUs counted.

    `boot`: the machines are rented and may be booting; None: they are somebody's, and as they are. Raises the
    one machine's error, or SomeNodesFailed; of rented machines with the ends of their consoles.
    """
    from remote.fanout import fan_out, values

    app.output.say(f"connecting to {plural(len(machines), 'machine')} …")
    peers = tuple(machine.private_ip for machine in machines)
    by_name = {machine.name: machine for machine in machines}
    if boot is None:
        found = values(fan_out(lambda machine: _as_it_is(folder, machine, peers), by_name))
    else:
        waited = boot
        outcomes = fan_out(
            lambda machine: _booted(app, folder, machine, peers, waited),
            by_name,
            # Those that are slow to boot must not keep the others waiting.
            at_once=max(1, len(by_name)),
        )
        failed = {outcome.node: outcome.error for outcome in outcomes if outcome.error is not None}
        if failed:
            raise _failure(app, folder, by_name, failed, console=boot.console, hourly_usd=boot.hourly_usd)
        found = values(outcomes)
    for name, fact in found.items():
        torch = f"torch {fact.torch}" if fact.torch else "no torch"
        gpus = plural(len(fact.gpus), "GPU")
        app.output.say(f"{name}: {fact.os}, {fact.cpus} cores, {gpus}, Python {fact.python_version}, {torch}")
    _tell_of_gpus(app, found, by_name)
    return tuple(
        replace(machine, gpus=len(found[machine.name].gpus), state="running") for machine in machines
    )


def _as_it_is(folder: ClusterFolder, machine: Machine, peers: tuple[str, ...]) -> "Facts":
    from remote.connection import connect

    node = connect(machine, folder.known_hosts_path)
    try:
        return _facts(node, peers)
    finally:
        node.close()


def _booted(app: App, folder: ClusterFolder, machine: Machine, peers: tuple[str, ...], boot: Boot) -> "Facts":
    """The facts of a machine once it has booted.

    One that was made just now also boots once more where its GPU driver waits for that, and is given the time to
    come to its cluster network. Any other may be at work, and is left as it is.
    """
    from remote import readiness
    from remote.boot import connect_booting
    from remote.errors import ConnectionLost

    limit = time.monotonic() + boot.timeout_s

    def left_s() -> float:
        return max(1.0, limit - time.monotonic())

    while True:
        node = connect_booting(machine, folder.known_hosts_path, deadline_s=left_s(), say=app.output.say)
        try:
            set_up = readiness.wait_for_cloud_init(node, deadline_s=left_s(), say=app.output.say)
            for complaint in set_up.complaints:
                app.output.say(f"note: {node.name}: cloud-init complains: {complaint}")
            found = _facts(node, peers)
            if machine.name not in boot.made or found.active_runs:
                return found
            if readiness.driver_state(found.driver) != "reboot":
                return readiness.wait_for_cluster_network(
                    node, peers, found, deadline_s=readiness.RDMA_DEADLINE_S, say=app.output.say
                )
            app.output.say(f"{node.name}: the GPU driver waits for a reboot; rebooting once …")
            readiness.reboot(node)
            break
        except ConnectionLost:
            # Some images boot once more by themselves when they have set themselves up.
            if time.monotonic() > limit:
                raise
        finally:
            node.close()
    return readiness.facts_after_reboot(
        machine,
        folder.known_hosts_path,
        peers,
        boot_id=found.boot_id,
        deadline_s=boot.timeout_s,
        say=app.output.say,
    )


def _facts(node: "Node", peers: tuple[str, ...]) -> "Facts":
    from remote import facts
    from remote.errors import BadAnswer, DiskFull, NodeFailed

    try:
        return facts.gather(node, peers)
    except (BadAnswer, NodeFailed) as error:
        if isinstance(error, DiskFull) or "--python" in str(error):
            raise
        raise type(error)(
            f"{error} If {node.python} is no Python there, name one with --python PATH."
        ) from error


def _tell_of_gpus(app: App, found: "Mapping[str, Facts]", machines: Mapping[str, Machine]) -> None:
    """A note for each machine whose GPUs can't be used as they are, or that has fewer than its shape."""
    from remote.readiness import driver_problem

    for name, fact in found.items():
        wanted = machines[name].gpus or 0
        if problem := driver_problem(fact.driver):
            after = f"when the run {fact.active_runs[0]} has ended: " if fact.active_runs else ""
            app.output.say(f"note: {name}: {problem[0]}; {after}{problem[1]}")
        elif 0 < len(fact.gpus) < wanted:
            app.output.say(
                f"note: {name}: {plural(len(fact.gpus), 'GPU')}, where {wanted} should be; gpuctl exec -- sudo dmesg "
                "shows what the kernel says of the others (lines with NVRM and Xid); replace the machine"
            )


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A machine's console, as far as it could be had."""

    lines: tuple[str, ...] = ()
    """Those that tell most."""
    note: str
    """Where all of it is, or why there is none."""


def _failure(
    app: App,
    folder: ClusterFolder,
    machines: Mapping[str, Machine],
    failed: "Mapping[str, RemoteError]",
    *,
    console: Callable[[Machine], str | None],
    hourly_usd: float | None,
) -> "RemoteError":
    """The error to raise for machines that did not come up, with the ends of their consoles, which are kept in
    the cluster's folder. Takes a minute or so at most.

    `machines`: all of the cluster, by name; `failed`: those of them whose error is known.
    """
    from provision.parallel import run_all
    from remote.errors import SomeNodesFailed

    asked = [name for name, error in failed.items() if _may_show_on_console(error)]
    if asked:
        app.output.say(f"fetching the console of {', '.join(asked)} …")
    seen = dict(zip(asked, run_all(lambda name: _look(folder, machines[name], console), asked), strict=True))
    parts = []
    for name, error in failed.items():
        parts.append(str(error))
        if name in seen:
            parts += _told(seen[name], lines=asked.index(name) < MOST_SHOWN)
    ready = [name for name in machines if name not in failed]
    end = _staying(folder.name, len(machines), ready, hourly_usd)
    if len(failed) == 1:
        (only,) = failed.values()
        error = type(only)("\n".join([*parts, end]))
        error.__cause__ = only
        return error
    head = f"{len(failed)} of {len(machines)} machines are not ready:"
    return SomeNodesFailed("\n".join([head, *(f"  {part}" for part in parts), end]))


def _told(seen: _Seen | Exception, *, lines: bool) -> list[str]:
    """What an error's text says of a console."""
    if isinstance(seen, Exception):
        return [f"  Its console could not be read: {seen}"]
    return [f"  {seen.note}", *(f"    {line}" for line in seen.lines if lines)]


def _staying(cluster: str, count: int, ready: Sequence[str], hourly_usd: float | None) -> str:
    """What becomes of the machines, and how to go on."""
    price = "at an unknown price" if hourly_usd is None else f"for {dollars(hourly_usd)} an hour"
    who = "The machine stays and is" if count == 1 else f"All {plural(count, 'machine')} stay and are"
    fine = f" Ready: {', '.join(ready)}." if ready else ""
    return (
        f"{who} billed, {price}.{fine} `gpuctl up --cluster {cluster}` waits again (--boot-timeout 30m: longer), "
        f"`gpuctl down --cluster {cluster}` removes {'it' if count == 1 else 'them'}."
    )


def _may_show_on_console(error: "RemoteError") -> bool:
    from remote.errors import AuthenticationFailed, NotReady, Unreachable

    return isinstance(error, AuthenticationFailed | NotReady | Unreachable)


def _look(folder: ClusterFolder, machine: Machine, console: Callable[[Machine], str | None]) -> _Seen:
    from provision.console import telling

    text = console(machine)
    if text is None:
        return _Seen(note="Its console shows nothing yet.")
    path = folder.path / f"console-{machine.name}.log"
    try:
        write_atomic(path, text.encode())
        where = f"all of it is in {path}"
    except InventoryError as error:
        where = f"it could not be kept: {error}"
    return _Seen(lines=telling(text), note=f"The end of its console; {where}:")
