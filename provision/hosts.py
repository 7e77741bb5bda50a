"""Provider `hosts`: existing machines from an inventory file, which it only uses."""

import socket
from dataclasses import replace

from inventories.ansible.inventory import read_hosts_file
from inventories.disk.store import ClusterFolder, Journal
from inventories.errors import InvalidInput
from inventories.machine import Inventory, Machine
from inventories.specs.gpu_driver import NO_DRIVER, DriverPlan, unknown_branch
from inventories.specs.spec import Spec
from inventories.threads import run_all, values
from inventories.user_programs import without_secrets
from provision.errors import RefusedPlan
from provision.findings import Finding
from provision.provider import Leftover, Plan
from provision.records import PlannedRequest, PlannedResource
from provision.unsupported_options import refuse_unsupported
from provision.waiting import Say, quiet

CONNECT_TIMEOUT_S = 2.0
INSTALLS = "; where its GPUs have no driver, install Ubuntu's and reboot it once"


class HostsProvider:
    """The machines of one cluster, which are managed elsewhere."""

    name = "hosts"
    billed = False
    ends_machines = False

    def __init__(self, folder: ClusterFolder) -> None:
        self._folder = folder

    def plan(self, spec: Spec, current: Inventory | None) -> Plan:
        """Plan to use the file's machines, or the first `spec.count` by rank. Without a file, the cluster's.

        Raises RefusedPlan if the file has fewer machines or the cluster more, and InvalidInput for an unusable file.
        """
        refuse_unsupported(spec, self.name, because="its machines exist already, and gpuctl makes none")
        if spec.hosts is not None:
            machines = read_hosts_file(spec.hosts)
        elif current is not None:
            machines = current.machines
        else:
            raise InvalidInput(
                "Provider hosts needs to know the machines: give `--hosts FILE`, an Ansible inventory. "
                "`ansible_host` and `ansible_user` of each are enough."
            )
        count = len(machines) if spec.count is None else spec.count
        if count > len(machines):
            source = f"cluster '{self._folder.name}'" if spec.hosts is None else f"'{spec.hosts}'"
            raise RefusedPlan(
                f"{count} machines are asked for, and {source} lists {len(machines)}. "
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
        driver = NO_DRIVER  # by default, as the machines are not ours
        if spec.driver not in (None, "none"):
            driver = DriverPlan(source="install", version=None if spec.driver == "auto" else spec.driver)
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
        """Return the plan's machines with their states, after at most 2 s."""
        return tuple(values(run_all(self.refresh, plan.keep)))

    def find(self) -> tuple[Machine, ...]:
        """Return the inventory's machines, as no service lists them."""
        return self._folder.load().machines if self._folder.exists() else ()

    def refresh(self, machine: Machine) -> Machine:
        """Return the machine: `running` if its SSH port answers within 2 s, else `unknown`.

        `unknown` as well behind a bastion, or without SSH.
        """
        if not (machine.is_direct and machine.has_ssh):
            return replace(machine, state="unknown")
        try:
            with socket.create_connection((machine.host, machine.port), timeout=CONNECT_TIMEOUT_S):
                return replace(machine, state="running")
        except OSError:
            return replace(machine, state="unknown")

    def console(self, machine: Machine) -> str | None:  # noqa: ARG002
        """Return `None`: gpuctl does not reach the consoles of these machines."""
        return None

    def check(self, spec: Spec) -> tuple[Finding, ...]:  # noqa: ARG002
        """Return no findings: these machines have no service to ask."""
        return ()

    def destroy(self, say: Say = quiet) -> tuple[Leftover, ...]:  # noqa: ARG002
        """Return no leftovers: the machines are not ours to remove."""
        return ()


def _completed(machine: Machine, spec: Spec, current: Inventory | None) -> Machine:
    """Return the machine with the interpreter and bastion of the spec, else of the file, else of the inventory."""
    known = {(host.host, host.port): host for host in (current.machines if current else ())}
    had = known.get((machine.host, machine.port), machine)
    way = machine if not machine.is_direct else had
    return replace(
        machine,
        python=spec.python or machine.python or had.python,
        bastion=spec.bastion or way.bastion,
        proxy_command=None if spec.bastion else way.proxy_command,
    )


def _route(machine: Machine) -> str:
    """Return the clause on the machine's bastion or proxy command. Empty: reached directly."""
    route = machine.bastion or without_secrets(machine.proxy_command or "")
    return f" over {route}" if route else ""


provider = HostsProvider
"""Returns the provider for one cluster."""
