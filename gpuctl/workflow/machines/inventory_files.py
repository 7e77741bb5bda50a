"""The inventory of a cluster on disk, and the host keys of its machines."""

from collections.abc import Sequence

from inventories.disk.files import write_atomic
from inventories.disk.store import ClusterFolder
from inventories.machine import Inventory, Machine


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
