"""`up`: spec → plan → machines → reachable nodes. Again: converges."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuctl.options import App
from gpuctl.text import plural
from gpuctl.workflow.connect import connected
from inventories.files import write_atomic
from inventories.machine import Inventory, Machine
from inventories.spec import Spec
from inventories.store import ClusterFolder
from provision.errors import RefusedPlan
from provision.provider import Plan


@dataclass(frozen=True, kw_only=True)
class HostKeys:
    """Where the host keys of machines come from that exist already."""

    files: tuple[Path, ...]
    accept_new: bool


def plan_up(folder: ClusterFolder, spec: Spec) -> Plan:
    """What `up` would do. Read-only."""
    from provision.providers import infer, load

    current = folder.load() if folder.exists() else None
    if current is not None:
        if spec.provider is None and spec.shape is None and spec.hosts is None:
            spec = replace(spec, provider=current.provider)
        name = infer(spec)
        if name != current.provider:
            raise RefusedPlan(
                f"The cluster {folder.name} is of provider {current.provider}, not {name}. Use another name "
                f"(--cluster NAME), or remove it first: gpuctl down --cluster {folder.name}"
            )
    else:
        name = infer(spec)
    return load(name, folder).plan(spec, current)


def up(app: App, spec: Spec, host_keys: HostKeys, *, dry_run: bool) -> dict[str, Any]:
    """Bring the cluster to what is asked for; returns the document of `up --json`."""
    began = time.monotonic()
    folder = app.store.cluster(spec.cluster)
    if dry_run:
        return _show_dry_run(app, plan_up(folder, spec))
    # Refused before anything is written; the plan that counts is made under the lock.
    plan_up(folder, spec)
    folder.make()
    with folder.lock("up", on_wait=app.output.say):
        plan = plan_up(folder, spec)
        if plan.changes and not plan.free:
            price = "of unknown price" if plan.hourly_usd is None else f"for ${plan.hourly_usd:.2f} an hour"
            if not app.output.confirm(f"Create {len(plan.create)} machines {price}?"):
                raise RefusedPlan("Nothing was created, as you said no.")
        inventory = _create(app, folder, plan, host_keys)
    seconds = round(time.monotonic() - began, 3)
    _say_what_changed(app, plan, inventory, seconds)
    return describe(inventory) | {"seconds": seconds}


def describe(inventory: Inventory) -> dict[str, Any]:
    """A cluster as `up --json` and `status --json` show it."""
    return {
        "cluster": inventory.cluster,
        "provider": inventory.provider,
        "region": inventory.region,
        "machines": [machine.public() for machine in inventory.machines],
        "hourly_usd": inventory.hourly_usd,
    }


def _create(app: App, folder: ClusterFolder, plan: Plan, host_keys: HostKeys) -> Inventory:
    """Carry the plan out. The inventory is written as soon as the machines exist, before they are reached."""
    from provision.providers import load
    from remote import known_hosts

    folder.journal.append("up", provider=plan.provider, create=[machine.name for machine in plan.create])
    before = folder.load() if folder.exists() else None
    if plan.changes:
        _say(app, f"creating {plural(len(plan.create), 'machine')} with {plan.provider} …")
    machines = load(plan.provider, folder).create(plan, folder.journal)
    pinned = [known_hosts.pin(m, host_keys.files, accept_new=host_keys.accept_new) for m in machines]
    known = {machine.id: machine.gpus for machine in (before.machines if before else ())}
    inventory = Inventory(
        cluster=folder.name,
        provider=plan.provider,
        region=plan.region,
        shape=plan.spec.shape or (before.shape if before else None),
        hourly_usd=plan.hourly_usd,
        created_at=before.created_at if before else datetime.now(UTC).isoformat(timespec="seconds"),
        machines=tuple(m if m.gpus is not None else replace(m, gpus=known.get(m.id)) for m in pinned),
    )
    _save(folder, inventory)
    inventory = replace(inventory, machines=_reach(app, folder, inventory.machines))
    if inventory != before:
        _save(folder, inventory)
    return inventory


def _save(folder: ClusterFolder, inventory: Inventory) -> None:
    """The inventory, and what is made of it: known_hosts and the configuration for ssh."""
    from remote import known_hosts, ssh_config

    write_atomic(folder.known_hosts_path, known_hosts.render(inventory.machines).encode())
    text = ssh_config.render(inventory.machines, folder.known_hosts_path)
    write_atomic(folder.ssh_config_path, text.encode())
    folder.save(inventory)


def _reach(app: App, folder: ClusterFolder, machines: Sequence[Machine]) -> tuple[Machine, ...]:
    """Connect to every machine and take its facts; returns the machines with their GPUs counted."""
    from remote import facts
    from remote.fanout import fan_out, values

    _say(app, f"connecting to {plural(len(machines), 'machine')} …")
    peers = tuple(machine.private_ip for machine in machines)
    with connected(folder, machines) as nodes:
        found = values(fan_out(lambda node: facts.gather(node, peers), nodes))
    for name, fact in found.items():
        torch = f"torch {fact.torch}" if fact.torch else "no torch"
        gpus = plural(len(fact.gpus), "GPU")
        _say(app, f"{name}: {fact.os}, {fact.cpus} cores, {gpus}, Python {fact.python_version}, {torch}")
    return tuple(
        replace(machine, gpus=len(found[machine.name].gpus), state="running") for machine in machines
    )


def _show_dry_run(app: App, plan: Plan) -> dict[str, Any]:
    """Print exactly what would be done; returns it as a document."""
    if not plan.changes:
        _say(app, "nothing to create: the machines are as asked for")
    for line in plan.actions:
        _say(app, line)
    return {
        "cluster": plan.spec.cluster,
        "provider": plan.provider,
        "region": plan.region,
        "create": [
            {"name": m.name, "rank": m.rank, "shape": m.shape, "replaces": m.replaces} for m in plan.create
        ],
        "keep": [machine.public() for machine in plan.keep],
        "hourly_usd": plan.hourly_usd,
        "actions": list(plan.actions),
    }


def _say_what_changed(app: App, plan: Plan, inventory: Inventory, seconds: float) -> None:
    count = plural(len(inventory.machines), "machine")
    if not plan.changes:
        _say(
            app,
            f"nothing changed: the cluster {inventory.cluster} has {count}, as asked for ({seconds:.1f} s)",
        )
        return
    replaced = sum(1 for machine in plan.create if machine.replaces)
    new = len(plan.create) - replaced
    parts = [f"{new} created"] * bool(new) + [f"{replaced} replaced"] * bool(replaced)
    _say(app, f"the cluster {inventory.cluster} is up: {count}, {', '.join(parts)} ({seconds:.1f} s)")


def _say(app: App, text: str) -> None:
    app.output.say(text)
