"""Notifications (`--notify`): the request to a first node, messages of this command, and undelivered ones.

The targets and the secrets go to the node with the request that starts its process, and stay in its memory.
"""

import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpuctl.app import App
from inventories.disk import files
from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Inventory, Machine
from inventories.runs.run import Run
from remote.shared.notify.delivery import Attempt, deliver
from remote.shared.notify.message import Notice
from remote.shared.notify.target import Target, parse, shown

if TYPE_CHECKING:
    from remote.checks.notices import Undelivered

NOTIFY = "notify"
"""Event in a cluster's journal: `targets`, without their secrets."""
SECRET_VARIABLE, SMTP_VARIABLE = "GPUCTL_NOTIFY_SECRET", "GPUCTL_SMTP"
PAUSES_S = (2.0, 10.0)
"""Before each further attempt of this command, which a person waits for."""


def settings(store: Store) -> dict[str, str]:
    """Return the secret that signs notices, made with the first of them, and the URL of the mail server."""
    path = store.home / "notify.secret"
    if not (secret := os.environ.get(SECRET_VARIABLE, "")):
        if not files.exists(path):
            files.private_dir(store.home)
            files.write_atomic(path, secrets.token_urlsafe(32).encode() + b"\n")
        secret = path.read_text().strip()
    return {"secret": secret, "smtp": os.environ.get(SMTP_VARIABLE, "")}


def for_run(
    store: Store,
    folder: ClusterFolder,
    targets: Sequence[str],
    run: Run,
    machines: Sequence[Machine],
    *,
    continues: bool,
) -> dict[str, Any]:
    """Return the request to the first node for a run's notices, and note the targets in the journal.

    `continues`: another run may follow this one if it fails.
    """
    folder.journal.append(NOTIFY, targets=[shown(parse(target)) for target in targets])
    first, *peers = machines
    return {
        "targets": list(targets),
        "settings": settings(store),
        "run": {
            "run": run.run,
            "cluster": run.cluster,
            "title": run.script,
            "node": first.name,
            "nodes": len(run.nodes),
            "ranks": run.world_size,
            "hourly_usd": run.hourly_usd,
            "started": datetime.fromisoformat(run.started_at).timestamp(),
            "peers": {machine.name: machine.private_ip for machine in peers},
            "continues": continues,
        },
    }


def send_from_here(app: App, targets: Sequence[str], notice: Notice) -> None:
    """Deliver a notice that no node can send, and report each target that it did not reach."""
    if not targets:
        return
    secret_settings = settings(app.store)

    def send(target: Target) -> Attempt:
        return deliver(target, notice, secret_settings, pauses_s=PAUSES_S)

    parsed = [parse(target) for target in targets]
    with ThreadPoolExecutor(len(parsed)) as pool:
        for target, result in zip(parsed, pool.map(send, parsed), strict=True):
            if not result.delivered:
                app.output.say(
                    f"the notification {notice.type} did not reach {shown(target)}: {result.detail}"
                )


def undelivered(folder: ClusterFolder, inventory: Inventory) -> "tuple[Undelivered, ...] | None":
    """Return the notices that the cluster's machines could not deliver. `None`: a machine did not answer.

    Without any notification in the cluster's journal, no machine is asked.
    """
    if not any(entry["event"] == NOTIFY for entry in folder.journal.read()):
        return ()
    from remote.checks.notices import ask
    from remote.fanout import fan_out, values
    from remote.sessions.connect import connect

    def of(machine: Machine) -> "list[Undelivered]":
        with connect(machine, folder) as node:
            return ask(node)

    alive = {m.name: m for m in inventory.machines if m.state not in ("gone", "stopped") and m.host}
    outcomes = fan_out(of, alive)
    if any(outcome.error is not None for outcome in outcomes):
        return None
    return tuple(notice for notices in values(outcomes).values() for notice in notices)
