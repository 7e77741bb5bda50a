"""Run the containers of one pod as processes in a host with its own network, file system and process numbers.

All containers of a pod share all three here; in a real pod they share only the network. After a restart, the first
process is a new one, as in a real pod.
"""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from support import wait_for

from tests.fakes.vms import Host
from tests.fakes.vms.boot import enter_argv

Document = dict[str, Any]
USER = "ray"


@dataclass(kw_only=True)
class Containers:
    """A pod's, on a host that runs."""

    pod: Document
    host: Host
    log: Path
    path: str
    """PATH of all commands, as an image sets it."""
    secrets: Mapping[str, Mapping[str, str]]
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    """By the container's name."""
    _first: "subprocess.Popen[bytes] | None" = None
    """Keeps the containers' processes, as PID 1 of theirs."""
    _first_pid: int = 0
    """Its number here."""

    @property
    def run(self) -> bool:
        """Return whether a command can be run: between an end and the next start no container exists."""
        return self._first_pid > 0

    def start(self, container: Document) -> "subprocess.Popen[bytes]":
        """Start the container's program."""
        if self._first is None:
            self._begin()
        with (self.log / f"{container['name']}.log").open("ab") as log:
            process = subprocess.Popen(
                self.argv(container, [*container.get("command", []), *container.get("args", [])]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes[container["name"]] = process
        return process

    def argv(self, container: Document, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command in a container: as its user, with its environment, in the
        user's home.
        """
        env = [f"{name}={value}" for name, value in self.environment(container).items()]
        enter = [
            *enter_argv(self._first_pid),
            "runuser",
            "-u",
            USER,
            "--",
            "env",
            "-i",
            f"--chdir=/home/{USER}",
        ]
        return [*enter, *env, *command]

    def environment(self, container: Document) -> dict[str, str]:
        """Return a container's environment variables."""
        env = {"HOME": f"/home/{USER}", "USER": USER, "PATH": self.path, "LANG": "C.UTF-8"}
        env["HOSTNAME"] = self.pod["metadata"]["name"]
        for item in container.get("env") or []:
            env[item["name"]] = (
                item["value"] if item.get("value") else self._from(item.get("valueFrom") or {})
            )
        return env

    def container(self, name: str) -> Document:
        """Return the container of that name; without a name, the first one."""
        containers: list[Document] = self.pod["spec"]["containers"]
        return next(container for container in containers if name in ("", container["name"]))

    def write_hosts(self, names: Mapping[str, str]) -> None:
        """Let names of services resolve, as a cluster's DNS does: name to address."""
        local = f"127.0.0.1 localhost\n{self.host.address} {self.host.name}\n"
        lines = "".join(f"{address} {name}\n" for name, address in sorted(names.items()))
        self.host.root(f"cat > /etc/hosts <<'END'\n{local}{lines}END\n")

    def end_processes(self) -> None:
        """Kill all processes in the host, but not the host."""
        self._first_pid = 0
        self.host.root("kill -9 -1", check=False)
        if self._first is not None:
            self._first.wait()
            self._first = None

    def kill(self) -> None:
        """Kill all processes of the pod."""
        self.host.power_off()
        for process in [*self.processes.values(), *([self._first] if self._first else [])]:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _begin(self) -> None:
        """Start the first of the containers' processes, which no other of the host is seen by."""
        argv = [*enter_argv(self.host.pid), "unshare", "--pid", "--fork", "--mount-proc", "sleep", "infinity"]
        self._first = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
        outer = psutil.Process(self._first.pid)

        def first_pid() -> int | None:
            return next((item.pid for item in outer.children(recursive=True) if item.name() == "sleep"), None)

        self._first_pid = wait_for(first_pid, what="the containers' first process")

    def _from(self, source: Document) -> str:
        if secret := source.get("secretKeyRef"):
            return self.secrets[secret["name"]][secret["key"]]
        if reference := source.get("fieldRef"):
            return field_of(self.pod, reference["fieldPath"], self.host.address)
        return ""


def field_of(pod: Document, path: str, address: str) -> str:
    """Return the value of a `fieldRef`."""
    metadata = pod["metadata"]
    if path.startswith("metadata.labels['"):
        return str(metadata["labels"][path.removeprefix("metadata.labels['").removesuffix("']")])
    known = {"metadata.name": metadata["name"], "metadata.namespace": metadata["namespace"]}
    return str((known | {"status.podIP": address, "status.hostIP": "127.0.0.1"})[path])


def secrets_of(pod: Document) -> set[str]:
    """Return the names of the Secrets that a pod's environment needs."""
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]
    references = [
        (item.get("valueFrom") or {}).get("secretKeyRef")
        for each in containers
        for item in each.get("env") or []
    ]
    return {item["name"] for item in references if item}
