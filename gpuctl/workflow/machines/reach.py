"""From machines that the provider calls running to nodes that a run can start on."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from gpuctl.app import App
from gpuctl.text import dollars
from gpuctl.workflow.machines.setup_state import ready_ids
from inventories.clocks import awake_s
from inventories.disk.files import write_atomic
from inventories.disk.store import ClusterFolder
from inventories.errors import InventoryError
from inventories.machine import Inventory, Machine
from inventories.specs.gpu_driver import NO_DRIVER, DriverPlan
from inventories.text import plural

if TYPE_CHECKING:
    from remote.errors import RemoteError
    from remote.facts import EndTimer, Facts
    from remote.gpu_driver.decision import Limits
    from remote.gpu_driver.setup import DriverOutcome
    from remote.sessions.session import Node

BOOT_TIMEOUT_S = 900.0
"""From the moment that the provider calls a machine running; bare metal takes longest."""
MAX_SHOWN = 3
"""Consoles of which lines are shown; many machines mostly fail alike."""


@dataclass(frozen=True, kw_only=True)
class Boot:
    """Limits and data of the wait for rented machines, and for its error."""

    timeout_s: float
    """For each boot: until SSH answers, cloud-init has ended and the facts are there."""
    console: Callable[[Machine], str | None]
    """The provider's `console`."""
    hourly_usd: float | None
    """Price of all machines. `None`: not known."""
    made: frozenset[str]
    """Names of machines made just now, or never ready: nobody uses them, so they may be rebooted."""
    end_timer: str | None = None
    """Name of the timer that powers the machines off at the end of their cluster's time. `None`: no time limit."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Machines that can be reached."""

    machines: tuple[Machine, ...]
    """With their GPUs counted, unless the GPUs can't be used."""
    problems: Mapping[str, str]
    """Machine → why its GPUs can't be used as the driver plan has it, and the fix: a sentence with its name."""
    end_timers: "Mapping[str, EndTimer]" = field(default_factory=dict)
    """Machine → state of the timer that powers it off, where it is known."""


def reach(
    app: App,
    folder: ClusterFolder,
    machines: Sequence[Machine],
    *,
    boot: Boot | None,
    driver: DriverPlan = NO_DRIVER,
    limits: "Limits | None" = None,
) -> Reached:
    """Connect to every machine, see to its GPUs' driver, and take its facts.

    `boot`: the machines are rented and may be booting; `None`: they are somebody's, and up. `driver`: as the plan has
    it. `limits`: how long that is waited for; `None`: the usual ones. Raises the one machine's error, or
    SomeNodesFailed; of rented machines with the ends of their consoles.
    """
    from inventories.threads import MAX_AT_ONCE
    from remote.fanout import fan_out, values
    from remote.gpu_driver.decision import Limits

    app.output.say(f"connecting to {plural(len(machines), 'machine')} …")
    work = _Work(app, folder, tuple(m.private_ip for m in machines), driver, limits or Limits())
    by_name = {machine.name: machine for machine in machines}
    outcomes = fan_out(
        work.up if boot is None else partial(work.booted, boot=boot),
        by_name,
        # No waves: a slow boot must not delay the other machines.
        at_once=MAX_AT_ONCE if boot is None and driver.source == "none" else max(1, len(by_name)),
    )
    failed = {outcome.node: outcome.error for outcome in outcomes if outcome.error is not None}
    results = {outcome.node: outcome.value for outcome in outcomes if outcome.value is not None}
    problems = {name: result.problem for name, result in results.items() if result.problem is not None}
    if failed and boot is not None:
        raise _failure(app, folder, by_name, failed, problems=problems, boot=boot)
    if failed:
        for problem in problems.values():
            app.output.say(f"note: {problem}")
    values(outcomes)
    all_facts = {name: result.facts for name, result in results.items()}
    for name, fact in all_facts.items():
        torch = f"torch {fact.torch}" if fact.torch else "no torch"
        gpus = plural(len(fact.gpus), "GPU")
        app.output.say(f"{name}: {fact.os}, {fact.cpus} cores, {gpus}, Python {fact.python_version}, {torch}")
    _note_gpu_problems(app, {name: fact for name, fact in all_facts.items() if name not in problems}, by_name)
    return Reached(
        machines=tuple(
            replace(
                machine,
                gpus=machine.gpus if machine.name in problems else len(all_facts[machine.name].gpus),
                state="running",
            )
            for machine in machines
        ),
        problems=problems,
        end_timers={name: fact.end_timer for name, fact in all_facts.items() if fact.end_timer is not None},
    )


def never_ready(
    folder: ClusterFolder, machines: Sequence[Machine], *, created: Collection[str]
) -> frozenset[str]:
    """Return the names of machines that no `up` has called ready: new ones, and ones of an `up` that was cut off."""
    ready = ready_ids(folder)
    return frozenset(
        machine.name for machine in machines if machine.name in created or machine.id not in ready
    )


def gpu_problems(inventory: Inventory, reached: Reached) -> str:
    """Return a sentence for each machine with unusable GPUs."""
    problems, count = list(reached.problems.values()), len(inventory.machines)
    if len(problems) == 1:
        return problems[0]
    head = f"The GPUs of {len(problems)} of {count} machines can't be used:"
    return "\n".join([head, *(f"  {problem}" for problem in problems)])


def gpu_hint(inventory: Inventory, reached: Reached, *, billed: bool) -> str:
    """Return the state of these machines, and the commands to type next."""
    count = len(inventory.machines)
    if billed:
        ready = [machine.name for machine in inventory.machines if machine.name not in reached.problems]
        return _staying(inventory.cluster, count, ready, inventory.hourly_usd)
    return (
        f"The cluster {inventory.cluster} has {plural(count, 'machine')}. The same `gpuctl up` tries again; with "
        "--driver none it takes them as they are."
    )


@dataclass(frozen=True)
class _Work:
    """The steps for each machine."""

    app: App
    folder: ClusterFolder
    peers: tuple[str, ...]
    driver: DriverPlan
    limits: "Limits"

    def up(self, machine: Machine) -> "DriverOutcome":
        """Prepare a machine that has booted before."""
        from remote.checks import readiness
        from remote.sessions.connect import connect

        with connect(machine, self.folder) as node:
            if self.driver.source != "none":
                # Its result is the owner's business, but until its end it may install packages itself.
                readiness.watch_cloud_init(node, deadline_s=BOOT_TIMEOUT_S, say=self.app.output.say)
            node_facts = _facts(node, self.peers)
        return self._with_driver(machine, node_facts, free=True, return_s=BOOT_TIMEOUT_S, judged=False)

    def booted(self, machine: Machine, *, boot: Boot) -> "DriverOutcome":
        """Prepare a machine once it has booted.

        A machine that nobody can use yet also reboots if its GPU driver needs that, and gets time to join its cluster
        network. Any other is left as it is, unless the plan installs its driver.
        """
        from remote.checks import readiness
        from remote.sessions.connect import connect

        fresh = machine.name in boot.made
        booted_facts = self._booted_facts(machine, boot)
        free = fresh or self.driver.source == "install"
        result = self._with_driver(machine, booted_facts, free=free, return_s=boot.timeout_s)
        result = replace(result, facts=replace(result.facts, end_timer=booted_facts.end_timer))
        if not fresh or result.facts.active_runs or result.problem is not None:
            return result
        with connect(machine, self.folder) as node:
            facts = readiness.wait_for_cluster_network(
                node, self.peers, result.facts, deadline_s=readiness.RDMA_DEADLINE_S, say=self.app.output.say
            )
        return replace(result, facts=replace(facts, end_timer=booted_facts.end_timer))

    def _with_driver(
        self, machine: Machine, node_facts: "Facts", *, free: bool, return_s: float, judged: bool = True
    ) -> "DriverOutcome":
        from remote.gpu_driver.setup import see_to_driver

        return see_to_driver(
            machine,
            self.folder,
            self.peers,
            node_facts,
            plan=self.driver,
            free=free,
            limits=self.limits,
            return_s=return_s,
            judged=judged,
            say=self.app.output.say,
        )

    def _booted_facts(self, machine: Machine, boot: Boot) -> "Facts":
        """Return the facts of a machine once SSH answers and cloud-init has ended."""
        from remote.checks import readiness
        from remote.errors import ConnectionLost
        from remote.sessions.wait_for_boot import connect_booting

        say, limit = self.app.output.say, awake_s() + boot.timeout_s

        def left_s() -> float:
            return max(1.0, limit - awake_s())

        while True:
            node = connect_booting(machine, self.folder, deadline_s=left_s(), say=say)
            try:
                set_up = readiness.wait_for_cloud_init(node, deadline_s=left_s(), say=say)
                for complaint in set_up.complaints:
                    say(f"note: {node.name}: cloud-init complains: {complaint}")
                facts, unit = _facts(node, self.peers, boot.end_timer), boot.end_timer
                if (
                    unit is not None
                    and facts.end_timer == "inactive"
                    and readiness.start_end_timer(node, unit)
                ):
                    return replace(facts, end_timer="active")
                return facts
            except ConnectionLost:
                # Some images reboot after their own setup.
                if awake_s() > limit:
                    raise
            finally:
                node.close()


def _facts(node: "Node", peers: tuple[str, ...], end_timer: str | None = None) -> "Facts":
    from remote import facts
    from remote.errors import BadAnswer, DiskFull, HomeNotWritable, NodeFailed, NoPython, ShellFailed

    try:
        return facts.gather(node, peers, end_timer=end_timer)
    except (BadAnswer, NodeFailed) as error:
        if isinstance(error, DiskFull | HomeNotWritable | NoPython | ShellFailed):
            raise
        raise type(error)(
            f"{error} If {node.python} is no Python there, name one with --python PATH."
        ) from error


def _note_gpu_problems(app: App, all_facts: "Mapping[str, Facts]", machines: Mapping[str, Machine]) -> None:
    """Note each machine with unusable GPUs, or with fewer than its shape has."""
    from remote.checks.readiness import driver_problem
    from remote.findings import KERNEL_LOG

    for name, fact in all_facts.items():
        expected = machines[name].gpus or 0
        if problem := driver_problem(fact.driver):
            after = f"when the run {fact.active_runs[0]} has ended: " if fact.active_runs else ""
            app.output.say(f"note: {name}: {problem[0]}; {after}{problem[1]}")
        elif 0 < len(fact.gpus) < expected:
            app.output.say(
                f"note: {name}: {plural(len(fact.gpus), 'GPU')}, where {expected} should be; {KERNEL_LOG} "
                "shows what the kernel says of the others (lines with NVRM and Xid); replace the machine"
            )


@dataclass(frozen=True, kw_only=True)
class _Console:
    """A machine's console, as far as it could be had."""

    lines: tuple[str, ...] = ()
    """The most useful lines."""
    note: str
    """The place of the whole text, or why it is missing."""


def _failure(
    app: App,
    folder: ClusterFolder,
    machines: Mapping[str, Machine],
    failed: "Mapping[str, RemoteError]",
    *,
    problems: Mapping[str, str],
    boot: Boot,
) -> "RemoteError":
    """Return the error for machines that did not come up, with the last lines of their consoles.

    Takes a minute at most. The consoles are kept in the cluster's folder. `machines`: all of the cluster, by
    name; `failed`: the machines with a known error; `problems`: driver problems of others.
    """
    from inventories.threads import run_all
    from remote.errors import AuthenticationFailed, NotReady, SomeNodesFailed, Unreachable

    unreached = [
        name
        for name, error in failed.items()
        if isinstance(error, AuthenticationFailed | NotReady | Unreachable)
    ]
    if unreached:
        app.output.say(f"fetching the console of {', '.join(unreached)} …")
    read = run_all(lambda name: _read_console(folder, machines[name], boot.console), unreached)
    consoles = dict(zip(unreached, read, strict=True))
    parts = []
    for name, error in failed.items():
        parts.append(str(error))
        console = consoles.get(name)
        if isinstance(console, Exception):
            parts.append(f"  Its console could not be read: {console}")
        elif console is not None:
            lines = console.lines if unreached.index(name) < MAX_SHOWN else ()
            parts += [f"  {console.note}", *(f"    {line}" for line in lines)]
    parts += problems.values()
    ready = [name for name in machines if name not in {**failed, **problems}]
    end = _staying(folder.name, len(machines), ready, boot.hourly_usd)
    if len(failed) == 1 and not problems:
        (only,) = failed.values()
        error = type(only)("\n".join([*parts, end]))
        error.__cause__ = only
        return error
    head = f"{len(machines) - len(ready)} of {len(machines)} machines are not ready:"
    return SomeNodesFailed("\n".join([head, *(f"  {part}" for part in parts), end]))


def _staying(cluster: str, count: int, ready: Sequence[str], hourly_usd: float | None) -> str:
    """Return the state and price of the machines, and the commands to type next."""
    price = "at an unknown price" if hourly_usd is None else f"for {dollars(hourly_usd)} an hour"
    subject = "The machine stays and is" if count == 1 else f"All {plural(count, 'machine')} stay and are"
    fine = f" Ready: {', '.join(ready)}." if ready else ""
    return (
        f"{subject} billed, {price}.{fine} `gpuctl up --cluster {cluster}` waits again (--boot-timeout 30m: longer), "
        f"`gpuctl down --cluster {cluster}` removes {'it' if count == 1 else 'them'}."
    )


def _read_console(
    folder: ClusterFolder, machine: Machine, console: Callable[[Machine], str | None]
) -> _Console:
    from provision.rented.serial_console import relevant_lines

    text = console(machine)
    if text is None:
        return _Console(note="Its console shows nothing yet.")
    path = folder.path / f"console-{machine.name}.log"
    try:
        write_atomic(path, text.encode())
        where = f"all of it is in {path}"
    except InventoryError as error:
        where = f"it could not be kept: {error}"
    return _Console(lines=relevant_lines(text), note=f"The end of its console; {where}:")
