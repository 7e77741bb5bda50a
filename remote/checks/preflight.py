"""Checks before the launch, so that a run does not fail later: each finding names the node and the fix. Pure."""

from collections.abc import Callable, Collection, Mapping

from inventories.machine import Machine
from inventories.text import listed
from remote.checks import gpu_use
from remote.checks.gpu_use import Expected
from remote.checks.probe import ProbeAnswer
from remote.checks.probe_findings import probed
from remote.facts import Facts
from remote.findings import LOOPBACK, Finding, alike_together, cannot_start, not_the_first, sentence
from remote.launchers import DEFAULT, launcher_of, nccl
from remote.shared.constants import RENDEZVOUS_PORTS

MIN_DISK_BYTES = 50 * 1000 * 1000
MAX_CLOCK_SKEW_S = 5.0
NOT_A_NETWORK = ("docker", "br-", "virbr", "veth", "lo")
"""How the interfaces begin that lead nowhere but to this machine's own containers and processes."""
OCI_RDMA_IMAGE = "marketplace:Oracle Linux - GPU Cluster Networking Image"
"""Image for RDMA networks of OCI, as `--image` takes it."""
RDMA_GPUS = 8
"""GPUs of each machine that OCI puts on an RDMA network."""
PLUGIN_VARIABLES = frozenset({"LD_LIBRARY_PATH", "NCCL_NET_PLUGIN"})
"""Variables that tell NCCL where its plug-in is."""

_LOOK_AGAIN = (
    "wait some minutes, then look again: the cloud's agent gives RDMA devices their addresses "
    "(gpuctl exec -- ip -brief -4 addr; gpuctl exec -- sudo journalctl -u '*oracle-cloud-agent*')"
)
_TAKE_IMAGE = (
    "take Oracle's image for it, the default for these shapes: only with OFED, wpa_supplicant and Oracle's packages, "
    "which it has, machines join the RDMA network (gpuctl down, then "
    f"gpuctl up --image '{OCI_RDMA_IMAGE}'). On that image, the cloud's agent tells why: "
    "gpuctl exec -- sudo journalctl -u '*oracle-cloud-agent*'"
)


def findings(
    facts: Mapping[str, Facts],
    probes: Mapping[str, ProbeAnswer] | None = None,
    *,
    master: Machine,
    mode: str = DEFAULT,
    installed: bool = True,
    env_names: Collection[str] = (),
    expected: Expected | None = None,
) -> list[Finding]:
    """Return all findings. `master` is the node that hosts the rendezvous; `probes`: `None` without a trial.

    `installed`: whether the ranks will use the interpreters of the facts. `env_names`: names of the
    variables that the user sets for the ranks. `expected`: GPUs that there should be.
    """
    problems = launcher_of(mode).findings(facts) if installed else []
    problems += [finding for name, fact in facts.items() for finding in _node(name, fact)]
    problems += gpu_use.findings(facts, expected or Expected(), env_names=env_names)
    problems += _clocks({name: fact.clock_offset_s for name, fact in facts.items()})
    problems += _listed_twice(facts)
    problems += _different(facts)
    problems += _rendezvous(facts[master.name], master)
    address = master.private_ip
    if len(facts) > 1:
        if not set(nccl.INTERFACE_NAMES) <= set(env_names):
            # NCCL and gloo would choose an interface themselves, and may hang on another than the peers'.
            names = " ".join(f"--env {name}=IFACE" for name in nccl.INTERFACE_NAMES)
            problems += [
                Finding(
                    node=name,
                    problem=f"the interface on its way to {address} is not known, and NCCL and gloo would guess",
                    fix=f"see that there is a way (`ip route get {address}`), or name the interface: {names}",
                )
                for name, fact in facts.items()
                if fact.interfaces.get(address) is None
            ]
        problems += fast_network_findings(facts, address, env_names)
    if probes is not None:
        problems += probed(facts, probes, master=master)
    return alike_together(problems)


def _rendezvous(fact: Facts, master: Machine) -> list[Finding]:
    """Check that the first node can host the rendezvous."""
    if fact.free_port is not None:
        return []
    if fact.cant_listen is None:
        return [
            Finding(
                node=master.name,
                problem=f"no free port was found at {master.private_ip} for the rendezvous, of those from "
                f"{RENDEZVOUS_PORTS.start} to {RENDEZVOUS_PORTS.stop - 1}",
                fix="run the command again: it tries others; or end what holds them (gpuctl exec -- ss -tlnp)",
            )
        ]
    return [
        Finding(
            node=master.name,
            problem=f"nothing can listen at {master.private_ip}, the address that the other nodes meet it at: "
            f"{fact.cant_listen}",
            fix="set private_ip in the inventory to an IPv4 address of the machine itself (`ip addr` shows them)",
        )
    ]


def _clocks(offsets_s: Mapping[str, float]) -> list[Finding]:
    """Return findings on clocks. `offsets_s`: each node's clock minus this computer's, seconds.

    Several nodes that agree with each other are taken to be right.
    """
    fix = "check the time service there (timedatectl); times in logs will not line up"
    first, last = min(offsets_s.values()), max(offsets_s.values())
    agree = len(offsets_s) > 1 and last - first <= MAX_CLOCK_SKEW_S
    if agree and min(abs(first), abs(last)) > MAX_CLOCK_SKEW_S:
        side = "behind" if first > 0 else "ahead of"
        problem = f"its clock is {abs(first):.1f} s {side} the clocks of all nodes"
        return [Finding(node="this computer", problem=problem, fix=fix, fatal=False)]
    subject = "the clock is off" if len(offsets_s) > 1 else "its clock and this computer's differ"
    return [
        Finding(node=name, problem=f"{subject} by {offset_s:+.1f} s", fix=fix, fatal=False)
        for name, offset_s in offsets_s.items()
        if abs(offset_s) > MAX_CLOCK_SKEW_S
    ]


def _listed_twice(facts: Mapping[str, Facts]) -> list[Finding]:
    """Return a finding for each machine with several nodes: they would share its GPUs, and overwrite files."""
    nodes: dict[str, list[str]] = {}
    for name, fact in facts.items():
        # Nodes at addresses of loopback are meant to be on one machine.
        if not any(interface and interface.startswith("lo") for interface in fact.interfaces.values()):
            nodes.setdefault(fact.machine, []).append(name)
    return [
        Finding(
            node=listed(names),
            problem=f"the inventory lists one machine {len(names)} times: its hostname is {facts[names[0]].hostname}",
            fix="leave one of these entries in the inventory",
        )
        for names in nodes.values()
        if len(names) > 1
    ]


def still_active(name: str, run: str) -> Finding:
    """Return the finding on a node where another run is active."""
    return Finding(
        node=name,
        problem=f"the run {run} is still active",
        fix=f"wait for it (gpuctl logs -f {run}), or end it: gpuctl stop {run}",
    )


def has_room(fact: Facts) -> bool:
    """Return whether the disk has room for code and logs."""
    return fact.disk_free_bytes >= MIN_DISK_BYTES


def _node(name: str, fact: Facts) -> list[Finding]:
    """Return the findings on a node's own facts."""
    problems: list[Finding] = []
    if not has_room(fact):
        problems.append(
            Finding(
                node=name,
                problem=f"the disk is full: {fact.disk_free_bytes / 1e6:.1f} MB free in {fact.home}",
                fix=f"free at least {MIN_DISK_BYTES / 1e6:.0f} MB (gpuctl exec -- df -h), or use a larger disk",
            )
        )
    if fact.active_runs:
        problems.append(still_active(name, fact.active_runs[0]))
    wrong = {
        interface
        for peer, interface in fact.interfaces.items()
        if interface and interface.startswith(NOT_A_NETWORK) and not peer.startswith(LOOPBACK)
    }
    if wrong:
        problems.append(
            Finding(
                node=name,
                problem=f"the route to the other nodes goes over {listed(sorted(wrong))}, which leads to no network",
                fix="set private_ip in the inventory to addresses of the network between the nodes (`ip route get`)",
                fatal=False,
            )
        )
    return problems


def _different(facts: Mapping[str, Facts]) -> list[Finding]:
    """Return the findings on differences from the first node: ranks would hang, disagree or wait for each other."""
    properties: list[tuple[str, Callable[[Facts], object], str]] = [
        (
            "the ranks would use",
            lambda fact: "GPUs" if fact.gpus else "the CPU",
            "mend the GPUs there (nvidia-smi), or leave these nodes out: GPUs and CPUs have no back end in common",
        ),
        (
            "Python is",
            lambda fact: fact.python_version and ".".join(fact.python_version.split(".")[:2]),
            "use one version (--python) where the script pickles objects from node to node",
        ),
        (
            "the number of GPUs is",
            lambda fact: len(fact.gpus) or None,
            "that works; --nproc-per-node makes it the same on all nodes, which some scripts count on",
        ),
        ("the GPU is", lambda fact: fact.gpus and fact.gpus[0].get("name"), "the slowest sets the pace"),
        (
            "the GPU driver is",
            lambda fact: fact.gpus and fact.gpus[0].get("driver"),
            "use one image for all nodes; NCCL may choose other algorithms on each",
        ),
    ]
    problems = []
    for subject, of, fix in properties:
        values = {name: str(value) for name, fact in facts.items() if (value := of(fact))}
        problems += not_the_first(values, subject, fix, fatal=subject == "the ranks would use")
    return problems


def check(
    facts: Mapping[str, Facts],
    probes: Mapping[str, ProbeAnswer] | None = None,
    *,
    master: Machine,
    note: Callable[[str], None],
    mode: str = DEFAULT,
    env_names: Collection[str] = (),
    expected: Expected | None = None,
) -> None:
    """Pass findings that a run can live with to `note`, then raise PreflightFailed with all fatal ones.

    `mode`, `env_names` and `expected`: as in `findings`.
    """
    problems = findings(facts, probes, master=master, mode=mode, env_names=env_names, expected=expected)
    for finding in problems:
        if not finding.fatal and not finding.harmless:
            note(sentence(finding))
    if fatal := [finding for finding in problems if finding.fatal]:
        raise cannot_start(map(sentence, fatal), (finding.node for finding in fatal))


def fast_network_findings(
    facts: Mapping[str, Facts], master_addr: str, env_names: Collection[str]
) -> list[Finding]:
    """Return what keeps NCCL from the nodes' fast networks. `env_names`: variables that the user sets for ranks."""
    return [
        *_oci_rdma(facts, master_addr),
        *[
            Finding(node=name, problem=f"{problem}: NCCL uses TCP sockets, not EFA", fix=fix, fatal=False)
            for name, fact in facts.items()
            if fact.gpus
            for problem, fix in _efa_problem(fact, env_names)
        ],
    ]


def _oci_rdma(facts: Mapping[str, Facts], master_addr: str) -> list[Finding]:
    """Return nodes whose usable RDMA devices differ from the first node's, or are all missing."""
    ways = {name: fact.interfaces.get(master_addr) for name, fact in facts.items()}
    usable = {
        name: str(len(nccl.cluster_network(fact, ways[name])))
        for name, fact in facts.items()
        if fact.cloud == "oci" and fact.gpus
    }
    different = not_the_first(
        usable, "the number of RDMA devices that can be used is", _LOOK_AGAIN, fatal=True
    )
    if different:
        return different
    unusable = {
        name: _rdma_problem(fact, ways[name]) for name, fact in facts.items() if usable.get(name) == "0"
    }
    return [
        Finding(node=name, problem=f"{problem}: the run goes over TCP", fix=_TAKE_IMAGE, fatal=False)
        for name, problem in unusable.items()
        if problem
    ]


def _rdma_problem(fact: Facts, interface: str | None) -> str:
    """Return why a node has no usable RDMA device; empty: its GPUs need no RDMA network."""
    if nccl.joins_cluster_network(fact, interface):
        return "it has RDMA devices and none can be used, as none has an address"
    if nccl.has_rdma_gpus(fact) and len(fact.gpus) == RDMA_GPUS:
        return "it has no RDMA devices, which machines with these GPUs have on OCI"
    return ""


def _efa_problem(fact: Facts, env_names: Collection[str]) -> list[tuple[str, str]]:
    """Return what NCCL lacks for EFA, and the fix; empty: it lacks nothing, or the node has no EFA."""
    if fact.efa is None:
        return []
    missing = [
        name
        for name, installed in (("aws-ofi-nccl", fact.efa.plugin), ("libfabric", fact.efa.libfabric))
        if not installed
    ]
    if missing and not PLUGIN_VARIABLES & set(env_names):
        fix = (
            "take an image that has them, such as AWS's Deep Learning image (the default of gpuctl up), or run AWS's "
            "EFA installer there"
        )
        return [(f"it has EFA devices and lacks {' and '.join(missing)}", fix)]
    if fact.efa.plugin and not fact.efa.loadable and not PLUGIN_VARIABLES & set(env_names):
        folder = fact.efa.plugin.rpartition("/")[0]
        return [
            (
                f"it has EFA devices, and NCCL's plug-in is in {folder}, where the loader does not look",
                f"add --env LD_LIBRARY_PATH={folder}, or name the folder in /etc/ld.so.conf.d there and run ldconfig",
            )
        ]
    return []
