"""The OpenSSH configuration of a cluster, for `gpuctl ssh` and for plain `ssh -F`, `scp -F`, `rsync -e`."""

from collections.abc import Sequence
from pathlib import Path

from inventories.errors import InvalidInput
from inventories.machine import Machine


def render(machines: Sequence[Machine], known_hosts: Path) -> str:
    """One `Host` block a machine, by name; strict host keys, and only the cluster's own key where it has one.

    Raises InvalidInput for a path that such a file can't hold.
    """
    return "\n".join(_host(machine, known_hosts) for machine in machines)


def _host(machine: Machine, known_hosts: Path) -> str:
    lines = [
        f"Host {machine.name}",
        f"    HostName {machine.host}",
        f"    Port {machine.port}",
        f"    User {machine.user}",
        f'    UserKnownHostsFile "{_escaped(known_hosts)}"',
        "    GlobalKnownHostsFile /dev/null",
        "    StrictHostKeyChecking yes",
    ]
    if machine.key_file is not None:
        lines += [
            f'    IdentityFile "{_escaped(machine.key_file)}"',
            "    IdentitiesOnly yes",
            "    IdentityAgent none",
        ]
    return "\n".join(lines) + "\n"


def _escaped(path: Path) -> str:
    """A path as it stands between double quotes: ssh expands `%` and `${…}`, and has no way to write the latter."""
    text = str(path)
    if "${" in text or not text.isprintable():
        raise InvalidInput(
            f"The path {text!r} can't be written into an ssh configuration. Use a folder without ${{ and control "
            "characters in its name."
        )
    return text.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
