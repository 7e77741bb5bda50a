"""Provider `local`: hosts on this machine, each a real SSH server of its own on loopback.

Needs no account and no root. Each host has its own home, port and share of this machine's GPUs, and outlives the
command that made it.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from inventories.disk import files
from inventories.disk.store import ClusterFolder, Journal
from inventories.errors import CorruptFile, InvalidInput, InventoryError, NewerFormat
from inventories.machine import Inventory, Machine, MachineState
from inventories.specs.spec import Spec
from provision.errors import CreateFailed
from provision.findings import Finding
from provision.local import processes, start, state
from provision.local.processes import CLUSTER_MARK, HOST_MARK, Mark
from provision.local.state import HostFolder, HostRecord
from provision.provider import Leftover, Plan, PlannedMachine
from provision.records import PlannedRequest, PlannedResource
from provision.ssh_keys import ensure_key, make_key
from provision.unsupported_options import refuse_unsupported
from provision.waiting import Say, quiet

MAX_HOSTS = 64
"""Hosts share this machine; more than this is a mistyped number."""


@dataclass(frozen=True, kw_only=True)
class _Host:
    record: HostRecord
    folder: HostFolder
    state: MachineState


class LocalProvider:
    """Hosts of one cluster on this machine. `python` runs their servers."""

    name = "local"
    billed = False
    ends_machines = True

    def __init__(
        self, folder: ClusterFolder, *, python: str = sys.executable, ready_timeout_s: float = 10.0
    ) -> None:
        self._folder = folder
        self._python = python
        self._ready_timeout_s = ready_timeout_s

    def plan(self, spec: Spec, current: Inventory | None) -> Plan:
        """Plan the missing hosts, and the end of hosts above the count or of an interrupted `create`."""
        if spec.shape not in (None, "local"):
            raise InvalidInput(
                f"Provider local has no shape '{spec.shape}': its hosts are this machine. "
                "Leave out `--shape`, or the `--provider local` that goes with it."
            )
        refuse_unsupported(spec, self.name, because="its hosts are this machine")
        if spec.python is None and current is not None and current.machines:
            # New hosts have the interpreter of the existing ones.
            spec = replace(spec, python=current.machines[0].python)
        hosts = {host.record.rank: host for host in self._hosts()}
        done = {rank: host for rank, host in hosts.items() if host.record.port is not None}
        before = {machine.rank: machine.id for machine in current.machines} if current else {}
        have = max((*before, *done), default=-1) + 1
        count = spec.count if spec.count is not None else max(have, 1)
        if count > MAX_HOSTS:
            raise InvalidInput(
                f"{count} hosts are more than one machine is good for: ask for {MAX_HOSTS} at most."
            )
        keep = {rank: host for rank, host in done.items() if host.state != "gone" and rank < count}
        replaced = before | {rank: host.record.id for rank, host in hosts.items()}
        create = tuple(
            PlannedMachine(
                name=f"{self._folder.name}-{rank}", rank=rank, shape="local", replaces=replaced.get(rank)
            )
            for rank in range(count)
            if rank not in keep
        )
        strangers = self._processes(staying={host.record.id for host in keep.values()})
        ended = {host.record.id for rank, host in hosts.items() if rank not in keep}
        ended |= {mark.host for mark in strangers.values()}
        end = tuple(sorted(ended - {planned.replaces for planned in create}))
        return Plan(
            spec=spec,
            provider=self.name,
            create=create,
            end=end,
            keep=tuple(self._machine(keep[rank], python=spec.python) for rank in sorted(keep)),
            free=True,
            requests=tuple(self._requests(create, strangers, count)),
            resources=tuple(self._resources(create, keep, end)),
        )

    def create(self, plan: Plan, journal: Journal, say: Say = quiet) -> tuple[Machine, ...]:  # noqa: ARG002
        """Start all planned hosts. First removes the remains of hosts that are not kept."""
        self._folder.make()
        staying = {machine.id for machine in plan.keep}
        if leftovers := self._clear(staying):
            raise CreateFailed(f"No host was made. {_in_the_way(leftovers)}")
        launches: list[start.Launch] = []
        try:
            authorized_key = ensure_key(self._folder.key_path)
            for planned in plan.create:
                # One by one: after a failure, the earlier hosts are in the list.
                launches.append(self._launch(planned, plan.spec, authorized_key, journal))  # noqa: PERF401
            ready = start.wait_ready(launches, timeout_s=self._ready_timeout_s)
            for entry in launches:
                pid, port = ready[entry.record.id].pid, ready[entry.record.id].port
                journal.append("local host runs", id=entry.record.id, pid=pid, port=port)
                entry.folder.save(replace(entry.record, pid=pid, port=port))
            count = len(plan.keep) + len(plan.create)
            for host in self._hosts():
                host.folder.give_gpus(state.share(self._devices, rank=host.record.rank, count=count))
        except BaseException as error:
            leftovers = self._clear(staying)
            if isinstance(error, CreateFailed | InventoryError | OSError):
                raise CreateFailed(f"{error} {_in_the_way(leftovers)}".strip()) from error
            raise
        finally:
            for entry in launches:
                entry.close()
        # A kept host's record has its first interpreter.
        pythons = {machine.id: machine.python for machine in plan.keep}
        return tuple(
            replace(machine, python=pythons.get(machine.id, machine.python)) for machine in self.find()
        )

    def find(self) -> tuple[Machine, ...]:
        """Return the cluster's hosts with their states, without the inventory."""
        hosts = [host for host in self._hosts() if host.record.port is not None]
        return tuple(self._machine(host) for host in sorted(hosts, key=lambda host: host.record.rank))

    def refresh(self, machine: Machine) -> Machine:
        """Return the machine, `running` or `gone`. `unknown`: the system hides its processes from us."""
        host = self._host(self._host_folder(machine.name))
        if host is None or host.record.id != machine.id:
            return replace(machine, state="gone")
        return replace(machine, state=host.state, gpus=len(host.folder.gpus()))

    def console(self, machine: Machine) -> str | None:  # noqa: ARG002
        """Return `None`: a process has no console."""
        return None

    def check(self, spec: Spec) -> tuple[Finding, ...]:  # noqa: ARG002
        """Return no findings: local hosts have no service to ask."""
        return ()

    def destroy(self, say: Say = quiet) -> tuple[Leftover, ...]:
        """End all processes of the cluster's hosts, then remove their homes. Needs no file of ours."""
        return self._clear(staying=set(), say=say) or state.remove_tree(self._path)

    def _requests(
        self, create: tuple[PlannedMachine, ...], strangers: dict[psutil.Process, Mark], count: int
    ) -> Iterator[PlannedRequest]:
        for process, mark in sorted(strangers.items(), key=lambda item: (item[1].host, item[0].pid)):
            yield PlannedRequest(operation="EndProcess", body={"pid": process.pid, "host": mark.host})
        if create and not self._folder.key_path.exists():
            yield PlannedRequest(operation="MakeClientKey", body={"path": str(self._folder.key_path)})
        for planned in create:
            folder = self._host_folder(planned.name)
            body: dict[str, Any] = {"name": planned.name, "address": "127.0.0.1", "home": str(folder.home)}
            yield PlannedRequest(
                operation="StartSshServer", body=body | {"removes_old_home": folder.path.exists()}
            )
        if create and (each := len(self._devices) // count):
            body = {"hosts": count, "gpus_each": each, "gpus": len(self._devices)}
            yield PlannedRequest(operation="ShareGpus", body=body)

    def _resources(
        self, create: tuple[PlannedMachine, ...], keep: Mapping[int, _Host], end: tuple[str, ...]
    ) -> Iterator[PlannedResource]:
        detail = "SSH server on this computer, 127.0.0.1"
        for planned in create:
            replaces = f", for {planned.replaces}" if planned.replaces else ""
            yield PlannedResource(action="create", kind="host", name=planned.name, detail=detail + replaces)
        for host_id in end:
            yield PlannedResource(
                action="end", kind="host", id=host_id, detail=f"what is left of host {host_id}"
            )
        for host in (keep[rank] for rank in sorted(keep)):
            record = host.record
            yield PlannedResource(
                action="use",
                kind="host",
                name=record.name,
                id=record.id,
                detail=f"{detail} port {record.port}",
            )

    def _launch(
        self, planned: PlannedMachine, spec: Spec, authorized_key: str, journal: Journal
    ) -> start.Launch:
        folder = self._host_folder(planned.name)
        host_id = state.new_id()
        journal.append("local host starts", id=host_id, name=planned.name, replaces=planned.replaces)
        files.private_dir(folder.home)
        record = HostRecord(
            id=host_id,
            name=planned.name,
            rank=planned.rank,
            user=state.current_user(),
            host_key=make_key(folder.host_key_path),
            python=spec.python or sys.executable,
        )
        folder.save(record)
        temp_dir = state.temp_dir_of(host_id)
        state.make_temp_dir(temp_dir, os.environ)
        marks = {HOST_MARK: host_id, CLUSTER_MARK: self._mark}
        env = state.host_env(os.environ, home=folder.home, temp_dir=temp_dir, marks=marks)
        env["UV_CACHE_DIR"] = str(self._path / state.UV_CACHE)
        return start.launch(record, folder, authorized_key=authorized_key, env=env, python=self._python)

    def _clear(self, staying: set[str], say: Say = quiet) -> tuple[Leftover, ...]:
        """End and remove all hosts of the cluster except those `staying`.

        Their folders are last, and stay if a process or a temporary file is left: the next command finds it by them.
        """
        ids = {path: self._recorded_id(path) for path in self._host_paths()}
        ended = {host for host in ids.values() if host is not None} - staying

        def select() -> dict[psutil.Process, Mark]:
            leftovers_of_folders = self._processes(staying)
            ended.update(mark.host for mark in leftovers_of_folders.values())
            return leftovers_of_folders

        if self._processes(staying):
            say("ending all that runs there …")
        leftovers = processes.end(select)
        if leftovers:
            return leftovers
        folders = [path for path, host in ids.items() if host not in staying]
        leftovers = tuple(left for host in ended for left in state.remove_temp_dir(state.temp_dir_of(host)))
        if leftovers:
            return leftovers
        leftovers_of_folders: list[Leftover] = []
        for path in folders:
            say(f"{path.name}: removing its folder …")
            leftovers_of_folders += state.remove_tree(path)
        return tuple(leftovers_of_folders)

    def _processes(self, staying: set[str]) -> dict[psutil.Process, Mark]:
        """Return the processes of all hosts of the cluster except those `staying`."""
        # Recorded ids match our processes also after the cluster's folder was moved.
        ids = {self._recorded_id(path) for path in self._host_paths()}
        return {
            process: mark
            for process, mark in processes.marked().items()
            if mark.host not in staying and (mark.cluster == self._mark or mark.host in ids)
        }

    def _recorded_id(self, path: Path) -> str | None:
        try:
            record = HostFolder(path).load()
        except (CorruptFile, NewerFormat):
            return None  # the processes carry the cluster's mark as well
        return record.id if record else None

    def _hosts(self) -> list[_Host]:
        hosts = (self._host(HostFolder(path)) for path in self._host_paths())
        return [host for host in hosts if host is not None]

    def _host(self, folder: HostFolder) -> _Host | None:
        record = folder.load()
        if record is None:
            return None
        if record.pid is None:
            return _Host(record=record, folder=folder, state="pending")
        runs = processes.is_server(record.pid, host=record.id, config=str(folder.config_path))
        states: dict[bool | None, MachineState] = {True: "running", False: "gone", None: "unknown"}
        return _Host(record=record, folder=folder, state=states[runs])

    def _host_paths(self) -> list[Path]:
        return sorted(path for path in self._path.glob("*") if path.is_dir() and path.name != state.UV_CACHE)

    def _host_folder(self, machine: str) -> HostFolder:
        return HostFolder(self._path / machine)

    @property
    def _path(self) -> Path:
        # Real and absolute: servers are recognized by this path, in every working folder.
        return Path(self._mark) / "local"

    @property
    def _mark(self) -> str:
        return os.path.realpath(self._folder.path)

    @cached_property
    def _devices(self) -> tuple[str, ...]:
        return state.devices(os.environ)

    def _machine(self, host: _Host, *, python: str | None = None) -> Machine:
        record = host.record
        assert record.port is not None
        return Machine(
            name=record.name,
            rank=record.rank,
            state=host.state,
            host="127.0.0.1",
            port=record.port,
            user=record.user,
            private_ip="127.0.0.1",
            gpus=len(host.folder.gpus()),
            id=record.id,
            shape="local",
            key_file=self._folder.key_path,
            python=python or record.python,
            host_key=record.host_key,
        )


def _in_the_way(leftovers: tuple[Leftover, ...]) -> str:
    listed = ", ".join(f"{left.kind} {left.id}" for left in leftovers)
    return f"In the way is {listed}: {leftovers[0].reason} Remove it and run again." if leftovers else ""


provider = LocalProvider
"""Returns the provider for one cluster."""
