"""Real local hosts, and the system's own OpenSSH client to reach them with."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import an_inventory

from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Machine
from inventories.specs.spec import Spec
from provision.local.provider import LocalProvider

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster of local hosts in the making: `up` as the command line does it."""

    folder: ClusterFolder
    provider: LocalProvider

    def up(self, count: int | None = None, **spec: Any) -> tuple[Machine, ...]:
        request = Spec(cluster=self.folder.name, provider="local", count=count, **spec)
        current = self.folder.load() if self.folder.exists() else None
        machines = self.provider.create(self.provider.plan(request, current), self.folder.journal)
        self.folder.save(
            an_inventory(cluster=self.folder.name, provider="local", hourly_usd=0.0, machines=machines)
        )
        return machines

    def processes(self) -> list[int]:
        """Every process that carries the cluster's mark, found without the code under test."""
        result = []
        for process in psutil.process_iter():
            try:
                mark = process.environ().get("GPUCTL_LOCAL_CLUSTER")
                if mark == os.path.realpath(self.folder.path) and process.status() != psutil.STATUS_ZOMBIE:
                    result.append(process.pid)
            except psutil.Error:
                continue
        return result

    def server_pid(self, machine: Machine) -> int:
        runs = [entry for entry in self.folder.journal.read() if entry["event"] == "local host runs"]
        (pid,) = [entry["pid"] for entry in runs if entry["id"] == machine.id]
        return int(pid)


@pytest.fixture(scope="session")
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """Makes clusters; whatever they leave is ended."""
    made: list[Cluster] = []

    def make(home: Path, name: str = "default", **options: Any) -> Cluster:
        folder = Store(home).cluster(name)
        made.append(Cluster(folder=folder, provider=LocalProvider(folder, **options)))
        return made[-1]

    yield make
    for cluster in made:
        assert LocalProvider(cluster.folder).destroy() == ()


@dataclass(frozen=True, kw_only=True)
class Ssh:
    """The system's `ssh`, `scp` and `sftp`, which trust the pinned host key and nothing else."""

    machine: Machine
    known_hosts: Path

    def options(self, **changes: str) -> list[str]:
        chosen = {
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(self.known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            "BatchMode": "yes",
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "IdentityFile": str(self.machine.key_file),
            "User": self.machine.user,
        } | changes
        return ["-F", "/dev/null", *(f"-o{key}={value}" for key, value in chosen.items())]

    def command(self, *words: str, **changes: str) -> list[str]:
        return ["ssh", *self.options(Port=str(self.machine.port), **changes), self.machine.host, *words]

    def run(self, *words: str, **options: Any) -> "subprocess.CompletedProcess[bytes]":
        inputs = {"stdin": subprocess.DEVNULL} if "input" not in options else {}
        return subprocess.run(self.command(*words), capture_output=True, timeout=60, **inputs, **options)


@pytest.fixture(scope="session")
def ssh_to(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Machine], Ssh]:
    def make(machine: Machine) -> Ssh:
        known_hosts = tmp_path_factory.mktemp("ssh") / "known_hosts"
        known_hosts.write_text(f"[{machine.host}]:{machine.port} {machine.host_key}\n")
        return Ssh(machine=machine, known_hosts=known_hosts)

    return make


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], "list[str]"]:
    """Return the command for a Python program that runs in a new process with the packages on its path."""

    def make(text: str) -> list[str]:
        path = tmp_path / "program.py"
        path.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{text}")
        return [sys.executable, str(path)]

    return make


@pytest.fixture
def wrapped_python(tmp_path: Path) -> Callable[[str], str]:
    """An interpreter that first runs shell code, which sees the host's configuration file as `$3`."""

    def make(code: str) -> str:
        path = tmp_path / "python"
        path.write_text(f'#!/bin/sh\n{code}\nexec {sys.executable} "$@"\n')
        path.chmod(0o755)
        return str(path)

    return make
