"""Machines, and the inventory of the machines of one cluster."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from inventories.errors import NotFound
from inventories.text import did_you_mean

MachineState = Literal["pending", "running", "stopped", "gone", "unknown"]
"""`gone`: it existed and does not any more. `unknown`: the provider could not be asked."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine of a cluster: its address and its equipment."""

    name: str
    rank: int
    """Node rank, 0 .. N-1; node 0 hosts the rendezvous."""
    state: MachineState
    host: str
    """Address that this computer connects to."""
    port: int = 22
    user: str
    transport: str = "ssh"
    """How this computer gets there, by a name of `remote.transport.TRANSPORTS`."""
    context: str | None = None
    """Of the user's kubeconfig, where the machine is a pod. `None`: the current one."""
    bastion: str | None = None
    """Host over which this computer gets there, as `inventories.address` reads it. `None`: directly."""
    private_ip: str
    """Address that the machine's peers connect to."""
    gpus: int | None
    """`None`: not known before the machine was asked."""
    id: str
    """The provider's own id."""
    shape: str | None = None
    key_file: Path | None = None
    """Private key. `None`: the user's own agent and keys."""
    ssh_alias: str | None = None
    """Name of the machine in the user's SSH configuration. `None`: `host` is its name there."""
    proxy_command: str | None = None
    """Program whose input and output are the connection to the SSH port, as in OpenSSH's ProxyCommand."""
    python: str | None = None
    """Interpreter to use as it is. `None`: `python3` of the machine."""
    host_key: str | None = None
    """Public host key, `ssh-ed25519 AAAA…`, where it was known before the first contact."""
    launched_at: str | None = None
    """The begin of billing, ISO 8601, if the provider reports it."""

    @property
    def has_ssh(self) -> bool:
        """Return whether the machine is reached by SSH."""
        return self.transport == "ssh"

    @property
    def is_made_by_gpuctl(self) -> bool:
        """Return whether gpuctl created it, so that `gpuctl up` can create another one; not so for `--hosts`."""
        return self.shape is not None

    @property
    def is_direct(self) -> bool:
        """Return whether this computer connects to the SSH port itself, over no bastion and no program."""
        return self.bastion is None and self.proxy_command is None

    def public(self) -> "MachineInfo":
        """The machine as `up --json` and `status --json` show it."""
        shown = {field.name: getattr(self, field.name) for field in fields(MachineInfo)}
        return MachineInfo(**shown | ({} if self.has_ssh else {"host": None, "port": None}))


@dataclass(frozen=True, kw_only=True)
class MachineInfo:
    """The public description of a machine."""

    name: str
    rank: int
    """Node rank, 0 .. N-1."""
    state: MachineState
    host: str | None
    """Address that this computer connects to. `None`: the machine is reached in another way than SSH."""
    port: int | None
    user: str
    private_ip: str
    """Address that the machine's peers connect to."""
    gpus: int | None
    """`None`: not known before the machine was asked."""
    id: str
    """The provider's own id."""


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The machines of one cluster, by rank, with the facts of the cluster itself."""

    cluster: str
    provider: str
    region: str | None = None
    shape: str | None = None
    hourly_usd: float | None = None
    """All that the cluster is billed for by the hour, USD: machines, disks, addresses, network. 0 where
    nothing is billed; `None`: not known."""
    created_at: str
    """ISO 8601, UTC."""
    machines: tuple[Machine, ...]

    def machine(self, node: str) -> Machine:
        """Return the machine with this rank or name. Raises NotFound, with the known ones."""
        for machine in (*(each for each in self.machines if str(each.rank) == node), *self.machines):
            if node in (str(machine.rank), machine.name):
                return machine
        known = ", ".join(f"{machine.rank} ({machine.name})" for machine in self.machines)
        near = did_you_mean(node, (machine.name for machine in self.machines))
        raise NotFound(
            f"The cluster {self.cluster} has no machine of rank or name {node!r}"
            + (near or f"; it has {known or 'none'}.")
        )
