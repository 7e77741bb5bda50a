"""Provider `hosts`: machines that exist already, from an inventory file. Creates and destroys nothing."""

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from inventories.ansible.inventory import read_hosts_file
from inventories.disk.store import ClusterFolder, Journal
from inventories.errors import InvalidInput
from inventories.machine import Inventory, Machine
from inventories.specs.gpu_driver import NO_DRIVER, DriverPlan, unknown_branch
from inventories.specs.spec import Spec
from inventories.user_programs import without_secrets
from provision.errors import RefusedPlan
from provision.findings import Finding
from provision.provider import Leftover, Plan
from provision.records import PlannedRequest, PlannedResource
from provision.unsupported_options import refuse_unsupported, taken_by
from provision.waiting import Say, quiet

CONNECT_TIMEOUT_S = 2.0
MOST_AT_ONCE = 32
INSTALLS = "; where its GPUs have no driver, install Ubuntu's and reboot it once"


def provider(folder: ClusterFolder) -> "HostsProvider":
    """The provider for one cluster."""
    return HostsProvider(folder)


class HostsProvider:
    """The machines of one cluster, which somebody else runs."""

    name = "hosts"
    billed = False
    ends_machines = False

    def __init__(self, folder: ClusterFolder) -> None:
        self._folder = folder

    def plan(self, spec: Spec, current: Inventory | None) -> Plan:
        """Take the machines of the file, or the first `spec.count` by rank. Without a file, those there are.

        Raises RefusedPlan where there are fewer, or where the cluster has more, and InvalidInput for a file
        that can't be used.
        """
        refuse_unsupported(
            spec,
            self.name,
            honoured=taken_by("hosts"),
            because="its machines exist already, and gpuctl makes none",
        )
        machines = self._machines(spec, current)
        count = len(machines) if spec.count is None else spec.count
        if count > len(machines):
            raise RefusedPlan(
                f"{count} machines are asked for, and {self._source(spec)} lists {len(machines)}. "
                f"Add machines to it, or ask for `--count {len(machines)}`."
            )
        have = len(current.machines) if current else 0
        if count < have:
            name = self._folder.name
            raise RefusedPlan(
                f"Cluster '{name}' has {have} machines, and `up` does not drop any of them. To have {count}, "
                f"forget all with `gpuctl down --cluster {name}`, then run "
                f"`gpuctl up --cluster {name} --hosts FILE --count {count}`."
            )
        first = sorted(machines, key=lambda machine: machine.rank)[:count]
        keep = tuple(_completed(machine, spec, current) for machine in first)
        driver = _driver(spec.driver)
        return Plan(
            spec=spec,
            provider=self.name,
            create=(),
            keep=keep,
            free=True,
            requests=tuple(
                PlannedRequest(
                    operation="UseMachine",
                    body={
                        "name": machine.name,
                        "user": machine.user,
                        "host": machine.host,
                        "port": machine.port,
                        "bastion": machine.bastion,
                    },
                )
                for machine in keep
            ),
            resources=tuple(
                PlannedResource(
                    action="use",
                    kind="host",
                    name=machine.name,
                    detail=f"{machine.user}@{machine.host} port {machine.port}"
                    + _route(machine)
                    + INSTALLS * (driver.source == "install"),
                )
                for machine in keep
            ),
            driver=driver,
            notes=unknown_branch(driver),
        )

    def create(
        self,
        plan: Plan,
        journal: Journal,  # noqa: ARG002 - nothing is made
        say: Say = quiet,  # noqa: ARG002
    ) -> tuple[Machine, ...]:
        """The machines of the plan, each asked whether it is there: at most 2 s in all."""
        if not plan.keep:
            return ()
        with ThreadPoolExecutor(max_workers=min(MOST_AT_ONCE, len(plan.keep))) as pool:
            return tuple(pool.map(self.refresh, plan.keep))

    def find(self) -> tuple[Machine, ...]:
        """The machines of the inventory: no one else knows them as ours."""
        return self._folder.load().machines if self._folder.exists() else ()

    def refresh(self, machine: Machine) -> Machine:
        """`running` where the SSH port answers within 2 s, else `unknown`; so behind a bastion, or without SSH."""
        if not (machine.is_direct and machine.has_ssh):
            return replace(machine, state="unknown")
        try:
            with socket.create_connection((machine.host, machine.port), timeout=CONNECT_TIMEOUT_S):
                return replace(machine, state="running")
        except OSError:
            return replace(machine, state="unknown")

    def console(self, machine: Machine) -> str | None:  # noqa: ARG002
        """Whoever runs the machines has it, if there is one."""
        return None

    def check(self, spec: Spec) -> tuple[Finding, ...]:  # noqa: ARG002
        """Nothing that could be asked."""
        return ()

    def destroy(self, say: Say = quiet) -> tuple[Leftover, ...]:  # noqa: ARG002
        """Nothing of it is ours to remove."""
        return ()

    def _machines(self, spec: Spec, current: Inventory | None) -> tuple[Machine, ...]:
        if spec.hosts is not None:
            return read_hosts_file(spec.hosts)
        if current is not None:
            return current.machines
        raise InvalidInput(
            "Provider hosts needs to know the machines: give `--hosts FILE`, an Ansible inventory. "
            "`ansible_host` and `ansible_user` of each are enough."
        )

    def _source(self, spec: Spec) -> str:
        return f"'{spec.hosts}'" if spec.hosts is not None else f"cluster '{self._folder.name}'"


def _completed(machine: Machine, spec: Spec, current: Inventory | None) -> Machine:
    """The machine with its interpreter and bastion: the spec's, else the file's, else the ones that it had."""
    known = {(one.host, one.port): one for one in (current.machines if current else ())}
    had = known.get((machine.host, machine.port), machine)
    way = machine if not machine.is_direct else had
    return replace(
        machine,
        python=spec.python or machine.python or had.python,
        bastion=spec.bastion or way.bastion,
        proxy_command=None if spec.bastion else way.proxy_command,
    )


def _route(machine: Machine) -> str:
    """Return the clause on the machine's bastion or proxy command. Empty: it has none."""
    route = machine.bastion or without_secrets(machine.proxy_command or "")
    return f" over {route}" if route else ""


def _driver(asked: str | None) -> DriverPlan:
    """Machines that are somebody's are left as they are, unless a driver is asked for."""
    if asked in (None, "none"):
        return NO_DRIVER
    return DriverPlan(source="install", version=None if asked == "auto" else asked)
