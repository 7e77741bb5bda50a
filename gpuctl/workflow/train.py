"""`train`: ready nodes → a run → its result."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpuctl.errors import Failed, Usage
from gpuctl.options import App
from gpuctl.text import plural
from gpuctl.view import View, open_view
from gpuctl.workflow.collect import conclude
from gpuctl.workflow.connect import connected, load_inventory
from gpuctl.workflow.firewall import owner_of
from gpuctl.workflow.prepare import Prepared, prepare
from inventories.machine import Inventory, Machine
from inventories.run import Result, Run, RunNode

if TYPE_CHECKING:
    from inventories.store import RunFolder
    from remote.facts import Facts
    from remote.python_env.requirements import Wanted
    from remote.script import Script
    from remote.session import Node
    from remote.tree import Tree
    from remote.watch import Watch


LAUNCHER = ("torch",)
"""What starts the ranks; a requirement of every environment that is not locked."""


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What a person asked `gpuctl train` for."""

    mode: Literal["torchrun"] = "torchrun"
    nnodes: int | None = None
    """None: all machines."""
    nproc_per_node: int | None = None
    """None: one a GPU, or one where there is none."""
    detach: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    pip: tuple[str, ...] = ()
    """Requirements for the ranks' environment."""
    requirements: Path | None = None
    wheels: Path | None = None
    """Folder of wheels to install from, instead of an index."""
    skip_preflight: bool = False
    module: str | None = None
    words: tuple[str, ...] = ()
    """The script and its arguments, or the built-in job's options."""

    @property
    def built_in(self) -> bool:
        """True: no script was named."""
        return self.module is None and (not self.words or self.words[0].startswith("-"))


def train(app: App, request: TrainRequest) -> tuple[Result, bool]:
    """Run it. Returns the result, and whether a person interrupted it."""
    from remote.watch import Watch

    began, started_at = time.monotonic(), datetime.now(UTC)
    folder = app.store.cluster(app.options.cluster)
    inventory = load_inventory(folder)
    machines = machines_of(inventory, request)
    script, tree, destination = what_to_run(app, request, inventory)
    wanted = what_to_install(request, tree, machines, app.output.say)
    with open_view(app.output, logs=not request.built_in) as view, ExitStack() as preparing:
        # Held until the ranks have started: no `up`, `down` or second `train` comes in between.
        preparing.enter_context(folder.lock("train", on_wait=view.note))
        view.phase("connect", f"connecting to {plural(len(machines), 'node')}")
        with connected(folder, machines) as nodes:
            seconds = {"connect": time.monotonic() - began}
            mark = time.monotonic()
            view.phase("prepare", "facts, firewalls, environment, code")
            prepared = prepare(view, folder, inventory, nodes, tree, destination, wanted)
            seconds["prepare"] = time.monotonic() - mark
            mark = time.monotonic()
            view.phase("preflight", "trying every connection, checking what would fail later")
            _preflight(view, nodes, prepared, machines[0], skip=request.skip_preflight)
            seconds["preflight"] = time.monotonic() - mark
            run_folder = app.store.new_run(started_at)
            run = plan_run(
                run_folder.id, inventory, request, script, machines, prepared.facts, started_at, seconds
            )
            launches = launches_of(run, script, prepared, request.env)
            watch = Watch(
                run,
                run_folder,
                {name: node.machine for name, node in nodes.items()},
                folder.known_hosts_path,
                view,
                gang=True,
                nodes=nodes,
            )
            with interrupts_go_to(watch):
                run_folder.save_run(run)
                return _launch(
                    view, run_folder, run, watch, launches, preparing, detach=request.detach, began=began
                )


@contextmanager
def interrupts_go_to(watch: "Watch") -> Iterator[None]:
    """From here on Ctrl-C is a message to the watch: nothing is broken off half-way."""
    before = signal.signal(signal.SIGINT, lambda _number, _frame: watch.interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def machines_of(inventory: Inventory, request: TrainRequest) -> Sequence[Machine]:
    """The machines that take part: the first `nnodes` by rank, each with the interpreter asked for."""
    count = len(inventory.machines) if request.nnodes is None else request.nnodes
    if not 1 <= count <= len(inventory.machines):
        raise Usage(
            f"--nnodes {count} is not possible: the cluster {inventory.cluster} has "
            f"{plural(len(inventory.machines), 'node')}. Add some with: gpuctl up --count {max(count, 1)}"
        )
    chosen = sorted(inventory.machines, key=lambda machine: machine.rank)[:count]
    return [replace(m, python=request.python) for m in chosen] if request.python else chosen


def _price(inventory: Inventory, machines: int) -> float | None:
    """USD an hour of the machines that take part: their share of the cluster's price."""
    if inventory.hourly_usd is None:
        return None
    return inventory.hourly_usd * machines / len(inventory.machines)


def what_to_run(app: App, request: TrainRequest, inventory: Inventory) -> "tuple[Script, Tree, str]":
    """The script, the files to send, and the folder on the nodes that takes them."""
    from remote.script import BUILT_IN_FOLDER, built_in, built_in_tree, user_script
    from remote.sync import code_folder
    from remote.tree import read_tree

    if request.built_in:
        return built_in(request.words), built_in_tree(), BUILT_IN_FOLDER
    tree = read_tree(Path.cwd(), allow_large=app.options.yes)
    return user_script(request.words, request.module, tree), tree, code_folder(tree.root, owner_of(inventory))


def what_to_install(
    request: TrainRequest, tree: "Tree", machines: Sequence[Machine], say: Callable[[str], None]
) -> "Wanted | None":
    """What the ranks' environment holds. None: the machines' interpreter is used as it is."""
    from remote.python_env.requirements import wanted

    named = bool(request.pip or request.requirements or request.wheels)
    if request.python and named:
        raise Usage(
            "--python uses an interpreter as it is, and installs nothing: leave it out, or leave out --pip, "
            "--requirements and --wheels."
        )
    own = [machine for machine in machines if machine.python]
    if not named and own:
        listed = None if request.built_in or request.python else wanted(tree.root)
        if listed is not None:
            say(
                f"{listed.source} is not installed: {own[0].name} uses {own[0].python} as it is. `--requirements "
                f"{listed.source}` builds an environment with what it lists."
            )
        return None
    return wanted(
        tree.root,
        pip=request.pip,
        requirements=request.requirements,
        wheels=request.wheels,
        built_in=request.built_in,
        always=LAUNCHER,
    )


def _preflight(
    view: View, nodes: "Mapping[str, Node]", prepared: Prepared, master: Machine, *, skip: bool
) -> None:
    """Raises PreflightFailed; `skip`: only where nothing could be started at all."""
    from remote import preflight
    from remote.probe import probe

    facts, port = prepared.facts, prepared.facts[master.name].free_port
    busy = any(fact.active_runs for fact in facts.values())
    if skip and port is not None and prepared.code:
        view.note("the preflight is skipped, as you said")
        return
    probes = None if busy or skip else probe(nodes, master=master.name, rendezvous_port=port)
    preflight.check(facts, probes, master=master, note=view.note)


def built_in_help() -> int:
    """Print the built-in job's own options, on this computer: its parser needs no torch."""
    from remote.script import built_in_tree

    return subprocess.run(
        [sys.executable, "-m", "train", "--help"], cwd=built_in_tree().root, check=False
    ).returncode


def plan_run(
    run_id: str,
    inventory: Inventory,
    request: TrainRequest,
    script: "Script",
    machines: Sequence[Machine],
    facts: "Mapping[str, Facts]",
    started_at: datetime,
    seconds: Mapping[str, float],
) -> Run:
    """The run's record: which ranks on which node, and where they meet."""
    parts: list[RunNode] = []
    first_rank = 0
    for rank, machine in enumerate(machines):
        fact = facts[machine.name]
        nproc = request.nproc_per_node or len(fact.gpus) or 1
        parts.append(
            RunNode(
                name=machine.name,
                rank=rank,
                nproc=nproc,
                first_rank=first_rank,
                # A home may be shared by all nodes.
                run_dir=f"{fact.home}/.gpuctl-node/runs/{run_id}/{machine.name}",
                clock_offset_s=round(fact.clock_offset_s, 3),
            )
        )
        first_rank += nproc
    port = facts[machines[0].name].free_port or 0  # the preflight refuses a node that has none
    return Run(
        run=run_id,
        cluster=inventory.cluster,
        mode=request.mode,
        script=script.title,
        args=script.args,
        nodes=tuple(parts),
        master_addr=machines[0].private_ip,
        master_port=port,
        started_at=started_at.isoformat(timespec="milliseconds"),
        seconds={name: round(value, 3) for name, value in seconds.items()},
        hourly_usd=_price(inventory, len(machines)),
    )


def launches_of(
    run: Run, script: "Script", prepared: Prepared, wished: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """What is started on each node."""
    from remote import torchrun
    from remote.facts import cores_of_a_node

    cores = cores_of_a_node(prepared.facts)
    return {
        part.name: torchrun.launch_spec(
            run,
            part,
            prepared.facts[part.name],
            script,
            cwd=prepared.code[part.name],
            cores=cores[part.name],
            wished=wished,
        )
        for part in run.nodes
    }


def _launch(
    view: View,
    folder: "RunFolder",
    run: Run,
    watch: "Watch",
    launches: Mapping[str, dict[str, Any]],
    preparing: ExitStack,
    *,
    detach: bool,
    began: float,
) -> tuple[Result, bool]:
    """Start the ranks and see the run through, or leave it alone where that was asked for."""
    where = plural(len(run.nodes), "node")
    ranks = plural(run.world_size, "rank")
    view.phase("launch", f"run {run.run}: starting {ranks} on {where}")
    mark = time.monotonic()

    def started() -> None:
        preparing.close()
        if not detach:
            view.phase("train", f"{run.script}: {ranks} at work")

    try:
        watch.go(launches=launches, wait=not detach, on_started=started)
        launched = max(watch.started_s.values(), default=mark)
        run = replace(run, seconds={**run.seconds, "launch": round(launched - mark, 3)})
        folder.save_run(run)
        if not detach:
            view.phase("collect", "bringing the results back")
        result = conclude(run, folder, watch, launched=launched, began=began)
    except OSError as error:
        raise Failed(
            f"Run {run.run} can no longer be watched from here: {error}. It goes on by itself: mend that, then "
            f"gpuctl logs -f {run.run} follows it and gpuctl stop {run.run} ends it."
        ) from error
    finally:
        watch.close()
    return result, watch.interrupts > 0
