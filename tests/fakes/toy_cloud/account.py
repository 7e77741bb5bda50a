"""The toy cloud's control plane, in place of a cloud's SDK. Lists are never late, calls never fail."""

import itertools
import os
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from provision.records import Instance, Resource, Zone
from provision.rented import tags
from tests.fakes.hosts import Hosts

HOME = "TOY_CLOUD_HOME"
"""Names the folder for the machines' files."""
SSH_PORT = "TOY_CLOUD_SSH_PORT"
"""Names the port that machines listen on."""


@dataclass
class Account:
    """The account's state in memory, and a real SSH server for each machine."""

    hosts: Hosts = field(default_factory=lambda: Hosts(Path(os.environ[HOME]), int(os.environ[SSH_PORT])))
    machines: dict[str, Instance] = field(default_factory=dict)
    resources: dict[str, Resource] = field(default_factory=dict)
    rules: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """From where SSH is let in, by the firewall's id."""
    _tokens: dict[str, str] = field(default_factory=dict)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def launch(self, request: Any) -> str:
        """Make one machine; the same token makes it once."""
        if request["token"] in self._tokens:
            return self._tokens[request["token"]]
        machine_id = self._tokens[request["token"]] = f"machine-{next(self._numbers)}"
        address = self.hosts.address()
        self.machines[machine_id] = Instance(
            id=machine_id,
            tags=request["tags"],
            rank=tags.rank_at(request["tags"], 0),
            state="running",
            shape=request["shape"],
            zone=Zone(name=request["zone"]),
            launched_at=datetime.now(UTC).isoformat(timespec="seconds"),
            public_ip=address,
            private_ip=address,
        )
        user_data = request["user_data"].encode()
        self.hosts.start(machine_id, address, user_data, name=request["name"])
        return machine_id

    def end(self, machine_id: str) -> None:
        """End one machine."""
        self.hosts.stop(machine_id, wait=True)
        self.machines[machine_id] = replace(self.machines[machine_id], state="ended")

    def make(self, kind: str, of: dict[str, str], stage: int) -> str:
        """Make something that is no machine."""
        made = f"{kind}-{next(self._numbers)}"
        self.resources[made] = Resource(kind=kind, id=made, name=kind, tags=of, stage=stage)
        return made


ACCOUNT: list[Account] = []


def account() -> Account:
    """Return the only account."""
    if not ACCOUNT:
        ACCOUNT.append(Account())
    return ACCOUNT[0]
