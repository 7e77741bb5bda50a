"""Notifications (`--notify`): the request to a first node, messages of this command, and undelivered ones.

The targets and the secrets go to the node with the request that starts its process, and stay in its memory.
"""

import base64
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread
from typing import TYPE_CHECKING, Any

from gpuctl.app import App
from gpuctl.errors import Attention, Declined, GpuctlError, Usage
from gpuctl.option_table.values import notify_targets
from gpuctl.workflow.machines.cloud_record import cloud_record
from inventories.disk import files
from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Inventory, Machine
from inventories.runs.run import Run
from remote.shared.constants import RENDEZVOUS_PORTS
from remote.shared.notify.message import Notice, notice
from remote.shared.notify.target import Target, parse, shown
from remote.shared.secret_arguments import without_secrets

if TYPE_CHECKING:
    from remote.checks.notices import Undelivered
    from remote.sessions.session import Node
    from remote.shared.notify.delivery import Attempt

NOTIFY = "notify"
"""Event in a cluster's journal: `targets`, without their secrets."""
SECRET_VARIABLE, SMTP_VARIABLE = "GPUCTL_NOTIFY_SECRET", "GPUCTL_SMTP"
WRONG_INPUT = Usage.exit_status
ANSWER_S, PAUSES_S = 10.0, (2.0, 10.0)
"""For an attempt of this command, which a person waits for, and before each further one."""


def settings(store: Store) -> dict[str, str]:
    """Return the secret that signs notices, made with the first of them, and the URL of the mail server."""
    path = store.home / "notify.secret"
    if not (secret := os.environ.get(SECRET_VARIABLE, "")):
        if not files.exists(path):
            _make_secret(path)
        secret = path.read_text().strip()
    return {"secret": secret, "smtp": os.environ.get(SMTP_VARIABLE, "")}


def _make_secret(path: Path) -> None:
    """Make the secret, unless another command makes it at the same time: all have to sign with the same."""
    files.private_dir(path.parent)
    with files.sentence("write", path), NamedTemporaryFile(dir=path.parent, prefix=".notify.") as file:
        file.write(b"whsec_" + base64.b64encode(secrets.token_bytes(32)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            path.hardlink_to(file.name)
        files.sync_folder(path.parent)


def for_run(
    store: Store,
    folder: ClusterFolder,
    targets: Sequence[str],
    run: Run,
    inventory: Inventory,
    machines: Sequence[Machine],
    *,
    continues: bool,
    failures_only: bool,
) -> dict[str, dict[str, Any]]:
    """Return the requests to a run's nodes for its notices, and note the targets in the journal.

    The first node sends them; the others report to it how they ended. `continues`: another run may follow this one if
    it fails. `failures_only`: its success is left to the notice that the queue is empty.
    """
    note_targets(folder, targets)
    first, *peers = machines
    followers = [node.name for node in run.nodes[1:]]
    ports = [port for port in RENDEZVOUS_PORTS if port != run.master_port]
    ends = {"address": run.master_addr, "port": secrets.choice(ports), "key": secrets.token_hex(16)}
    request = {
        "ends": ends if followers else None,
        "targets": list(targets),
        "settings": settings(store),
        "run": {
            "run": run.run,
            "cluster": run.cluster,
            "name": run.options.name if run.options else None,
            "script": run.script,
            "args": without_secrets(run.args),
            "node": first.name,
            "nodes": len(run.nodes),
            "ranks": run.world_size,
            "hourly_usd": run.hourly_usd,
            "started": datetime.fromisoformat(run.started_at).timestamp() + run.nodes[0].clock_offset_s,
            "peers": {machine.name: machine.private_ip for machine in peers},
            "followers": followers,
            "continues": continues,
            "failures_only": failures_only,
        },
        "machine": _end_of(folder, inventory, first, first=True),
    }
    return {first.name: request} | {name: {"ends": ends, "run": {"node": name}} for name in followers}


def note_targets(folder: ClusterFolder, targets: Sequence[str]) -> None:
    """Note in the journal that machines of the cluster may have undelivered notices. `targets`: the known ones."""
    folder.journal.append(NOTIFY, targets=[shown(parse(target)) for target in targets])


def default_targets(app: App) -> tuple[str, ...]:
    """Return the targets in the user's configuration. Raises Usage and InvalidInput, without any secret."""
    if not app.config.notify:
        return ()
    if app.config_path.stat().st_mode & 0o077:
        raise Usage(
            f"{app.config_path}: others can read this file, and 'notify' holds secrets: chmod 600 {app.config_path}"
        )
    return notify_targets(app.config.notify)


def title_of(run: Run) -> str:
    """Return a run's name, or else its script."""
    return (run.options.name if run.options else None) or run.script


def send_from_here(app: App, targets: Sequence[str], notice: Notice) -> None:
    """Deliver a notice that no node can send, and report each target that it did not reach."""
    if not targets:
        return
    from remote.shared.notify.delivery import deliver

    signing, results = settings(app.store), dict[Target, "Attempt"]()

    def send(target: Target) -> None:
        results[target] = deliver(target, notice, signing, pauses_s=PAUSES_S, answer_s=ANSWER_S)

    # Daemons: after Ctrl-C no thread may keep the process.
    threads = [Thread(target=send, args=(parse(target),), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    with suppress(KeyboardInterrupt):  # the result of the command is not to be lost
        for thread in threads:
            thread.join()
    for target in map(parse, targets):
        if (result := results.get(target)) is None:
            app.output.say(f"it is not known whether the notification {notice.type} reached {shown(target)}")
        elif not result.delivered:
            app.output.say(f"the notification {notice.type} did not reach {shown(target)}: {result.detail}")


def watch_machines(app: App, folder: ClusterFolder, inventory: Inventory, targets: Sequence[str]) -> None:
    """Have machines send a notice before they end: each spot machine of AWS, else the first. Prints problems.

    Machines without a known end are not watched.
    """
    from remote.sessions.connect import ask_each

    record = cloud_record(folder, inventory.provider)
    if record is None or not (record.expires_at or record.idle_s or record.spot):
        return
    note_targets(folder, targets)
    alive = [machine for machine in inventory.machines if machine.state not in ("gone", "stopped")]
    request = {"targets": list(targets), "settings": settings(app.store)}

    def start(node: "Node") -> None:
        end = _end_of(folder, inventory, node.machine, first=node.machine == alive[0])
        node.call("notify", {**request, "machine": end})

    for outcome in ask_each(start, alive if _spot_of(folder, inventory) else alive[:1], folder):
        if outcome.error:
            app.output.say(f"note: {outcome.node} sends no notification before it ends: {outcome.error}")


def _end_of(folder: ClusterFolder, inventory: Inventory, machine: Machine, *, first: bool) -> dict[str, Any]:
    """Return the signs of a machine's end for the node that watches them. `first`: it announces the end of all."""
    record = cloud_record(folder, inventory.provider)
    ends_at = datetime.fromisoformat(record.expires_at).timestamp() if record and record.expires_at else None
    return {
        "cluster": folder.name,
        "node": machine.name,
        "first": first,
        "ends_at": ends_at,
        "spot": _spot_of(folder, inventory),
    }


def _spot_of(folder: ClusterFolder, inventory: Inventory) -> str:
    """Return the cloud that announces the end of its spot machines on them. Empty: no cloud does."""
    record = cloud_record(folder, inventory.provider)
    return "aws" if record is not None and inventory.provider == "aws" and record.spot else ""


@contextmanager
def failure_sent(app: App, targets: Sequence[str], command: str, cluster: str) -> Iterator[None]:
    """Send a notice if the body fails; not for wrong options and a no, which the caller sees at once.

    `targets`: empty: the user's configuration has them.
    """
    try:
        yield
    except GpuctlError as error:
        if error.exit_status != WRONG_INPUT and not isinstance(error, Declined):
            try:
                send_from_here(app, targets or default_targets(app), command_failed(command, cluster, error))
            except GpuctlError as problem:
                app.output.say(f"the failure is not sent: {problem}")
        raise


def command_failed(command: str, cluster: str, error: GpuctlError | str) -> Notice:
    """Return the notice of a command that failed, or that is done in part. `command`: `train my.py`."""
    ending = "is done in part" if isinstance(error, Attention) else "failed"
    return _notice("command.failed", "bad", f"gpuctl {command} {ending}", [str(error)], cluster)


def command_succeeded(command: str, cluster: str, lines: Sequence[str]) -> Notice:
    """Return the notice of a command that has done its work."""
    return _notice("command.succeeded", "good", f"gpuctl {command} is done", lines, cluster)


def first_node_lost(run: Run, why: str) -> Notice:
    """Return the notice of a run that lost the node which would have sent its notices."""
    node = run.nodes[0].name
    lines = [why, f"run {run.run} on {run.cluster}", f"gpuctl results {run.run}"]
    title = f"{title_of(run)} lost {node}, its first node"
    return _notice("run.node_lost", "bad", title, lines, run.cluster, run=run.run, node=node)


def not_restarted(run: Run, why: str) -> Notice:
    """Return the notice of a job that gpuctl was to restart, and did not."""
    lines = [why, f"gpuctl results {run.run}"]
    return _notice(
        "job.not_restarted", "bad", f"{title_of(run)} is not restarted", lines, run.cluster, run=run.run
    )


def _notice(type_: str, tone: str, title: str, lines: Sequence[str], cluster: str, **data: str) -> Notice:
    now = time.time()
    event = f"{type_} {cluster} {now}"
    return notice(
        event, type=type_, at=now, tone=tone, title=title, lines=lines, data={"cluster": cluster, **data}
    )


def undelivered(
    folder: ClusterFolder, machines: Sequence[Machine], say: Callable[[str], None]
) -> "tuple[Undelivered, ...] | None":
    """Return the notices that a cluster's machines could not deliver, and print each.

    Returns:
        The notices. `None`: the cluster had no notifications, so no machine is asked, or a machine did not answer.
    """
    if not any(entry["event"] == NOTIFY for entry in folder.journal.read()):
        return None
    from remote.checks.notices import ask, sentence
    from remote.fanout import values
    from remote.sessions.connect import ask_each

    alive = [m for m in machines if m.state not in ("gone", "stopped") and m.host]
    outcomes = ask_each(ask, alive, folder)
    silent = [outcome for outcome in outcomes if outcome.error]
    for outcome in silent:
        say(f"whether notifications of {outcome.node} arrived is not known: {outcome.error}")
    answers = values([outcome for outcome in outcomes if not outcome.error])
    failures = tuple(failure for answer in answers.values() for failure in answer)
    for failure in failures:
        say(sentence(failure))
    return None if silent else failures
