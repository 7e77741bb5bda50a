"""Access to machines that another computer launched: the cloud has them accept this computer's key."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from provision.errors import CloudError
from provision.provider import AdoptingProvider
from provision.ssh_keys import ensure_key

if TYPE_CHECKING:
    from remote.fanout import Outcome

SHELL_TIMEOUT_S = 30.0


def log_in(
    folder: ClusterFolder, provider: AdoptingProvider, machines: Sequence[Machine]
) -> "list[Outcome[str]]":
    """Have each machine with SSH accept the key of this computer for good.

    The value of a machine is a sentence on why it does not, or empty.
    """
    from remote.errors import AuthenticationFailed, NodeFailed
    from remote.fanout import fan_out
    from remote.sessions.authorized_keys import command_to_add
    from remote.sessions.connect import connect

    add_key = command_to_add(ensure_key(folder.key_path))

    def admit(machine: Machine) -> str:
        try:
            connect(machine, folder).close()
        except AuthenticationFailed:
            pass
        else:
            return ""
        try:
            needs = provider.admit_key(machine)
        except CloudError as error:
            return f"{machine.name} has not got the new key: {error}"
        try:
            with connect(machine, folder) as node:
                done = node.run(add_key, timeout_s=SHELL_TIMEOUT_S)
        except AuthenticationFailed:
            return f"{machine.name} does not accept the new key: it needs {needs}."
        if done.exit_code != 0:
            reason = done.stderr.decode(errors="replace").strip()
            raise NodeFailed(f"{machine.name}: ~/.ssh/authorized_keys could not be changed: {reason}.")
        return ""

    return fan_out(admit, {machine.name: machine for machine in machines if machine.has_ssh})
