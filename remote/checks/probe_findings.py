"""Findings of the nodes' probes: silent nodes, taken ports, closed networks, stale processes. Pure."""

import re
from collections.abc import Mapping

from inventories.machine import Machine
from remote.checks.probe import Health, ProbeAnswer, StaleProcess
from remote.checks.probe_summary import unreachable
from remote.facts import Facts
from remote.findings import LOOPBACK, Finding, not_the_first
from remote.firewall import may_drop_outgoing

MIN_INODES = 1000
NCCL_PACKAGE = re.compile(r"nvidia[-_]nccl[-_]cu\d+==(.+)")


def probed(
    facts: Mapping[str, Facts], probes: Mapping[str, ProbeAnswer], *, master: Machine
) -> list[Finding]:
    """Return the findings on the network and the nodes' health. `master` is the node that hosts the rendezvous."""
    problems = [
        Finding(
            node=name,
            problem=f"the network could not be tried: {answer.failure.removeprefix(f'{name}: ').rstrip('.')}",
            fix=f"see that the node is well: gpuctl ssh {master.rank if name == master.name else ''}".rstrip()
            + " and gpuctl status",
        )
        for name, answer in probes.items()
        if answer.failure is not None
    ]
    problems += [finding for name, answer in probes.items() for finding in _ports_in_use(name, answer)]
    clouds = {name: fact.cloud for name, fact in facts.items()}
    problems += unreachable(
        probes,
        clouds=clouds,
        rendezvous_port=facts[master.name].free_port,
        without_sudo=[name for name, fact in facts.items() if not fact.sudo],
        drop_outgoing=[
            name
            for name, fact in facts.items()
            if fact.firewall and may_drop_outgoing(fact.firewall, filter(None, fact.addresses.values()))
        ],
    )
    health = {name: answer.health for name, answer in probes.items() if answer.health is not None}
    for name, node_health in health.items():
        problems += [*_health(name, node_health), *(_stale(name, process) for process in node_health.stale)]
    nccl = {name: nccl_of(fact, health.get(name)) for name, fact in facts.items()}
    return [
        *problems,
        *not_the_first(
            {name: version for name, version in nccl.items() if version is not None},
            "NCCL is",
            "install the same version on all nodes",
            fatal=True,
        ),
        *not_the_first(
            {
                name: str(node_health.mtu)
                for name, node_health in health.items()
                if node_health.mtu is not None
            },
            "the MTU is",
            "as root, set the same on all nodes: ip link set dev IFACE mtu N",
            fatal=False,
        ),
    ]


def nccl_of(fact: Facts, health: Health | None) -> str | None:
    """Return the version of NCCL that the node's ranks use. `None`: no NCCL, or not known.

    The environment of the ranks has it, else the machine's own Python.
    """
    if fact.packages is None:
        return None if health is None else health.nccl
    matches = filter(None, map(NCCL_PACKAGE.fullmatch, fact.packages))
    return next((match[1] for match in matches), None)


def _ports_in_use(name: str, answer: ProbeAnswer) -> list[Finding]:
    """Ports that nothing could listen on."""
    problems = []
    for port_use in answer.taken:
        if port_use.problem == "in use":
            by = f" by {port_use.holder}" if port_use.holder else ""
            problem, fix = (
                f"the port {port_use.port} was taken{by}",
                "run the command again: it picks another port",
            )
        elif port_use.problem == "not ours":
            problem = "its private_ip in the inventory is no address of the machine itself"
            fix = "set it to one that is, and that the other nodes can reach (`ip addr` shows them)"
        else:
            problem = f"it can't listen for its peers: {port_use.problem}"
            fix = "see what forbids it there (ulimit -n, SELinux, the container's own limits)"
        problems.append(Finding(node=name, problem=problem, fix=fix))
    return problems


def _health(name: str, health: Health) -> list[Finding]:
    problems = []
    if health.free_inodes is not None and health.free_inodes < MIN_INODES:
        problems.append(
            Finding(
                node=name,
                problem=f"the disk takes no more files: {health.free_inodes} inodes are free",
                fix=f"remove files there, at least {MIN_INODES} (gpuctl exec -- df -i)",
            )
        )
    addresses = health.hostname_addresses
    loopback = [address for address in addresses or () if address.startswith(LOOPBACK)]
    shares_machine = health.interface is not None and health.interface.startswith("lo")
    if shares_machine or (addresses and not loopback):
        return problems
    state = f"is {loopback[0]}" if loopback else "has no answer" if addresses is None else "has no address"
    # gpuctl gives addresses only; a script may not.
    problems.append(
        Finding(
            node=name,
            problem=f"its hostname {state} there: no peer can meet it by that name",
            fix="nothing, where the script takes MASTER_ADDR as it is (gpuctl gives addresses); a script that hands "
            "out the hostname itself needs it in /etc/hosts with the private address",
            fatal=False,
            harmless=True,
        )
    )
    return problems


def _stale(name: str, stale: StaleProcess) -> Finding:
    """A process of a run that is over: in the way only where it holds a GPU. A port that it holds is not chosen."""
    holding = " and holds a GPU" if stale.gpu else ""
    process = f"{stale.command} (pid {stale.pid})"
    return Finding(
        node=name,
        problem=f"a process of the run {stale.run}, which is over, is left{holding}: {process}",
        fix=f"gpuctl stop {stale.run}; if it is still there: gpuctl exec -- kill {stale.pid} on that node",
        fatal=stale.gpu,
    )
