"""`key`: the access to a cluster in one encrypted file, from one computer to another.

The file has the cluster's private keys, pinned host keys, inventory and records. Runs and results are not in it: the
nodes have them.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from gpuctl.app import App
from gpuctl.command_results.clusters import KeyFile
from gpuctl.errors import Usage
from gpuctl.workflow.clusters.choose_provider import provider_name
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.machines.inventory_files import save_inventory
from gpuctl.workflow.runs.found_runs import find_runs
from inventories import codec
from inventories.disk import files, sealed
from inventories.disk.store import ClusterFolder
from inventories.errors import InvalidInput
from inventories.machine import Inventory, Machine
from provision.clouds import RENTED
from provision.rented.state import CloudState, Launch

FIXED = ("keys/id_ed25519", "keys/ray_token", "cloud.json", "kubernetes.json", "kubeconfig")
JOURNAL = "journal.jsonl"
LAUNCH = re.compile(r"launches/[0-9a-f-]+\.json")


@dataclass(frozen=True, kw_only=True)
class Access:
    """The content of an exported file."""

    inventory: Inventory
    files: dict[str, str]
    """Path in the cluster's folder → text."""


def export_key(app: App, file: Path, passphrase: str) -> KeyFile:
    """Write the cluster's access to `file`, encrypted. Raises Usage for an existing file, or own machines."""
    folder = app.store.cluster(app.options.cluster)
    if file.exists():
        raise Usage(f"'{file}' exists. Name another file, or remove it.")
    if not file.parent.is_dir():
        raise Usage(f"There is no folder '{file.parent}' for '{file.name}'. Make it first.")
    with folder.lock("key export", on_wait=app.output.say):
        inventory = load_inventory(folder, empty=True)
        _refuse_own_machines(inventory)
        if CloudState(folder).open_launches():
            raise Usage(
                f"A launch of {folder.name} was interrupted, and only one computer may complete it. Run `gpuctl up "
                f"--cluster {folder.name}` first, then `gpuctl key export` again."
            )
        paths = [folder.path / name for name in (*FIXED, JOURNAL)]
        paths += sorted(folder.path.glob("launches/*.json"))
        texts = {str(path.relative_to(folder.path)): files.read_bytes(path) for path in paths}
    access = Access(
        inventory=inventory, files={name: text.decode() for name, text in texts.items() if text is not None}
    )
    files.write_atomic(file, sealed.seal(codec.dump(access), passphrase))
    return KeyFile(cluster=folder.name, file=file)


def import_key(app: App, file: Path, passphrase: str) -> KeyFile:
    """Make the cluster of an exported file known here. Raises Usage if another cluster has its name here."""
    text = files.read_bytes(file)
    assert text is not None, "the command line checks that it exists"
    access = codec.load(Access, sealed.unseal(text, passphrase, str(file)), str(file))
    name = access.inventory.cluster
    if app.cluster_named and name != app.options.cluster:
        raise Usage(f"'{file}' is of the cluster {name}: leave out --cluster {app.options.cluster}.")
    _refuse_own_machines(access.inventory)
    if programs := [machine.name for machine in access.inventory.machines if may_start_program(machine)]:
        raise InvalidInput(
            f"'{file}' could start a program on this computer to reach {programs[0]}. gpuctl writes no such file, "
            "and nothing was changed. Ask its sender where it is from."
        )
    folder = app.store.cluster(name)
    with folder.lock("key import", on_wait=app.output.say):
        if provider_name(folder) is not None:
            # An import of this file that was cut off is repeated: it writes the inventory last.
            journal = files.read_bytes(folder.journal.path) or b""
            if folder.exists() or journal.decode() != access.files.get(JOURNAL):
                raise Usage(
                    f"The cluster {name} is known here already. Nothing was changed. If it is another one, import "
                    "the file with another folder in GPUCTL_HOME."
                )
        inventory = _write(folder, access, file)
        find_runs(app, folder, inventory.machines)
    return KeyFile(cluster=name, file=file)


def _refuse_own_machines(inventory: Inventory) -> None:
    """Raise Usage for machines that a file of ours can't lead to."""
    if inventory.provider == "local":
        raise Usage(
            f"The machines of {inventory.cluster} are processes on one computer: no other reaches them."
        )
    if inventory.provider not in (*RENTED, "kubernetes"):
        raise Usage(
            f"The machines of {inventory.cluster} are your own, and their key is yours: on the other computer, run "
            "`gpuctl up --hosts FILE` with the same file."
        )


def may_start_program(machine: Machine) -> bool:
    """Return whether a machine of a file has more than an address: a program, or lines for ssh's configuration."""
    words = (machine.name, machine.host, machine.user, machine.private_ip, machine.id, machine.bastion or "")
    return (
        machine.proxy_command is not None
        or machine.ssh_alias is not None
        or machine.transport not in ("ssh", "pod")
        or any(not word.isprintable() or len(word.split()) > 1 for word in words)
    )


def _write(folder: ClusterFolder, access: Access, file: Path) -> Inventory:
    """Write the files; the inventory and the journal, which make it a cluster, come last. Returns the inventory."""
    unknown = [name for name in access.files if name not in (*FIXED, JOURNAL) and not LAUNCH.fullmatch(name)]
    if unknown:
        raise InvalidInput(f"'{file}' has an unknown part, {unknown[0]!r}. Upgrade gpuctl.")
    launches = [text for name, text in access.files.items() if LAUNCH.fullmatch(name)]
    if not all(codec.load(Launch, text.encode(), str(file)).settled for text in launches):
        raise InvalidInput(
            f"'{file}' has an interrupted launch, and only one computer may complete it. Run `gpuctl up` on the "
            "other one, then `gpuctl key export` again."
        )
    contents = {name: _for_this_computer(name, text) for name, text in access.files.items()}
    folder.make()
    for name, content in sorted(contents.items(), key=lambda item: item[0] == JOURNAL):
        path = folder.path / name
        files.private_dir(path.parent)
        files.write_atomic(path, content)
    machines = tuple(
        replace(machine, key_file=folder.key_path if machine.key_file else None)
        for machine in access.inventory.machines
    )
    inventory = replace(access.inventory, machines=machines)
    save_inventory(folder, inventory)
    return inventory


def _for_this_computer(name: str, text: str) -> bytes:
    """Return a file's content; a kubeconfig calls the gpuctl of this computer."""
    if name != "kubeconfig":
        return text.encode()
    from provision.rented.managed_kubernetes.api_server import with_local_plugin

    return with_local_plugin(text)
