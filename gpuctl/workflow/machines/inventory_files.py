"""The inventory of a cluster on disk, and the host keys of its machines."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from inventories.disk.files import write_atomic
from inventories.disk.store import ClusterFolder
from inventories.machine import Inventory, Machine


@dataclass(frozen=True, kw_only=True)
class HostKeys:
    """Source of the host keys of existing machines."""

    files: tuple[Path, ...]
    accept_new: bool


def save_inventory(folder: ClusterFolder, inventory: Inventory) -> None:
    """Save the inventory, and the files derived from it: known_hosts and the configuration for ssh."""
    from remote.transport import ssh_config

    pin_host_keys(folder, inventory.machines)
    text = ssh_config.render(inventory.machines, folder.known_hosts_path)
    write_atomic(folder.ssh_config_path, text.encode())
    folder.save(inventory)


def pin_host_keys(folder: ClusterFolder, machines: Sequence[Machine]) -> None:
    """Write the known_hosts file with which connections to these machines are made."""
    from remote.transport import known_hosts

    write_atomic(folder.known_hosts_path, known_hosts.render(machines).encode())


def pin_all(machines: Sequence[Machine], before: Inventory | None, trust: HostKeys) -> list[Machine]:
    """Return the machines with their host keys; a key that the cluster has pinned stays, by address.

    Raises HostKeyRejected for a host without a known key, and if the known_hosts files have another key, or revoke
    it.
    """
    from remote.errors import HostKeyRejected
    from remote.transport import host_keys, known_hosts

    had = {(machine.host, machine.port): machine.host_key for machine in (before.machines if before else ())}
    pinned = []
    for machine in machines:
        key = None if machine.host_key else had.get((machine.host, machine.port))
        if key is None:
            pinned.append(host_keys.pin(machine, trust.files, accept_new=trust.accept_new))
            continue
        text, pattern, _ = host_keys.user_knowledge(machine, trust.files)
        kind, data = key.split()[:2]
        # A host has keys of several kinds: only another one of the same kind contradicts.
        if known_hosts.find(text, pattern).get(kind, data) != data:
            raise HostKeyRejected(
                f"{machine.name}: your known_hosts has another host key of {pattern} than the cluster has "
                "pinned. Nothing was sent. If the machine was made new, `gpuctl down` forgets the pinned key, "
                f"and `gpuctl up` then pins the new one; if not, `ssh-keygen -R '{pattern}'` removes yours."
            )
        pinned.append(host_keys.pin(replace(machine, host_key=key), trust.files, accept_new=False))
    return pinned
