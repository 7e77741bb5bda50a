"""Test machines reached over a bastion, from `up` to `down`."""

import json
from pathlib import Path

import pytest
from support import Gpuctl

from inventories.disk.store import Store
from inventories.machine import Machine
from inventories.specs.spec import Spec
from provision.local.provider import LocalProvider
from remote.transport.known_hosts import render

pytestmark = pytest.mark.slow


@pytest.fixture
def hosts(tmp_path):
    """Start three hosts unknown to gpuctl's clusters; the first is the bastion of the others."""
    folder = Store(tmp_path / "elsewhere").cluster("default")
    provider = LocalProvider(folder)
    yield provider.create(provider.plan(Spec(provider="local", count=3), None), folder.journal)
    assert provider.destroy() == ()


@pytest.fixture
def user(tmp_path: Path, hosts: tuple[Machine, ...]) -> dict[str, str]:
    """Return the environment of a user who knows all three hosts, with a key for the first."""
    ssh = tmp_path / "user" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    (ssh / "known_hosts").write_text(render(hosts))
    gate = hosts[0]
    (ssh / "config").write_text(
        f"Host gate\n  HostName 127.0.0.1\n  Port {gate.port}\n  User {gate.user}\n  IdentityFile {gate.key_file}\n"
    )
    return {"HOME": str(ssh.parent), "SSH_AUTH_SOCK": ""}


def test_cluster_behind_bastion_is_usable(
    gpuctl: Gpuctl, hosts: tuple[Machine, ...], user: dict[str, str]
) -> None:
    inventory = {
        f"n{n}": {
            "ansible_host": machine.host,
            "ansible_port": machine.port,
            "ansible_user": machine.user,
            "ansible_ssh_private_key_file": str(machine.key_file),
            "ansible_python_interpreter": machine.python,
        }
        for n, machine in enumerate(hosts[1:])
    }
    path = gpuctl.script("hosts.yaml", json.dumps({"all": {"hosts": inventory}}))
    up = gpuctl.ok("up", "--hosts", str(path), "--bastion", "gate", "--json", env=user).json
    assert [machine["state"] for machine in up["machines"]] == ["running", "running"]

    ports = [str(machine.port) for machine in hosts[1:]]
    documents = gpuctl.ok("exec", "--json", "--", "echo $SSH_CONNECTION", env=user).json["nodes"]
    assert [document["stdout"].split()[3] for document in documents] == ports
    assert gpuctl.ok("ssh", "1", "--", "echo $SSH_CONNECTION", env=user).out.split()[3] == ports[1]
    refused = gpuctl("exec", "--", "true", env={**user, "HOME": str(gpuctl.cwd)})
    assert refused.status == 1
    assert "bastion gate: " in refused.err
    gpuctl.ok("down", "--yes", env=user)
