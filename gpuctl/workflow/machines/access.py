"""`exec`, `ssh`, `push` and `pull`: the machines themselves."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpuctl.app import App
from gpuctl.command_results.nodes import CommandResult, Pulled, Pushed
from gpuctl.errors import Declined, Failed, Usage
from gpuctl.run_results.outputs import pull_command
from gpuctl.text import clean, with_tilde
from gpuctl.workflow.machines.connect import connected, load_inventory
from inventories.machine import Machine
from inventories.text import plural

if TYPE_CHECKING:
    from remote.files.sync import Synced
    from remote.sessions.session import Node

MAX_PULL_BYTES = 100 * 1000**3


class Listener(Protocol):
    """Receiver of a command's output while it runs. Called from several threads."""

    def line(self, node: str, stream: str, line: bytes) -> None:
        """Receive a line of a node's `stdout` or `stderr`, without its end."""

    def ended(self, result: CommandResult) -> None:
        """Receive the result of the command on a node."""


def chosen(app: App, node: str | None) -> tuple[Machine, ...]:
    """Return the machine with this rank or name; for `None` all machines of the cluster."""
    inventory = load_inventory(app.store.cluster(app.options.cluster))
    return inventory.machines if node is None else (inventory.machine(node),)


def with_ssh(machines: Sequence[Machine]) -> Sequence[Machine]:
    """Return the machines. Raises Usage for one without SSH, which Fabric needs."""
    for machine in machines:
        if machine.transport != "ssh":
            raise Usage(
                f"{machine.name} is reached by {machine.transport}, and Fabric needs SSH: use `gpuctl exec`."
            )
    return machines


def execute(
    app: App, words: Sequence[str], rank: str | None, listener: Listener | None = None
) -> list[CommandResult]:
    """Run a command on the nodes at once and return the results. `listener` gets the lines while it runs."""
    from remote.sessions.connect import ask_each
    from remote.sessions.session import shell_command

    folder = app.store.cluster(app.options.cluster)
    machines = chosen(app, rank)
    command = shell_command(tuple(words))

    def run(node: "Node") -> CommandResult:
        done = node.run(command, None if listener is None else partial(listener.line, node.name))
        result = CommandResult(
            node=node.name,
            rank=node.machine.rank,
            exit_code=done.exit_code,
            stdout=done.stdout.decode(errors="replace"),
            stderr=done.stderr.decode(errors="replace"),
        )
        if listener is not None:
            listener.ended(result)
        return result

    outcomes = ask_each(run, machines, folder)
    return [
        outcome.value
        or CommandResult(
            node=machine.name,
            rank=machine.rank,
            exit_code=None,
            stdout="",
            stderr="",
            error=str(outcome.error),
        )
        for machine, outcome in zip(machines, outcomes, strict=True)
    ]


def ssh_config(app: App) -> tuple[str, Path]:
    """Return the cluster's OpenSSH configuration, and its file."""
    from remote.transport import ssh_config as text

    folder = app.store.cluster(app.options.cluster)
    machines = load_inventory(folder).machines
    if not any(machine.has_ssh for machine in machines):
        raise Usage(
            f"The machines of {folder.name} are pods, without SSH: `gpuctl ssh` opens a shell in one."
        )
    return text.render(machines, folder.known_hosts_path), folder.ssh_config_path


def open_shell(app: App, rank: str, words: tuple[str, ...]) -> int:
    """Open a shell on a node, or run a command there; return its exit status. Raises Usage with --json.

    On a node with SSH, this process becomes the system's ssh client.
    """
    if app.options.json:
        raise Usage("gpuctl ssh has no document to print. For a command's outcome: gpuctl exec --json -- CMD")
    folder = app.store.cluster(app.options.cluster)
    machine = load_inventory(folder).machine(rank)
    from remote.sessions.session import shell_command

    words = words[1:] if words[:1] == ("--",) else words
    line = shell_command(tuple(words)) if words else ""
    if machine.transport != "pod":
        _refuse_key_of(machine)
        command = ["ssh", "-F", str(folder.ssh_config_path), "--", machine.name, *([line] if line else [])]
        try:
            os.execvp(command[0], command)  # noqa: S606 - an argv, no shell
        except FileNotFoundError as error:
            raise Failed("There is no ssh client on this computer. Install OpenSSH's client.") from error
    from remote.transport.pods import pod_shell

    return pod_shell.run(machine, folder, line)


def _refuse_key_of(machine: Machine) -> None:
    """Raise Usage for a key that gpuctl can read and OpenSSH's client refuses."""
    path = machine.key_file
    if path is None or not path.is_file():
        return
    status, quoted = path.stat(), shlex.quote(str(path))
    if status.st_uid == os.getuid() and status.st_mode & 0o077:
        raise Usage(
            f"ssh refuses the key {path}, as other accounts may read it (on a disk of Windows, copy it to ~/.ssh and "
            f"name the copy). Type: chmod 600 {quoted}"
        )
    if b"BEGIN OPENSSH" in (data := path.read_bytes()) and b"\r\n" in data:
        raise Usage(
            f"ssh can't read the key {path}, as its lines end as on Windows. Type: sed -i 's/\\r$//' {quoted}"
        )


def push(
    app: App,
    source: Path,
    destination: str | None,
    rank: str | None,
    *,
    allow_large: bool = False,
) -> list[Pushed]:
    """Copy a file or a whole folder into `destination` on the nodes. `allow_large`: of any size.

    `None`: to its place in the nodes' copy of the current folder's project.
    """
    from inventories.text import human_bytes
    from remote.fanout import fan_out, values
    from remote.files.sync import sync
    from remote.files.tree import read_everything, without_links_above

    if not source.exists():
        raise Usage(f"There is no file or folder {source}.")
    # A link is copied under its own name, with the content that it leads to.
    place = without_links_above(Path.cwd() / source)
    project = None
    if destination is None:
        project, destination = _place_in_project(app, place)
    tree = read_everything(place.resolve(), allow_large=allow_large)
    for note in tree.notes:
        app.output.say(note)
    if not tree.entries:
        raise Usage(f"There is nothing to send in {source}.")
    if place.is_dir():
        entries = {f"{place.name}/{name}": entry for name, entry in tree.entries.items()}
        folders = tuple(f"{place.name}/{name}" for name in tree.folders)
        tree = replace(tree, root=place.parent, entries=entries, folders=folders)
    else:
        tree = replace(tree, root=place.parent, entries=dict.fromkeys([place.name], *tree.entries.values()))
    destination = with_tilde(destination)  # the shell here replaced an unquoted ~
    folder = app.store.cluster(app.options.cluster)
    with connected(folder, chosen(app, rank)) as nodes:

        def send(node: "Node") -> "Synced":
            return sync(
                node,
                tree,
                destination,
                follow_deletions=False,
                project=project,
                say=lambda text: app.output.say(f"{node.name}: {text}"),
            )

        done = values(fan_out(send, nodes))
    for name, synced in done.items():
        sent = f"{plural(synced.files, 'file')} sent, {human_bytes(synced.sent_bytes)}, to {synced.root}"
        same = f"up to date, {plural(len(tree.entries), 'file')}, in {synced.root}"
        app.output.say(f"{name}: {sent if synced.files else same}")
    return [
        Pushed(node=name, files=synced.files, bytes=synced.sent_bytes, path=synced.root)
        for name, synced in done.items()
    ]


def _place_in_project(app: App, source: Path) -> tuple[str, str]:
    """Return the current folder's project on the nodes, and the folder of a file or folder in that project."""
    from gpuctl.workflow.machines.host_firewalls import owner_of
    from remote.files.sync import code_folder, folder_in
    from remote.files.tree import root_of

    root = root_of(Path.cwd())
    if source == root or not source.is_relative_to(root):
        raise Usage(f"{source} is no part of the project {root}. Run the command in the project's folder.")
    inventory = load_inventory(app.store.cluster(app.options.cluster))
    code = code_folder(root, owner_of(inventory))
    return code, folder_in(code, source.parent.relative_to(root).as_posix())


def pull(
    app: App, source: str, destination: Path, rank: str | None, *, replace: bool = False
) -> list[Pulled]:
    """Copy a file or folder of one node into `destination`, or of all into `destination`/<node>.

    `replace`: also files that exist there with other content.
    """
    from inventories.text import human_bytes
    from remote.fanout import fan_out, values
    from remote.files.pull import conflicts, receive
    from remote.files.receive import FileReceiver

    folder = app.store.cluster(app.options.cluster)
    try:
        destination.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Usage(
            f"Nothing can be brought to '{destination}': {error.strerror}. Name a folder that can be made."
        ) from error

    machines = chosen(app, rank)
    intakes = {
        machine.name: FileReceiver(
            destination if rank is not None else destination / machine.name, max_bytes=MAX_PULL_BYTES
        )
        for machine in machines
    }

    def fetch(node: "Node") -> tuple[FileReceiver, list[str]]:
        return intakes[node.name], receive(node, with_tilde(source), intakes[node.name])

    def replaced_by(node: "Node") -> list[Path]:
        return conflicts(node, with_tilde(source), intakes[node.name].root)

    with connected(folder, machines) as nodes:
        replaced = values(fan_out(replaced_by, nodes))
        files = [path for paths in replaced.values() for path in paths]
        if files and not replace:
            _confirm_replacement(app, files, pull_command(app.options.cluster, rank, source, destination))
        try:
            done = values(fan_out(fetch, nodes))
        finally:
            # After an interrupt threads still run, wherever they are, and end with the process.
            for intake in intakes.values():
                intake.close()
    for name, (intake, skipped) in done.items():
        app.output.say(
            f"{name}: {plural(intake.files, 'file')}, {human_bytes(intake.bytes)}, in {intake.root}"
            + (f"; {plural(len(replaced[name]), 'file')} of other content replaced" if replaced[name] else "")
        )
        for line in skipped:
            app.output.say(f"{name}: left out {clean(line)}")
    return [
        Pulled(
            node=name,
            files=intake.files,
            bytes=intake.bytes,
            path=str(intake.root),
            replaced=len(replaced[name]),
            skipped=tuple(skipped),
        )
        for name, (intake, skipped) in done.items()
    ]


def _confirm_replacement(app: App, files: Sequence[Path], command: str) -> None:
    """Ask on a terminal whether these files may be replaced. Raises Usage where nobody can answer, and Declined."""
    more = f" and {plural(len(files) - 1, 'more file')}" if len(files) > 1 else ""
    verb = "exist on this computer with" if more else "exists on this computer with"
    sentence = f"{clean(str(files[0]), 10_000)}{more} {verb} other content than on the node."
    if not app.output.asks:
        with_yes = command.replace("gpuctl pull", "gpuctl pull --yes", 1)
        raise Usage(f"{sentence} Name another DESTINATION, or replace by typing: {with_yes}")
    if not app.output.confirm(f"{sentence} Replace?"):
        raise Declined("Cancelled: nothing was copied.")
