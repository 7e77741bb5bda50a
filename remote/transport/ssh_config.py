"""The OpenSSH configuration of a cluster, for `gpuctl ssh` and for plain `ssh -F`, `scp -F`, `rsync -e`."""

import os
from collections.abc import Sequence
from pathlib import Path

from inventories.address import read_bastion
from inventories.errors import InvalidInput
from inventories.machine import Machine
from inventories.user_ssh import CONFIG, read_settings
from remote.transport.known_hosts import USER_FILES

KEEPALIVE_S = 15
KEEPALIVES = 4
"""Unanswered ones after which ssh gives up: a minute. Routers forget silent connections after some minutes."""


def render(machines: Sequence[Machine], known_hosts: Path) -> str:
    """Return one `Host` block a machine, by name; strict host keys, and only the cluster's own key if it has one.

    Machines without SSH have no block.

    A bastion has a block as well, with the user's own configuration. Raises InvalidInput for a
    path that such a file can't hold.
    """
    bastions = {read_bastion(machine.bastion).host for machine in machines if machine.bastion}
    blocks = [_host(machine, known_hosts) for machine in machines if machine.has_ssh]
    for host in sorted(bastions):
        # As in gpuctl's own connections, its host key has to be known.
        files = " ".join(f'"{_escaped(path.expanduser())}"' for path in USER_FILES)
        lines = [
            f"Host {host}",
            "    StrictHostKeyChecking yes",
            f'    Include "{_escaped(CONFIG.expanduser())}"',
            f"    UserKnownHostsFile {files}",
        ]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _host(machine: Machine, known_hosts: Path) -> str:
    lines = [
        f"Host {machine.name}",
        # An IPv6 zone begins with what ssh takes for a token.
        f"    HostName {_word(machine.host.replace('%', '%%'))}",
        f"    Port {machine.port}",
        f"    User {_word(machine.user)}",
        f'    UserKnownHostsFile "{_escaped(known_hosts)}"',
        "    GlobalKnownHostsFile /dev/null",
        "    StrictHostKeyChecking yes",
        f"    ServerAliveInterval {KEEPALIVE_S}",
        f"    ServerAliveCountMax {KEEPALIVES}",
    ]
    if machine.proxy_command is not None:
        lines.append(f"    ProxyCommand {machine.proxy_command.replace('%', '%%')}")
    elif machine.bastion is not None:
        lines.append(f"    ProxyJump {read_bastion(machine.bastion)}")
    if machine.key_file is not None:
        lines += [f'    IdentityFile "{_escaped(machine.key_file)}"', "    IdentitiesOnly yes"]
        # The cluster's own key is in its folder, without a passphrase; the user's may be in their agent alone.
        lines += ["    IdentityAgent none"] * (machine.key_file.parent == known_hosts.parent)
    else:
        # The user's settings about keys, which ssh does not read if it is given a file with -F.
        settings = read_settings(machine.ssh_alias or machine.host, user=machine.user, port=machine.port)
        lines += [
            f'    IdentityFile "{_escaped(path)}"' for path in settings.key_files if settings.names_keys
        ]
        lines += [f'    CertificateFile "{_escaped(path)}"' for path in settings.certificates]
        lines += ["    IdentitiesOnly yes"] * settings.only_these_keys
        if settings.agent != os.environ.get("SSH_AUTH_SOCK", ""):
            lines.append(f'    IdentityAgent "{_escaped(Path(settings.agent or "none"))}"')
    return "\n".join(lines) + "\n"


def _word(text: str) -> str:
    """A word without double quotes, in them where ssh would take it for something else."""
    if "'" not in text and not text.startswith(("#", "=")):
        return text
    return '"' + text.replace("\\", "\\\\") + '"'


def _escaped(path: Path) -> str:
    """A path as it stands between double quotes: ssh expands `%` and `${…}`, and has no way to write the latter."""
    text = str(path)
    if "${" in text or not text.isprintable():
        raise InvalidInput(
            f"The path {text!r} can't be written into an ssh configuration. Use a folder without ${{ and control "
            "characters in its name."
        )
    return text.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
